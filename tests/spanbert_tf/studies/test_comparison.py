import csv
import math
import statistics

import numpy as np
import pytest

from spanbert_tf.console import DataConsole
from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.models import SpanBertMaskedLM
from spanbert_tf.studies.comparison import compare_systems, small_version
from spanbert_tf.training.metrics_log import read_metrics

pytestmark = pytest.mark.slow

STEPS = 4


@pytest.fixture(scope="module")
def settings():
    sizes = ("num_layers=2", "num_heads=2", "hidden_dim=32", "intermediate_dim=48")
    return [*(f"model.{size}" for size in sizes), "training.batch_size=4", "training.log_every=1"]


@pytest.fixture(scope="module")
def compared(settings, tiny_records, tmp_path_factory):
    """Two systems with one seed, then one of them with a second seed, in the same directory."""
    output = tmp_path_factory.mktemp("comparison")
    console = DataConsole(record=True, width=120)
    options = {"steps": STEPS, "overrides": settings, "console": console}
    first = compare_systems(
        ["spanbert", "bert_1seq"], tiny_records, str(output), seeds=[1], **options
    )
    table = (output / "results.csv").read_text()
    second = compare_systems(["bert_1seq"], tiny_records, str(output), seeds=[1, 2], **options)
    return output, first, table, second, console.export_text()


def test_each_system_is_trained_with_each_seed(compared):
    output, first, _, second, _ = compared
    assert [(result.config, result.seed) for result in first] == [("spanbert", 1), ("bert_1seq", 1)]
    assert [(result.config, result.seed) for result in second] == [
        ("bert_1seq", 1),
        ("bert_1seq", 2),
    ]
    runs = {path.name for path in (output / "runs").iterdir()}
    assert runs == {"spanbert-seed1", "bert_1seq-seed1", "bert_1seq-seed2"}
    for run in runs:  # a finished run is not trained again: each step was logged once
        lines = read_metrics(str(output / "runs" / run / "metrics.jsonl"))
        assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]


def test_several_steps_in_one_execution_measure_the_same_rows(
    compared, settings, tiny_records, tmp_path
):
    """Of 10 held-out records in three batches."""
    found = compare_systems(
        ["spanbert"],
        tiny_records,
        str(tmp_path / "compared"),
        seeds=[1],
        steps=STEPS,
        overrides=[*settings, "training.log_every=2", "training.steps_per_execution=2"],
        console=DataConsole(record=True),
    )
    assert found == compared[1][:1]


@pytest.mark.parametrize(
    ("configs", "seeds", "overrides"),
    [
        (["spanbert"], [1, 1], []),
        (["spanbert"], [1, 2], ["training.seed=7"]),
        (["spanbert", "ways/spanbert.yaml"], [1], []),
    ],
)
def test_runs_of_one_name_are_refused_before_the_first(
    configs, seeds, overrides, settings, tiny_records, tmp_path, monkeypatch
):
    """The second would only be the first one again, or write over it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ways").mkdir()
    (tmp_path / "ways" / "spanbert.yaml").write_text("base: spanbert\n")
    options = {"steps": STEPS, "seeds": seeds, "overrides": [*settings, *overrides]}
    with pytest.raises(ConfigurationError, match=r"two runs would be spanbert-seed\d;"):
        compare_systems(configs, tiny_records, "compared", **options)
    assert not (tmp_path / "compared").exists()


def test_small_versions_have_no_dropout_whatever_their_configuration_has(tiny_records, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: spanbert\nmodel: {dropout: 0.2, attention_dropout: 0.1}\n")
    manifest = PretrainingManifest.load(tiny_records)
    assert small_version(str(mine), manifest, STEPS).model.attention_dropout is None
    model = small_version(str(mine), manifest, STEPS, ["model.attention_dropout=0.3"]).model
    assert (model.dropout, model.attention_dropout) == (0, 0.3)


def test_all_are_measured_under_the_same_masks(compared, tiny_records):
    """The losses are those of the saved models on masks of geometric spans, in plain NumPy."""
    output, first, *_ = compared
    for result in first:
        model = SpanBertMaskedLM.from_preset(
            str(output / "runs" / f"{result.config}-seed1" / "preset")
        )
        total = count = 0
        for batch in pretraining_dataset(
            tiny_records, batch_size=5, masking="geometric_spans", split="validation"
        ):
            logits = model({name: batch[name] for name in model.input}).numpy().astype("float64")
            shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)  # [B, K, V]
            used = batch["mask_weights"].numpy() == 1
            for share, token in zip(shares[used], batch["mask_ids"].numpy()[used], strict=True):
                total -= math.log(share[token])
                count += 1
        assert result.masked_lm_loss == pytest.approx(total / count, rel=1e-5)


def test_only_systems_with_the_objective_have_its_loss(compared):
    _, (spanbert, bert), *_ = compared
    assert spanbert.span_boundary_loss > 0
    assert bert.span_boundary_loss is None


def test_table_has_mean_and_deviation_over_seeds(compared):
    *_, second, text = compared
    losses = [result.masked_lm_loss for result in second]
    assert f"{statistics.mean(losses):.3f} ± {statistics.stdev(losses):.3f}" in text


def test_csv_has_a_row_a_run(compared):
    _, first, table, *_ = compared
    rows = list(csv.DictReader(table.splitlines()))
    assert [(row["config"], row["seed"]) for row in rows] == [("spanbert", "1"), ("bert_1seq", "1")]
    for row, result in zip(rows, first, strict=True):
        assert float(row["masked_lm_loss"]) == result.masked_lm_loss
    assert rows[1]["span_boundary_loss"] == ""


def test_plot_is_a_picture(compared):
    assert (compared[0] / "results.png").read_bytes().startswith(b"\x89PNG")


def test_system_that_does_not_fit_the_records_is_refused_before_any_training(
    settings, tiny_records, tmp_path
):
    with pytest.raises(MismatchError, match=r"^bert_2seq_nsp: .*data.sequences of these records"):
        compare_systems(
            ["spanbert", "bert_2seq_nsp"],
            tiny_records,
            str(tmp_path / "output"),
            steps=STEPS,
            seeds=[1],
            overrides=settings,
        )
    assert not (tmp_path / "output").exists()


def test_runs_do_not_say_what_to_do_next(compared, settings, tiny_records, capfd):
    output = str(compared[0])
    compare_systems(["bert_1seq"], tiny_records, output, steps=STEPS, seeds=[1], overrides=settings)
    printed = capfd.readouterr().out
    assert "Held-out records after step 4" in printed
    assert "tensorboard" not in printed and "export" not in printed


def test_a_directory_of_something_else_is_left_alone(settings, tiny_records, tmp_path):
    (tmp_path / "thesis").touch()
    with pytest.raises(BadInputError, match=r"other things than a comparison \(thesis\)"):
        compare_systems(["spanbert"], tiny_records, str(tmp_path), steps=STEPS, seeds=[1])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def test_brackets_of_paths_are_printed(settings, tiny_records, tmp_path):
    """Rich would take them for styles, and end with an error at a slash in them."""
    config, output = tmp_path / "[red]bert.yaml", tmp_path / "a[" / "b]"
    config.write_text("base: bert_1seq\n")
    console = DataConsole(record=True, width=500)
    options = {"steps": STEPS, "seeds": [1], "overrides": settings, "console": console}
    compare_systems([str(config)], tiny_records, str(output), **options)
    text = console.export_text()
    assert f"{config}, seed 1 (run 1 of 1)" in text
    assert f" {config} " in text.partition("Held-out records")[2]
    assert f"{output}: results.csv" in text
