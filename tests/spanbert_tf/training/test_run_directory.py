"""Directories of runs: which ones a command goes on with."""

import json

import pytest

from spanbert_tf.cli import main
from spanbert_tf.config import load_config
from spanbert_tf.data.manifest import PretrainingManifest
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.training.run_directory import RunDirectory

BEFORE = "begun before version 0.2.0"

# What commit e8ac957 wrote of `masking` for a system of subwords: a start of spans, which did
# nothing, and no word of random tokens.
MASKING_OF_BEFORE = """\
masking:
  scheme: subwords
  rate: 0.15
  geometric_p: 0.2
  max_span_length: 10
  mask_token_rate: 0.8
  random_token_rate: 0.1
  replacement_unit: token
  span_start: anchor_token
  max_span_targets: 20
  boundary_at_special_tokens: false
"""


def write_run_of_before(directory, config_text, inputs):
    """The files that a run of commit e8ac957 has when it was killed after its first checkpoint."""
    for name in ("checkpoints/step-00000004", "logs/train"):
        (directory / name).mkdir(parents=True)
    (directory / "checkpoints" / "step-00000004" / "progress.json").write_text("{}")
    (directory / "metrics.jsonl").write_text('{"step": 4, "loss": 4.1}\n')
    (directory / "inputs.json").write_text(json.dumps(inputs, indent=1) + "\n")
    (directory / "config.yaml").write_text(config_text)


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_pretraining_run_of_before_is_refused_by_name(
    tmp_path, tiny_records, tiny_overrides, capsys
):
    run = tmp_path / "run"
    text = load_config("bert_1seq", tiny_overrides).to_yaml()
    start, end = text.index("masking:"), text.index("objectives:")
    write_run_of_before(
        run, text[:start] + MASKING_OF_BEFORE + text[end:], {"--initial-preset": None}
    )
    (run / "dataset_info.json").write_text(PretrainingManifest.load(tiny_records).to_json())
    before = contents(run)
    arguments = ["pretrain", "--config", "bert_1seq", "--data", tiny_records, "--output", str(run)]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--set", *tiny_overrides])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{run}: this run was {BEFORE}" in line and "another --output" in line
    assert contents(run) == before


def test_layers_may_be_computed_again_from_some_step_on(tmp_path, tiny_overrides):
    """As is advised where memory ends; other rows may not come. By hand, the run went on so."""
    run, before = RunDirectory(str(tmp_path / "run")), load_config("spanbert_base", tiny_overrides)
    run.write(before, {})
    overrides = [*tiny_overrides, "training.gradient_checkpointing=true"]
    assert run.check(load_config("spanbert_base", overrides), load_config) == before
    overrides += ["training.batch_size=2"]
    with pytest.raises(MismatchError, match=r"training\.batch_size is 4 in this run and 2 now"):
        run.check(load_config("spanbert_base", overrides), load_config)


def test_a_finetuning_run_of_before_is_refused(tmp_path):
    run = tmp_path / "run"
    config = load_task_config("squad_v1")
    write_run_of_before(
        run, config.to_yaml(), {"--data": "1f", "--validation-data": None, "--preset": "2e"}
    )
    with pytest.raises(MismatchError, match=f"^{run}: this run was {BEFORE}"):
        RunDirectory(str(run)).check(config, load_task_config)


def test_runs_of_this_version_go_on(tmp_path):
    config, run = load_task_config("squad_v1"), RunDirectory(str(tmp_path / "run"))
    assert run.check(config, load_task_config) is None
    run.check_inputs({"--data": "1f"})
    run.write_inputs({"--data": "1f"})  # and no more: it was killed then
    assert run.check(config, load_task_config) is None
    run.check_inputs({"--data": "1f"})
    run.write(config, {"--data": "1f", "--preset": "3d"})
    assert run.check(config, load_task_config) == config
    run.check_inputs({"--data": "1f"})
    with pytest.raises(MismatchError, match="begun with another --data"):
        run.check_inputs({"--data": "2e"})
    run.write(config, {"--data": "1f"})  # what it began with is not forgotten
    with pytest.raises(MismatchError, match="begun with another --preset"):
        run.check_inputs({"--preset": None})


def test_inputs_of_something_else_are_no_run(tmp_path):
    """A file of that name is not ours to replace."""
    (tmp_path / "inputs.json").write_text('{"x": 1}')
    with pytest.raises(BadInputError, match="exists and is no training run"):
        RunDirectory(str(tmp_path)).check(load_task_config("squad_v1"), load_task_config)
