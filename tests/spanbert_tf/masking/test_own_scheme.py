"""A masking scheme of another package, as docs/pretraining.md shows it."""

import io
import itertools
import math
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
import record_files

from spanbert_tf.config import load_config
from spanbert_tf.console import DataConsole
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.manifest import ANNOTATIONS
from spanbert_tf.errors import ConfigurationError, MismatchError
from spanbert_tf.masking import MaskingOptions, Scheme
from spanbert_tf.masking.schemes import ANNOTATED, find_scheme
from spanbert_tf.pretraining.inspection import inspect_records
from spanbert_tf.pretraining.job import PretrainingJob
from spanbert_tf.training.run_directory import RunDirectory

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "pretraining.md"
SECTION = re.search(r"^## Your own masking scheme\n(.*?)^## ", PAGE.read_text(), re.M | re.S)[1]
MODULE, PROJECT, USE = re.findall(r"^```\w+\n(.*?)^```", SECTION, re.M | re.S)
GROUP = "spanbert_tf.masking_schemes"
SCHEMES_OF_OTHERS = {  # scheme: its value, what is wrong
    "missing": ("no_schemes:X", "No module named 'no_schemes'"),
    "nameless": ("odd_schemes:X", "has no attribute 'X'"),
    "text": ("odd_schemes:TEXT", "it is 'words', no Scheme"),
    "too_often": ("odd_share:SCHEME", "(share: 2.0 must be less than or equal to 1)"),
    "alone": (
        "odd_alone:SCHEME",
        "(share: 1.0 must be 0.99 at most with spans='entities': these cover a part of a block",
    ),
}
LENGTH = 40


def install(site):
    """What pip leaves of the page's package and of a broken one."""
    points = tomllib.loads(PROJECT)["project"]["entry-points"][GROUP]
    broken = {name: value for name, (value, _) in SCHEMES_OF_OTHERS.items()}
    mine = {"trees": "my_trees:TREES", "mostly_entities": "my_entities:SCHEME"}
    mine["even_words"] = "my_words:SCHEME"
    for package, schemes in (("my", points | mine), ("odd", broken)):
        directory = site / f"{package}_schemes-1.0.dist-info"
        directory.mkdir(parents=True)
        name = f"Metadata-Version: 2.1\nName: {package}-schemes\nVersion: 1.0\n"
        (directory / "METADATA").write_text(name)
        lines = "".join(f"{name} = {value}\n" for name, value in schemes.items())
        (directory / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
    (site / "my_schemes.py").write_text(MODULE)
    (site / "my_trees.py").write_text(MODULE.replace("SENTENCES", "TREES").replace("sent", "tre"))
    (site / "odd_schemes.py").write_text('TEXT = "words"\n')
    schemes = {
        "odd_share": "share=2.0",
        "odd_alone": "spans='entities', share=1.0",
        "my_entities": "spans='entities', share=0.99",
        "my_words": "span_start='word'",
    }
    for module, numbers in schemes.items():
        (site / f"{module}.py").write_text(
            f"from spanbert_tf.masking import Scheme\n\nSCHEME = Scheme({numbers})\n"
        )


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    install(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield site


def records_of(directory, sequences):
    """Records whose second segment, if any, begins with a sentence, as prepared ones do."""
    records = record_files.random_records(24, LENGTH, pair=sequences == "pair", seed=5)
    for record in records if sequences == "pair" else ():
        starts = sorted({*record["sentence_starts"], record["second_segment_start"]})
        record["sentence_starts"], record["sentence_indices"] = starts, list(range(len(starts)))
    options = {"sequence_length": LENGTH, "sequences": sequences}
    record_files.write_records(directory / "records", records[:4], records[4:], **options)
    return records[4:]


def blocks_of(record):
    """Each block's sentences as sets of positions in the packed row."""
    length = len(record["token_ids"])
    borders = [*record["sentence_starts"], length]
    sentences = [set(range(a, b)) for a, b in itertools.pairwise(borders)]
    split = record.get("second_segment_start", length)
    first = [sentence for sentence in sentences if max(sentence) < split]
    second = [sentence for sentence in sentences if min(sentence) >= split]
    assert len(first) + len(second) == len(sentences)
    # [CLS] stands before the first block, a [SEP] more before the second.
    return [
        [{place + shift for place in sentence} for sentence in block]
        for block, shift in ((first, 1), (second, 2))
        if block
    ]


@pytest.mark.parametrize("sequences", ["single", "pair"])
def test_whole_sentences_are_masked_and_the_budget_cuts_one(sequences, tmp_path):
    held_out = records_of(tmp_path, sequences)
    masking = {"scheme": "sentences", "rate": 0.5}
    directory = str(tmp_path / "records")
    data = pretraining_dataset(directory, batch_size=20, masking=masking, split="validation")
    (batch,) = data.as_numpy_iterator()
    num_whole = num_cut = 0
    for record, positions, weights in zip(
        held_out, batch["mask_positions"], batch["mask_weights"], strict=True
    ):
        masked = set(positions[weights > 0].tolist())
        for block in blocks_of(record):
            budget = math.ceil(sum(map(len, block)) / 2)
            assert len(masked & set.union(*block)) == budget
            cut = [each for each in block if each & masked and not each <= masked]
            assert len(cut) <= 1
            for sentence in cut:
                assert sorted(sentence)[: len(sentence & masked)] == sorted(sentence & masked)
            num_whole += sum(sentence <= masked for sentence in block)
            num_cut += len(cut)
    assert num_whole > 10 and num_cut > 5


def test_what_the_page_shows_masks_a_record(tmp_path, monkeypatch):
    records_of(tmp_path, "single")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(USE, names)
    positions = names["batch"]["mask_positions"].numpy()[names["batch"]["mask_weights"] > 0]
    assert len(positions) >= 1
    assert positions.tolist() == list(range(positions[0], positions[0] + len(positions)))


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "scheme, said",
    [
        ("sentences", "sentences in all draws, 15% of"),
        (
            "mostly_entities",
            "mostly_entities in 99% of the draws, geometric spans in the rest, drawn",
        ),
    ],
)
def test_inspection_says_what_the_draws_take(scheme, said, tmp_path):
    records = record_files.random_records(8, LENGTH, annotations=["entities"])
    options = {"sequence_length": LENGTH, "annotations": ["entities"]}
    record_files.write_records(tmp_path / "records", records, records, **options)
    console = DataConsole(file=io.StringIO(), width=400)
    overrides = [f"masking.scheme={scheme}", "data.vocabulary_size=null"]
    inspect_records(str(tmp_path / "records"), "spanbert_base", overrides, console)
    assert said in console.file.getvalue()


def test_configurations_know_the_name_without_tensorflow(site):
    program = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "from spanbert_tf.config import load_config\n"
        "config = load_config('spanbert_base', ['masking.scheme=sentences'])\n"
        "print(config.masking.chosen_scheme.spans, 'tensorflow' in sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("sentences False\n", "")


@pytest.mark.parametrize("chosen", [None, "word", "anchor_token"])
def test_where_spans_begin_is_the_schemes_own_unless_an_option_says_so(chosen):
    options = MaskingOptions(scheme="even_words", span_start=chosen)
    assert options.chosen_scheme.span_start == (chosen or "word")


def test_an_unknown_name_is_refused_with_all_that_there_are():
    with pytest.raises(ConfigurationError) as raised:
        MaskingOptions.of("sentence")
    message = str(raised.value)
    assert message.startswith("masking.scheme: 'sentence' must be subwords or whole_words or ")
    assert " or sentences or " in message and "\n" not in message


def test_a_budget_is_met_where_nearly_all_draws_take_an_entity(tmp_path):
    """The others fill it, however many of them that takes."""
    records = record_files.random_records(8, LENGTH, seed=5)
    for record in records:
        record |= {"entity_starts": [0], "entity_ends": [0]}
    options = {"sequence_length": LENGTH, "annotations": ["entities"]}
    record_files.write_records(tmp_path / "records", records, records, **options)
    masking = {"scheme": "mostly_entities", "rate": 0.999}  # all of a block
    data = pretraining_dataset(
        str(tmp_path / "records"), batch_size=8, masking=masking, split="validation"
    )
    (batch,) = data.as_numpy_iterator()
    lengths = [len(record["token_ids"]) for record in records]
    assert batch["mask_weights"].sum(axis=1).tolist() == lengths


def test_the_spans_that_schemes_know_as_annotated_are_those_of_records():
    assert set(ANNOTATED) == set(ANNOTATIONS)


@pytest.mark.parametrize("name", SCHEMES_OF_OTHERS)
def test_a_scheme_that_cannot_be_used_names_its_package(name):
    value, problem = SCHEMES_OF_OTHERS[name]
    with pytest.raises(ConfigurationError) as raised:
        MaskingOptions.of(name)
    message = str(raised.value)
    assert message.startswith(f"masking.scheme {name}: {value} of odd-schemes cannot be loaded (")
    assert problem in message and "\n" not in message


def test_spans_that_no_records_have_are_refused(tmp_path):
    records_of(tmp_path, "single")
    with pytest.raises(MismatchError, match=r"'trees' takes treences, which no records have"):
        pretraining_dataset(str(tmp_path / "records"), batch_size=1, masking="trees")


def test_a_run_refuses_a_scheme_whose_settings_have_changed(
    tiny_records, tiny_overrides, tmp_path, monkeypatch
):
    config = load_config("spanbert_base", [*tiny_overrides, "masking.scheme=even_words"])

    def inputs():
        find_scheme.cache_clear()  # as in another process
        return PretrainingJob(config, tiny_records, None, show_next_steps=False).inputs

    run = RunDirectory(str(tmp_path / "run"))
    run.write(config, inputs())
    run.check_inputs(inputs())
    monkeypatch.setattr("my_words.SCHEME", Scheme(span_start="anchor_token"))
    with pytest.raises(MismatchError, match=r"was begun with another masking\.scheme;"):
        run.check_inputs(inputs())
    monkeypatch.undo()
    run.check_inputs(inputs())
