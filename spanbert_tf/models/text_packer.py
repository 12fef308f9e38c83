"""The packer of texts; questions and passages have `WindowPacker`."""

import keras_hub

from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer


def text_packer(
    tokenizer: SpanBertTokenizer, sequence_length: int, truncate: str
) -> keras_hub.layers.MultiSegmentPacker:
    """KerasHub's packer with BERT's special tokens; in TensorFlow even when called eagerly.

    The packer that KerasHub's preprocessors make runs Python code then, and takes no tensors.

    Args:
        tokenizer: tokenizer whose special tokens it adds.
        sequence_length: positions of a packed row.
        truncate: `"round_robin"` or `"waterfall"`.
    """
    return keras_hub.layers.MultiSegmentPacker(
        sequence_length=sequence_length,
        start_value=tokenizer.start_token_id,
        end_value=tokenizer.end_token_id,
        pad_value=tokenizer.pad_token_id,
        truncate=truncate,
        _allow_python_workflow=False,
    )
