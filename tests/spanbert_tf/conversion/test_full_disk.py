"""A disk that is full in the middle of a conversion."""

import pytest

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import SpanBertMaskedLM, SpanBertMaskedLMPreprocessor


@pytest.fixture(scope="module")
def preset(tiny_backbone, tiny_tokenizer, tmp_path_factory):
    model = SpanBertMaskedLM(tiny_backbone, SpanBertMaskedLMPreprocessor(tiny_tokenizer, 16))
    model.is_head_trained = True
    directory = tmp_path_factory.mktemp("presets") / "preset"
    model.save_to_preset(str(directory))
    return str(directory)


def _contents(directory):
    return {str(p): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.mark.parametrize("limit", [0, 300, 3_000])
@pytest.mark.parametrize("target", ["keras_bert", "huggingface", "tf1", "model_garden"])
@pytest.mark.quick_cases(2)
def test_full_disk_leaves_what_was_there(target, limit, preset, tmp_path, full_disk):
    output = tmp_path / "output"
    message = f"^{output}: cannot be written .*free some space"
    for has_earlier in (False, True):
        before = _contents(tmp_path)
        with full_disk(limit), pytest.raises(BadInputError, match=message) as raised:
            convert_checkpoint("keras", target, preset, str(output), overwrite=has_earlier)
        assert "\n" not in str(raised.value)
        assert _contents(tmp_path) == before
        if not has_earlier:
            assert not list(tmp_path.iterdir())
            convert_checkpoint("keras", target, preset, str(output))
