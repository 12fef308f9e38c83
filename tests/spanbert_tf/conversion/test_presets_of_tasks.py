"""What a preset of a task loses on its way to another format is said, or refused."""

import pytest

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import MismatchError
from spanbert_tf.models import (
    SpanBertCoreferenceResolver,
    SpanBertCoreferenceResolverPreprocessor,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertQuestionAnswerer,
    SpanBertQuestionAnswererPreprocessor,
    SpanBertRelationClassifier,
    SpanBertRelationClassifierPreprocessor,
    SpanBertTextEmbedder,
    SpanBertTextEmbedderPreprocessor,
)
from spanbert_tf.presets.writing import write_preset


def write(task, directory):
    task.is_head_trained = True
    write_preset(task, str(directory))
    return str(directory)


@pytest.fixture(scope="module")
def answerer(tiny_backbone, tiny_tokenizer, tmp_path_factory):
    preprocessor = SpanBertQuestionAnswererPreprocessor(tiny_tokenizer, 16, question_first=True)
    settings = {"null_threshold": -1.5, "has_unanswerable": True}
    task = SpanBertQuestionAnswerer(tiny_backbone, preprocessor, **settings)
    return write(task, tmp_path_factory.mktemp("answerer") / "preset")


def test_settings_that_stay_behind_are_named(answerer, tmp_path, capfd):
    convert_checkpoint("keras", "tf1", answerer, str(tmp_path / "copy"))
    (line,) = (line for line in capfd.readouterr().out.splitlines() if ": these settings" in line)
    place, settings = line.split(": these settings have no place in other formats: ")
    assert place == answerer
    left = {"null_threshold -1.5", "has_unanswerable True", "sequence_length 16"}
    assert set(settings.split(", ")) == left


def test_a_rate_of_the_resolvers_own_layers_is_named(
    tiny_backbone, tiny_tokenizer, tmp_path, capfd
):
    """A classifier has the rate of its encoder, which other formats state."""
    preprocessor = SpanBertCoreferenceResolverPreprocessor(tiny_tokenizer, 16)
    sizes = {"max_span_width": 3, "feature_dim": 4, "ffnn_dim": 6}
    resolver = SpanBertCoreferenceResolver(tiny_backbone, preprocessor, dropout=0.1, **sizes)
    preset = write(resolver, tmp_path / "preset")
    convert_checkpoint("keras", "tf1", preset, str(tmp_path / "copy"))
    (line,) = (line for line in capfd.readouterr().out.splitlines() if ": these settings" in line)
    assert set(line.rpartition(": ")[2].split(", ")) == {"dropout 0.1", "sequence_length 16"}


def test_a_task_is_not_converted_to_itself(answerer, tmp_path):
    words = "is such a preset already, of a SpanBertQuestionAnswerer; copy the directory"
    with pytest.raises(MismatchError, match=words):
        convert_checkpoint("keras", "keras", answerer, str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("kind", "preprocessor_kind", "settings"),
    [
        (SpanBertMaskedLM, SpanBertMaskedLMPreprocessor, {}),
        (SpanBertTextEmbedder, SpanBertTextEmbedderPreprocessor, {"pooling_mode": "cls"}),
    ],
)
def test_nor_is_a_model_of_texts(
    kind, preprocessor_kind, settings, tiny_backbone, tiny_tokenizer, tmp_path
):
    """Rows would have another length, and vectors would be pooled otherwise."""
    task = kind(tiny_backbone, preprocessor_kind(tiny_tokenizer, 8), **settings)
    preset = write(task, tmp_path / "preset")
    with pytest.raises(MismatchError, match=f"is such a preset already, of a {kind.__name__}; "):
        convert_checkpoint("keras", "keras", preset, str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_a_head_that_has_no_place_is_named(tiny_backbone, tiny_tokenizer, tmp_path, capfd):
    preprocessor = SpanBertRelationClassifierPreprocessor(tiny_tokenizer, 16)
    classifier = SpanBertRelationClassifier(tiny_backbone, ["no_relation", "born_in"], preprocessor)
    preset = write(classifier, tmp_path / "preset")
    convert_checkpoint("keras", "tf1", preset, str(tmp_path / "copy"))
    words = f"{preset}: the head of its SpanBertRelationClassifier has no place in other formats"
    assert words in capfd.readouterr().out


def test_a_resolver_without_a_gate_has_no_place_in_the_originals_format(
    tiny_backbone, tiny_tokenizer, tmp_path
):
    preprocessor = SpanBertCoreferenceResolverPreprocessor(tiny_tokenizer, 16)
    sizes = {"max_span_width": 3, "feature_dim": 4, "ffnn_dim": 6}
    resolver = SpanBertCoreferenceResolver(tiny_backbone, preprocessor, depth=1, **sizes)
    preset = write(resolver, tmp_path / "preset")
    with pytest.raises(MismatchError, match=r"lacks coref_layer/f/.* has no gate"):
        convert_checkpoint("keras", "tf1", preset, str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()
