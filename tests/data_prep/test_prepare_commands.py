"""The commands as a user runs them: one-line errors, and outputs whole or not at all."""

import os
import runpy
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from data_prep.cli import prepare
from spanbert_tf.cli import main

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
        ("lines.jsonl", b'{"text": "A."}\n{"txt": "B."}\n', "line 2: "),
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
def test_a_full_disk_leaves_nothing(num_processes, corpus, letters_vocabulary, tmp_path):
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
    assert not list(tmp_path.iterdir())


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
