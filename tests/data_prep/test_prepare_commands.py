"""The commands as a user runs them: one-line errors, and outputs whole or not at all."""

import json
import os
import runpy
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from data_prep.cli import prepare
from spanbert_tf.cli import cli, main
from spanbert_tf.config import load_config
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.files.kinds import info_file
from spanbert_tf.files.written import describe_size
from spanbert_tf.lazy import UNUSED
from spanbert_tf.tasks.finetuning import check_records
from spanbert_tf.tasks.table import load_task, load_task_config

# Runs a command under limits of the size of a file, one after the other.
FULL_DISK = textwrap.dedent(
    """
    import resource, sys
    from spanbert_tf.cli import main
    for limit in map(int, sys.argv[1].split(",")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            main(sys.argv[2:])
        except SystemExit as error:
            print(limit, "status", error.code, flush=True)
    """
)


def run(arguments, capfd):
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    return raised.value.code, capfd.readouterr().err


def pretraining_arguments(pattern, vocabulary, output):
    return ["prepare", "pretraining", "--input", pattern, "--vocabulary", vocabulary,
            "--output", str(output), "--sequence-length", "64"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "no such file"),
        ("empty", b"", "is empty"),
        ("latin1", "café".encode("latin1"), "not UTF-8 at byte 3"),
        ("broken.gz", b"\x1f\x8b\x08\x00", "broken gzip"),
        ("lines.jsonl", b'{"text": "A."}\n{"text": ["B."]}\n', "line 2: "),
    ],
)
@pytest.mark.parametrize("command", ["vocabulary", "pretraining"])
def test_bad_input_is_one_line_and_status_2(
    command, name, content, message, letters_vocabulary, tmp_path, capfd
):
    text, output = tmp_path / name, tmp_path / "output"
    if content is not None:
        text.write_bytes(content)
    if command == "pretraining":
        arguments = pretraining_arguments(str(text), letters_vocabulary, output)
    else:
        arguments = ["prepare", "vocabulary", "--input", str(text), "--output", str(output)]
        arguments += ["--vocabulary-size", "100"]
    status, errors = run(arguments, capfd)
    assert status == 2
    (line,) = errors.splitlines()
    assert line.startswith(f"spanbert-tf: {text}: ")
    assert message in line
    assert list(tmp_path.iterdir()) == [text] * text.exists()


def test_a_vocabulary_without_mask_is_refused(corpus, tmp_path, capfd):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    arguments = pretraining_arguments(str(corpus[0] / "*"), str(vocabulary), tmp_path / "records")
    status, errors = run(arguments, capfd)
    assert status == 2
    assert errors.splitlines() == [f"spanbert-tf: {vocabulary}: lacks [MASK]; add a line for each"]


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_full_disk_leaves_what_is_whole(num_processes, corpus, letters_vocabulary, tmp_path):
    # The largest file of the text becomes 60 KB of records, a shard 200 KB.
    limits = {1: [1_000, 20_000, 150_000], 2: [20_000]}[num_processes]
    arguments = pretraining_arguments(
        str(corpus[0] / "*"), letters_vocabulary, tmp_path / "records"
    )
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, ",".join(map(str, limits)), *arguments,
         f"--num-processes={num_processes}"],
        # Python leaves what it could write of a module's bytecode, for all that import it later.
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"{limit} status 2" for limit in limits]
    lines = [line for line in done.stderr.splitlines() if not line.startswith("preparing: ")]
    assert len(lines) == len(limits)
    for line in lines:
        assert line.startswith(f"spanbert-tf: {tmp_path / 'records'}: cannot be written (File too")
    # All files of the text were read only where the shards were too large.
    is_kept = limits[-1] == 150_000
    assert ("run the same command" in lines[-1]) == is_kept
    assert [path.name for path in tmp_path.iterdir()] == ["records.incomplete"] * is_kept


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_stopped_leaves_no_output(sent, letters_vocabulary, tmp_path):
    text, output = tmp_path / "text", tmp_path / "records"
    text.write_text("Some words, again and again. " * 2_000_000)
    arguments = pretraining_arguments(str(text), letters_vocabulary, output)
    process = subprocess.Popen(
        [sys.executable, "-m", "spanbert_tf.cli", *arguments], stderr=subprocess.PIPE, text=True
    )
    unfinished = tmp_path / "records.incomplete"
    spill = unfinished / "spill" / "0"
    while not spill.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (1 if sent == signal.SIGINT else -signal.SIGKILL), errors
    assert not output.exists()
    if sent == signal.SIGINT:
        assert not unfinished.exists()
    else:  # what it left does not stand in the way
        text.write_text("Some words.")
        with pytest.raises(SystemExit) as raised:
            main(arguments)
        assert raised.value.code == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["records", "text"]


@pytest.mark.parametrize("command", ["vocabulary", "pretraining", "squad"])
def test_the_package_is_the_command(command, monkeypatch, capfd):
    texts = []
    for call in (
        lambda: runpy.run_module("data_prep", run_name="__main__"),
        lambda: main(["prepare", command, "--help"]),
    ):
        monkeypatch.setattr(sys, "argv", ["data_prep", command, "--help"])
        with pytest.raises(SystemExit) as raised:
            call()
        assert raised.value.code == 0
        texts.append(capfd.readouterr().out)
    assert texts[0] == texts[1]
    assert f"spanbert-tf prepare {command}" in texts[0]


@pytest.mark.parametrize("command", ["vocabulary", "pretraining", "squad"])
def test_help_has_both_names_whoever_calls_the_command(command, capfd):
    for call in (prepare.commands[command].main, lambda words: main(["prepare", command, *words])):
        for name in ("-h", "--help"):
            with pytest.raises(SystemExit) as raised:
                call([name])
            assert raised.value.code == 0
            assert "-h, --help" in capfd.readouterr().out


def test_the_package_shows_nothing_of_tensorflow():
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    result = subprocess.run(
        [sys.executable, "-m", "data_prep", "pretraining", "--help"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
def test_preparation_imports_nothing_that_it_does_not_use(letters_vocabulary, tmp_path):
    """In a process of its own, as a shell starts it; each of these costs up to seconds."""
    (tmp_path / "text").write_text("Some words.")
    arguments = pretraining_arguments(
        str(tmp_path / "text"), letters_vocabulary, tmp_path / "records"
    )
    others = {"apache_beam", "keras_hub", *UNUSED}
    program = (
        "import sys, spanbert_tf.cli\n"
        f"try:\n    spanbert_tf.cli.main({arguments!r})\n"
        "except SystemExit as stop:\n    assert stop.code == 0\n"
        f"print(sorted({others!r} & set(sys.modules)))"
    )
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert printed.splitlines()[-1] == "[]"


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MARKERS = [f"[unused{number}]" for number in range(1, 20)]
PIECES = [*SPECIAL, *MARKERS, "ann", "café", "has", "the", "cat", ".", "who", "?"]
CROSSRE = {"doc_key": "a", "sentence": ["ann", "has"], "ner": [[0, 0, "PER"]]}
TACRED = [
    {"id": "a", "token": ["ann", "has", "cat"], "relation": "owns", "subj_type": "PER",
     "obj_type": "CAT", "subj_start": 0, "subj_end": 0, "obj_start": 2, "obj_end": 2},
]  # fmt: skip
SQUAD = {"data": [{"title": "", "paragraphs": [{"context": "ann has the cat", "qas": [
    {"id": "a", "question": "who ?", "answers": [{"text": "ann", "answer_start": 0}]}]}]}],
    "version": "1.1"}  # fmt: skip
MRQA = {"id": "", "context": "ann has the cat", "context_tokens": [["ann", 0]], "qas": [
    {"qid": "a", "question": "who ?", "question_tokens": [["who", 0]], "answers": ["ann"],
     "detected_answers": [{"text": "ann", "char_spans": [[0, 2]], "token_spans": [[0, 0]]}]},
]}  # fmt: skip
COREFERENCE = {"doc_key": "nw/a_0", "sentences": [["ann", "has", "ann"]], "speakers": [["-"] * 3],
               "clusters": [[[0, 0], [2, 2]]]}  # fmt: skip
# Command → its further options, the content of its file, and the task of its records.
COMMANDS = {
    "squad": ("--sequence-length 64 --version-2", json.dumps(SQUAD), "question_answering"),
    "mrqa": ("--allow-missing-header", json.dumps(MRQA), "question_answering"),
    "glue": ("--task sst2", "sentence\tlabel\nthe cat\t1\nann\t0\n", "text_classification"),
    "classification": (
        *("--text-column text --label-column label", "text,label\nthe cat,a\nann,b\n"),
        "text_classification",
    ),
    "coreference": ("", json.dumps(COREFERENCE), "coreference"),
    "tacred": ("", json.dumps(TACRED), "relation_extraction"),
    "semeval2010": (
        *("", '1\t"<e1>ann</e1> has the <e2>cat</e2>."\nOther\nComment:\n\n'),
        "relation_extraction",
    ),
    "named_entities": ("--format conll", "ann B-PER\nhas O\n", "named_entities"),
    "pretraining": ("--sequence-length 16", "ann has the cat. " * 40, "pretraining"),
}


def write_preset_to_read(directory, vocabulary=PIECES, **config):
    """What `prepare` reads of a preset, as `save_to_preset` writes it."""
    (directory / "assets" / "tokenizer").mkdir(parents=True)
    pieces = "".join(f"{piece}\n" for piece in vocabulary)
    (directory / "assets" / "tokenizer" / "vocabulary.txt").write_text(pieces)
    encoder = {"class_name": "SpanBertBackbone", "config": {}}
    (directory / "config.json").write_text(json.dumps(encoder))
    tokenizer = {"class_name": "SpanBertTokenizer", "config": config}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def prepare_arguments(command, directory):
    options, content, task = COMMANDS[command]
    # The layouts of MRQA and coreference are told by their endings.
    source = directory / {"mrqa": "in.jsonl", "coreference": "in.jsonl"}.get(command, "in.txt")
    source.write_text(content)
    return ["prepare", command, "--input", str(source), *options.split()], info_file(task)


def test_all_commands_that_write_records_are_tried():
    assert {*COMMANDS} == {*prepare.commands} - {"vocabulary", "repair", "toy"}


def check_next_commands(printed, records, preset):
    """Those that are printed at the end can be typed, and suit the records."""
    *_, size, inspect, train = (line for line in printed.splitlines() if line != "Next:")
    num_bytes = sum(path.stat().st_size for path in records.iterdir())
    num_files = len(list(records.iterdir()))
    assert size == f"{records}: {num_files} files, {describe_size(num_bytes)}"
    assert inspect.split()[:3] == ["spanbert-tf", "inspect", str(records)]
    program, name, *options = train.split()
    assert program == "spanbert-tf"
    given = cli.commands[name].make_context(name, options).params
    assert (given["data"], given["output"]) == (str(records), "run")
    if name == "pretrain":
        data = load_config("spanbert_base", given["overrides"]).data
        manifest = PretrainingManifest.load(records)
        assert given["config"] == ("continue" if preset else "spanbert_base")
        assert given["initial_preset"] == (str(preset) if preset else None)
        assert manifest.sequence_length == data.sequence_length
        return
    assert name == "finetune"
    assert given["preset"] == (str(preset) if preset else "PRESET")
    settings = load_task_config(given["config"], given["overrides"])
    manifest_class = load_task(settings.task).manifest_class
    check_records(settings, manifest_class.load(records), str(records))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_preset_tells_vocabulary_and_casing(command, tmp_path, capfd):
    """The same records, byte for byte, as with the options that say the same."""
    preset = write_preset_to_read(tmp_path / "preset", lowercase=True, strip_accents=False)
    arguments, manifest = prepare_arguments(command, tmp_path)
    vocabulary = str(preset / "assets" / "tokenizer" / "vocabulary.txt")
    same = ["--vocabulary", vocabulary, "--lowercase", "--keep-accents", "--language", "en"]
    for name, options in {"one": ["--preset", str(preset)], "other": same}.items():
        with pytest.raises(SystemExit) as stop:
            main([*arguments, *options, "--output", str(tmp_path / name)])
        printed = capfd.readouterr()
        assert stop.value.code == 0, printed.err
        check_next_commands(printed.out, tmp_path / name, preset if name == "one" else None)
    found, expected = ((tmp_path / name / manifest).read_bytes() for name in ("one", "other"))
    assert found == expected
    described = json.loads(found)
    stored = [described[name] for name in ("lowercase", "strip_accents", "language")]
    assert stored == [True, False, "en"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "give --preset (the one to train, which tells vocabulary and casing), or --vocab"),
        ("--preset {preset} --vocabulary v.txt", "give either --preset or --vocabulary: a preset"),
        ("--preset {preset} --lowercase", "--preset tells the casing; leave out --lowercase, --"),
        ("--cased --preset {preset}", "--preset tells the casing; leave out --lowercase, --cased"),
        ("--preset {preset} --keep-accents", "--preset tells the casing; leave out --lowercase"),
        (
            "--preset {preset} --language de",
            "{preset}: states the language en, not de; leave out --language, or make",
        ),
        ("--preset {preset} --language tlh", "--language tlh: is not known; the nearest is"),
        (
            "--vocabulary {words} --language tlh",
            "--language tlh: is not known; the nearest is",
        ),
        ("--preset no-preset", "no-preset: no preset: no such directory, and no name that KerasH"),
        ("--preset {vocabulary}", "{vocabulary}: is a file of a preset"),
    ],
)
@pytest.mark.parametrize("command", ["named_entities", "coreference", "pretraining"])
def test_a_preset_or_a_vocabulary_is_given(command, options, message, tmp_path, capfd):
    preset = write_preset_to_read(tmp_path / "preset", lowercase=True)
    words = preset / "assets" / "tokenizer" / "vocabulary.txt"
    names = {"preset": preset, "vocabulary": preset / "tokenizer.json", "words": words}
    arguments, _ = prepare_arguments(command, tmp_path)
    words = [word.format(**names) for word in options.split()]
    status, errors = run([*arguments, *words, "--output", str(tmp_path / "out")], capfd)
    assert status == 2
    (line,) = errors.splitlines()
    assert line.startswith(f"spanbert-tf: {message.format(**names)}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing; copy the preset again"),
        ("tokenizer.json", "{", "not JSON"),
        ("tokenizer.json", '{"class_name": "SpanBertTokenizer", "config": {}}', "lowercase: is mi"),
        (
            "tokenizer.json",
            '{"class_name": "BertTokenizer", "config": {"lowercase": true}}',
            "convert it with `spanbert-tf convert --from keras --to keras {preset} PRESET`",
        ),
        ("assets/tokenizer/vocabulary.txt", "a\n", "lacks [PAD]"),
    ],
)
def test_a_preset_that_tells_no_vocabulary_is_named(name, content, message, tmp_path, capfd):
    preset = write_preset_to_read(tmp_path / "preset", lowercase=True)
    (preset / name).unlink()
    if content is not None:
        (preset / name).write_text(content)
    arguments, _ = prepare_arguments("named_entities", tmp_path)
    output = str(tmp_path / "out")
    status, errors = run([*arguments, "--preset", str(preset), "--output", output], capfd)
    assert status == 2
    (line,) = errors.splitlines()
    assert line.startswith(f"spanbert-tf: {preset}")
    assert message.format(preset=preset) in line


def test_the_casing_of_a_preset_counts_whatever_its_vocabulary_looks_like(tmp_path, capfd):
    """That of a Chinese encoder: cased, and without an upper-case letter."""
    preset = write_preset_to_read(tmp_path / "preset", lowercase=False)
    arguments, manifest = prepare_arguments("named_entities", tmp_path)
    output = tmp_path / "out"
    status, errors = run([*arguments, "--preset", str(preset), "--output", str(output)], capfd)
    assert status == 0, errors
    assert json.loads((output / manifest).read_text())["lowercase"] is False
