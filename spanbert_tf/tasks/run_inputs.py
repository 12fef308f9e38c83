"""What a run or a command of a task reads: records and an encoder that fit each other."""

import json

import keras_hub

from spanbert_tf.config import FinetuningConfig
from spanbert_tf.data.records import TaskManifest
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.presets.loading import checked_tokenizer, load_with_tokenizer
from spanbert_tf.terminal import print_line


def check_records(config: FinetuningConfig, info: TaskManifest, directory: str) -> None:
    """Checks that records are what the section `data` says.

    Args:
        config: configuration of the run.
        info: description of the records.
        directory: directory of the records, for errors.

    Raises:
        MismatchError: a value differs.
    """
    for name, wanted in config.data.model_dump().items():
        found = getattr(info, name)
        if wanted is not None and found != wanted:
            # As YAML spells them.
            shown = [v if isinstance(v, str) else json.dumps(v) for v in (found, wanted)]
            raise MismatchError(
                f"{directory}: data.{name} of these records is {shown[0]}, of the configuration "
                f"{shown[1]}; write them again, or --set data.{name}={json.dumps(found)}"
            )


def check_labelled(info: TaskManifest, directory: str) -> None:
    """Checks that predictions for some records can be scored; says what scores do not tell.

    Args:
        info: their description.
        directory: directory of the records, for errors.

    Raises:
        BadInputError: they have no labels.
    """
    if not info.is_labelled:
        raise BadInputError(f"{directory}: {info.lack_of_labels}")
    if info.scoring_note:
        print_line(f"{directory}: {info.scoring_note}")


def load_encoder(
    preset: str, info: TaskManifest, data: str, precision: str
) -> tuple[SpanBertBackbone, SpanBertTokenizer]:
    """The encoder of a preset and its tokenizer, both of which fit some records.

    Args:
        preset: what `from_preset` takes.
        info: description of the records.
        data: directory of the records, for errors.
        precision: dtype policy of the encoder, whose weights are in float32.

    Raises:
        BadInputError: the preset cannot be used.
        MismatchError: it holds no encoder of this project, or one that reads other records.
    """
    kind = keras_hub.models.Backbone
    backbone, tokenizer = load_with_tokenizer(kind, preset, dtype=precision)
    if not isinstance(backbone, SpanBertBackbone):
        raise MismatchError(
            f"{preset}: no encoder of this project; `spanbert-tf convert` makes one"
        )
    check_encoder(backbone, info, data, preset)
    return backbone, checked_tokenizer(preset, data, info, tokenizer)


def check_reads(
    backbone: SpanBertBackbone,
    tokenizer: SpanBertTokenizer,
    info: TaskManifest,
    data: str,
    preset: str,
) -> None:
    """Checks that a model reads records that it is not trained on: scores would be noise.

    Args:
        backbone: the model's encoder.
        tokenizer: the model's tokenizer.
        info: description of the records.
        data: directory of the records, for errors.
        preset: what `from_preset` took, for errors.

    Raises:
        MismatchError: vocabulary, casing or the layout of the rows differ.
    """
    checked_tokenizer(preset, data, info, tokenizer)
    check_encoder(backbone, info, data, preset)


def check_encoder(backbone: SpanBertBackbone, info: TaskManifest, data: str, preset: str) -> None:
    """Checks that an encoder can read the rows of some records.

    Args:
        backbone: backbone of the preset.
        info: description of the records.
        data: directory of the records, for errors.
        preset: what `from_preset` took, for errors.

    Raises:
        MismatchError: the rows hold other positions than the encoder reads, or are too long.
    """
    if info.segment_aware != (backbone.position_embeddings != "absolute"):
        reads = "BERT's positions" if info.segment_aware else "SegaBERT's positions"
        if info.segment_aware:
            advice = "write the records without --segment-aware"
        elif info.segment_aware_options:
            advice = f"write the records with {info.segment_aware_options}"
        else:
            advice = f"records of {info.task} never are: take an encoder with BERT's positions"
        raise MismatchError(
            f"{preset}: reads {reads}, which is not what {data} was written for; {advice}"
        )
    if backbone.position_embedding and backbone.max_sequence_length < info.sequence_length:
        raise MismatchError(
            f"{preset}: has {backbone.max_sequence_length} positions, the rows in {data} up to "
            f"{info.sequence_length}; write them with --sequence-length"
        )
