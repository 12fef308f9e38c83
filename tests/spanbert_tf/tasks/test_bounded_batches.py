"""However many and long the raw inputs are, a model reads few rows at once."""

import json

import click.testing
import pytest
import tensorflow as tf
from tiny_models import INPUTS, SENTENCE, pipeline_of, tiny_model

from spanbert_tf.models.span_bert_task import SpanBertTask
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.task_cli import predict
from spanbert_tf.tasks.graphs import MAX_ROWS

LONG = {
    "question_answering": {"question": "who has the cat ?", "context": SENTENCE * 200},
    "named_entities": {"text": SENTENCE * 200},
}


def raw_function(name):
    return pipeline_of(name).predictor(tiny_model(name))


@pytest.fixture
def row_counts(monkeypatch):
    """How many rows, or documents, a model was given each time."""
    counts, call = [], SpanBertTask.call

    def counted(self, inputs, *arguments, **options):
        note = tf.py_function(lambda ids: counts.append(len(ids)), [inputs["token_ids"]], [])
        with tf.control_dependencies([note] if note is not None else []):
            inputs = {key: tf.identity(value) for key, value in inputs.items()}
        return call(self, inputs, *arguments, **options)

    monkeypatch.setattr(SpanBertTask, "call", counted)
    return counts


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("name", INPUTS)
def test_a_batch_has_no_more_inputs_than_asked_for(name, row_counts):
    predict_raw, inputs = raw_function(name), [INPUTS[name]] * 5
    row_counts.clear()
    found = predict_raw(inputs, batch_size=2)
    assert row_counts == [2, 2, 1]
    assert len(found) == len(inputs)


@pytest.mark.parametrize("name", LONG)
def test_windows_of_a_long_text_are_read_a_few_at_a_time(name, row_counts):
    predict_raw = raw_function(name)
    row_counts.clear()
    predict_raw([LONG[name]])
    assert max(row_counts) <= MAX_ROWS and sum(row_counts) > 2 * MAX_ROWS


def test_batch_size_of_the_command_is_that_of_the_model(row_counts, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f"{json.dumps(INPUTS['fill_mask'])}\n" * 5)
    model = tiny_model("fill_mask")
    model.is_head_trained = True
    write_preset(model, str(tmp_path / "preset"))
    arguments = ["--preset", tmp_path / "preset", "--input", source, "--output", output]
    for options in (["--batch-size", 3], []):
        row_counts.clear()
        predict.main([*map(str, [*arguments, *options, "--overwrite"])], standalone_mode=False)
        # Loading computes golden outputs, too.
        assert row_counts[-2:] == [3, 2] if options else row_counts[-1] == 5


def test_top_k_is_refused_where_official_files_have_no_place_for_it(tmp_path):
    arguments = ["--preset", "p", "--data", str(tmp_path), "--output", "out", "--top-k", "3"]
    result = click.testing.CliRunner().invoke(predict, arguments)
    assert result.exit_code == 2 and "--top-k is for --input alone" in result.output
