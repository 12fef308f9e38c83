"""Every shipped configuration runs: the command lines of its own comment, on files made here.

The commands are shrunk by options alone: rows of 32 positions, an encoder of one narrow layer, two
steps. What a comment leaves to another configuration ("and so dev", "see …") is taken from there.
"""

import functools
import gzip
import json
import pathlib
import random
import re
import shlex

import keras
import pytest
from made_up_documents import documents, write_conll
from made_up_questions import made_up_questions

from spanbert_tf.cli import cli
from spanbert_tf.config import load_config, shipped_directory, shipped_names
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS

pytestmark = pytest.mark.slow  # half a minute of preparing, then a run each

LENGTH = 32
WORDS = (
    "ann bob eve rome oslo has saw likes lives in who the a cat dog owl city here . , ? ! it she"
)
# Cased records have to have capitals somewhere in their vocabulary.
VOCABULARIES = {
    "cased": [
        *WORDS.split(),
        "Ann",
        "Bob",
        "Eve",
        "Tom",
        "Rome",
        "Oslo",
        "The",
        "Who",
        "She",
        "He",
    ],
    "uncased": [*WORDS.split(), "tom", "he"],
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"[unused{n}]" for n in range(1, 20))]
SMALL = {
    "pretrain": """model.num_layers=1 model.num_heads=2 model.hidden_dim=16
        model.intermediate_dim=24 model.max_sequence_length=32 objectives.span_position_dim=8
        optimizer.warmup_steps=1 training.batch_size=4 training.steps=2 training.schedule_steps=3
        training.head_steps=0 training.strategy=one_device training.evaluate_every=2
        training.evaluate_batches=1 training.log_every=1 training.checkpoint_every_steps=2
        data.sequence_length=32""",
    "finetune": """training.max_steps=2 training.batch_size=4 training.log_every=1
        prediction.batch_size=8 data.sequence_length=32 grid.learning_rates=[1.0e-3]
        grid.batch_sizes=[4] grid.epochs=[]""",
}
OF_TASKS = {
    "coreference": "training.batch_size=1 resolver.ffnn_dim=8 resolver.feature_dim=4 "
    "data.max_training_segments=2 resolver.max_span_width=4",
    "question_answering": "data.stride=12",
}
PREPARED_SMALL = {  # options of `prepare X` beside the sequence length
    "squad": ["--stride", "12"],
    "mrqa": ["--stride", "12"],
    "coreference": ["--max-training-segments", "2"],
    "pretraining": ["--validation-fraction", "0.5", "--num-shards", "1"],
}


def comment_of(kind, name):
    text = (pathlib.Path(shipped_directory(kind)) / f"{name}.yaml").read_text()
    lines = re.findall(r"^#   +(.*)", text, re.MULTILINE)
    commands = "\n".join(lines).replace("\\\n", " ").splitlines()
    base = re.search(r"^base: (\w+)", text, re.MULTILINE)
    own = [line for line in commands if line.startswith("spanbert-tf ")]
    return [shlex.split(line, comments=True)[1:] for line in own], base and base[1]


def option(words, name):
    return words[words.index(name) + 1] if name in words else None


def own_command(kind, name):
    """The line that trains, and all that prepare its records, its own or its bases'."""
    commands, base = comment_of(kind, name)
    of_base = own_command(kind, base) if base else ([], [])
    training = [words for words in commands if words[0] == kind]
    words = list(training[0]) if training else list(of_base[0])
    words[words.index("--config") + 1] = name
    preparing = [words for words in commands if words[0] == "prepare"]
    return words, preparing + of_base[1]


def preparing_command(kind, name, records, preparing):
    """The line that writes some records: its own, a base's, that of a twin with the same name."""
    others = [words for other in shipped_names(kind) for words in comment_of(kind, other)[0]]
    for words in [*preparing, *others]:
        if words[0] == "prepare" and option(words, "--output") == records:
            return list(words)
    # "and so dev": the training records' line with another file.
    train = preparing_command(kind, name, str(pathlib.Path(records).parent / "train"), preparing)
    train[train.index("--output") + 1] = records
    place = train.index("--input") + 1
    train[place] = train[place].replace("train", "dev")
    return train


# What the files of the comments hold.


def squad_text(count, seed, unanswerable=False):
    made, articles = made_up_questions(count, seed), []
    for number, question in enumerate(made.questions):
        (answer,) = question.answers
        entry = {"id": question.id, "question": question.text, "answers": [
            {"text": answer.text, "answer_start": answer.start}]}  # fmt: skip
        if unanswerable:
            entry["is_impossible"] = bool(number % 2)
            entry["answers"] = [] if number % 2 else entry["answers"]
        articles.append({"context": made.contexts[question.context_index], "qas": [entry]})
    data = [{"title": "made up", "paragraphs": articles}]
    return json.dumps({"version": "2.0" if unanswerable else "1.1", "data": data})


def mrqa_text(count, seed):
    made, lines = made_up_questions(count, seed), [{"header": {"dataset": "made up"}}]
    for question in made.questions:
        (answer,) = question.answers
        span = [answer.start, answer.start + len(answer.text) - 1]
        entry = {
            "qid": question.id,
            "question": question.text,
            "answers": [answer.text],
            "detected_answers": [{"text": answer.text, "char_spans": [span]}],
        }
        lines.append({"context": made.contexts[question.context_index], "qas": [entry]})
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def sentence(source):
    return f"{source.choice(['ann', 'bob', 'eve'])} has the {source.choice(['cat', 'dog'])} ."


def glue_text(task, count, seed):
    facts, source = GLUE_TASKS[task], random.Random(seed)
    columns = [*(facts.columns or ("index", *facts.texts, facts.label))]
    rows = [] if facts.columns else [columns]
    for number in range(count):
        label = f"{number % 6}.0" if facts.is_regression else facts.labels[number % 2]
        values = {facts.label: label, **{name: sentence(source) for name in facts.texts}}
        rows.append([values.get(name, "x") for name in columns])
    return "".join("\t".join(row) + "\n" for row in rows)


def table_text(columns, separator, count, seed):
    source = random.Random(seed)
    rows = [columns]
    for number in range(count):
        rows.append([*(sentence(source) for _ in columns[1:]), "yes" if number % 2 else "no"])
    return "".join(separator.join(row) + "\n" for row in rows)


def tacred_text(count):
    examples = [
        {"id": f"x{number}", "token": ["ann", "lives" if number % 2 else "saw", "rome", "."],
         "subj_start": 0, "subj_end": 0, "subj_type": "PERSON", "obj_start": 2, "obj_end": 2,
         "obj_type": "CITY", "relation": "lives" if number % 2 else "no_relation"}
        for number in range(count)
    ]  # fmt: skip
    return json.dumps(examples)


def semeval_text(count):
    relations = ("Entity-Destination(e1,e2)", "Other")
    return "".join(
        f'{number}\t"The <e1>cat</e1> has the <e2>dog</e2>."\n{relations[number % 2]}\nComment:\n\n'
        for number in range(1, count + 1)
    )


def crossre_text(count):
    lines = [
        {"doc_key": f"d-{number}", "sentence": ["ann", "lives", "in", "rome", "."],
         "ner": [[0, 0, "person"], [3, 3, "city"]], "relations": []}
        for number in range(count)
    ]  # fmt: skip
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def corpus_text(seed):
    source = random.Random(seed)
    documents = [
        "\n\n".join(" ".join(f"The {sentence(source)}" for _ in range(3)) for _ in range(3))
        for _ in range(12)
    ]
    return "\n\n\n".join(documents)


def content(words, path):
    """What a file of a `prepare` line holds, by the kind of its records and its name."""
    kind, name, seed = words[1], pathlib.Path(path).name, 1 + ("dev" in path)
    if kind == "squad":
        return squad_text(12, seed, "v2.0" in name)
    if kind == "mrqa":
        return mrqa_text(24, seed)
    if kind == "glue":
        return glue_text(option(words, "--task"), 12, seed)
    if kind == "classification":
        columns = [option(words, f"--{c}-column") for c in ("label", "text", "text-pair")]
        columns = [c for c in columns[1:] if c] + columns[:1]
        return table_text(columns, "," if name.endswith("csv") else "\t", 12, seed)
    if kind == "named_entities":
        lines = "ann B-PER\nlives O\nin O\nrome B-LOC\n. O\n\n" * 12
        return crossre_text(12) if "crossre" in words else lines
    return {"tacred": tacred_text, "semeval2010": semeval_text}[kind](12)


class Workshop:
    """Writes files, records and presets as commands ask for them, each once."""

    def __init__(self, directory):
        self.directory = directory
        self.prepared = {}  # a line without its output → records
        self.prepared_as = {}  # the output that comments name → the latest records of that name
        self.trained = set()  # what ran before, by `what_runs`

    def file(self, words, path):
        kind, place = words[1], self.directory / "files" / words[1] / path
        if kind == "pretraining":
            place = self.directory / "files" / "corpus" / "*.gz"
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "coreference":
            place = place.with_suffix("")
            write_conll(place, documents(3, 1 + ("dev" in path), (4, 4)))
        elif kind == "pretraining":
            for seed in range(16):  # a document each, half of which are held out
                with gzip.open(place.parent / f"{seed}.gz", "wt") as file:
                    file.write(corpus_text(seed))
        elif path.endswith(".gz"):
            with gzip.open(place, "wt") as file:
                file.write(content(words, path))
        else:
            place.write_text(content(words, path))
        return str(place)

    @functools.cached_property
    def vocabularies(self):
        for casing, words in VOCABULARIES.items():
            pieces = dict.fromkeys([*SPECIAL, *words])
            (self.directory / f"{casing}.txt").write_text("".join(f"{w}\n" for w in pieces))
        return {casing: str(self.directory / f"{casing}.txt") for casing in VOCABULARIES}

    def records(self, words, casing):
        """The records of a `prepare` line; the same line writes the same ones."""
        words = list(words)
        for name in ("--input", "--training-input"):
            if name in words:
                words[words.index(name) + 1] = self.file(words, option(words, name))
        if "--preset" in words:
            words[words.index("--preset") + 1] = self.preset(casing, "absolute")
        else:
            words[words.index("--vocabulary") + 1] = self.vocabularies[casing]
        if "--labels-of" in words:
            words[words.index("--labels-of") + 1] = self.prepared_as[option(words, "--labels-of")]
        if "--sequence-length" in words:
            words[words.index("--sequence-length") + 1] = str(LENGTH)
        else:
            words += ["--sequence-length", str(LENGTH)]
        small = PREPARED_SMALL.get(words[1], [])
        words += [] if small and small[0] in words else small
        output = option(words, "--output")
        place = words.index("--output") + 1
        words[place] = ""
        key = tuple(words)
        if key not in self.prepared:
            words[place] = str(self.directory / "records" / str(len(self.prepared)))
            run(words)
            self.prepared[key] = words[place]
        self.prepared_as[output] = self.prepared[key]
        return self.prepared[key]

    @functools.cache  # noqa: B019 - there is one workshop
    def preset(self, casing, positions):
        output = str(self.directory / "presets" / f"{casing}-{positions}")
        with open(self.vocabularies[casing], encoding="utf-8") as file:
            pieces = file.read().split("\n")[:-1]
        keras.utils.set_random_seed(1)
        backbone = SpanBertBackbone(
            len(pieces), 1, 2, 16, 24, max_sequence_length=LENGTH, position_embeddings=positions
        )
        tokenizer = SpanBertTokenizer(pieces, lowercase=casing == "uncased")
        write_preset(backbone, output, tokenizer=tokenizer)
        return output


def run(words):
    """A command line, in this process."""
    cli.main(words, prog_name="spanbert-tf", standalone_mode=False)
    keras.backend.clear_session()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("workshop"))


def is_uncased(name):
    """Of SegaBERT's authors, whose vocabulary is uncased, or with the small sentence encoder."""
    return name.startswith(("segabert", "bert_base_for", "bert_with")) or name.endswith("_small")


def what_runs(config, *more):
    """Of two configurations that differ in rates and lengths alone, one is trained."""
    values = config.model_dump()
    for section in {"optimizer", "training", "grid"} & values.keys():
        for key, value in values[section].items():
            values[section][key] = value if isinstance(value, str | bool) else bool(value)
    return json.dumps([values, *more])


def settings(text):
    return [word for setting in text.split() for word in ("--set", setting)]


@pytest.mark.parametrize("name", shipped_names("pretrain"))
def test_pretraining_configuration_runs(name, workshop, tmp_path, capfd):
    words, preparing = own_command("pretrain", name)
    casing = "uncased" if is_uncased(name) else "cased"
    records = option(words, "--data")
    line = preparing_command("pretrain", name, records, preparing)
    words[words.index("--data") + 1] = workshop.records(line, casing)
    words[words.index("--output") + 1] = str(tmp_path / "run")
    config = load_config(name, SMALL["pretrain"].split())
    if (runs := what_runs(config, casing)) in workshop.trained:
        return
    workshop.trained.add(runs)
    if "--initial-preset" in words:
        preset = workshop.preset(casing, "absolute")
        words[words.index("--initial-preset") + 1] = preset
    run([*words, *settings(SMALL["pretrain"])])
    assert re.search(r"evaluated after step 2: loss \d", capfd.readouterr().out)
    assert (tmp_path / "run" / "preset" / "model.weights.h5").exists()


@pytest.mark.parametrize("name", shipped_names("finetune"))
def test_finetuning_configuration_runs(name, workshop, tmp_path, capfd):
    task = load_task_config(name).task
    small = f"{SMALL['finetune']} {OF_TASKS.get(task, '')}"
    config = load_task_config(name, small.split())
    words, preparing = own_command("finetune", name)
    casing = "uncased" if is_uncased(name) else "cased"
    for option_name in ("--data", "--validation-data"):
        if option_name in words:
            records = option(words, option_name)
            line = preparing_command("finetune", name, records, preparing)
            words[words.index(option_name) + 1] = workshop.records(line, casing)
    facts = GLUE_TASKS.get(option(line, "--task"))
    shape = facts and (len(facts.texts), facts.is_regression)
    if (runs := what_runs(config, casing, line[1], shape)) in workshop.trained:
        return
    workshop.trained.add(runs)
    positions = "segment_aware" if config.data.segment_aware else "absolute"
    words[words.index("--preset") + 1] = workshop.preset(casing, positions)
    words[words.index("--output") + 1] = str(tmp_path / "run")
    run([*words, *settings(small)])
    printed = capfd.readouterr().out
    assert re.search(r"^step 2 of 2: loss \d", printed, re.MULTILINE)
    (preset,) = tmp_path.glob("run/**/preset")
    if "--validation-data" in words:
        scores = json.loads((preset.parent / "scores.json").read_text())
        assert scores and all(0 <= abs(value) <= 100 for value in scores.values())
