"""Coreference resolution as a `Task`."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from spanbert_tf.errors import MismatchError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertCoreferenceResolver,
    SpanBertCoreferenceResolverPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.coreference.baseline import link_equal_strings
from spanbert_tf.tasks.coreference.dataset import coreference_dataset, load_documents
from spanbert_tf.tasks.coreference.decoding import clusters_of, link_spans
from spanbert_tf.tasks.coreference.files import WRITTEN_FILES, write_predictions
from spanbert_tf.tasks.coreference.inspection import inspect_documents
from spanbert_tf.tasks.coreference.metrics import score_documents
from spanbert_tf.tasks.coreference.raw_texts import resolve_texts
from spanbert_tf.tasks.coreference.records import Clusters, CoreferenceConfig, CoreferenceInfo
from spanbert_tf.tasks.coreference.report import report_page
from spanbert_tf.tasks.coreference.serving import ResolveTexts
from spanbert_tf.tasks.report.page import predictor_of
from spanbert_tf.tasks.row_predictions import predict_rows
from spanbert_tf.tasks.task import Task


def _check_model(
    model: SpanBertCoreferenceResolver, info: CoreferenceInfo, directory: str, preset: str
) -> None:
    wanted = model.preprocessor.sequence_length
    if info.sequence_length != wanted:
        raise MismatchError(
            f"{directory}: sequence_length of these documents is {info.sequence_length}, of "
            f"{preset} {wanted}; write them again with --sequence-length {wanted}"
        )


def _build(
    backbone: SpanBertBackbone,
    tokenizer: SpanBertTokenizer,
    info: CoreferenceInfo,
    config: CoreferenceConfig,
) -> SpanBertCoreferenceResolver:
    return SpanBertCoreferenceResolver(
        backbone,
        SpanBertCoreferenceResolverPreprocessor(tokenizer, info.sequence_length),
        max_segments=info.max_training_segments,
        singletons=config.prediction.singletons,
        **config.resolver.model_dump(),
    )


def _predict(
    model: SpanBertCoreferenceResolver,
    directory: str,
    *,
    batch_size: int,
    after_batch: Callable[[], None] = lambda: None,
) -> list[Clusters]:
    """The predicted clusters of each document, spans of words."""

    def link(x: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.stack(link_spans(model, x), axis=1)  # [B, 3, K]

    batches = coreference_dataset(directory, batch_size=batch_size, training=False)
    return [clusters_of(*row) for row in predict_rows(link, batches, after_batch)]


def _score(
    model: SpanBertCoreferenceResolver | None, directory: str, predicted: Sequence[Clusters]
) -> dict[str, float]:
    gold = [
        [[(start, end) for start, end in spans] for spans in line["clusters"]]
        for line in load_documents(directory)
    ]
    return score_documents(zip(gold, predicted, strict=True)).as_dict()


def _write(
    model: SpanBertCoreferenceResolver,
    directory: str,
    predicted: Sequence[Clusters],
    output: str,
) -> None:
    write_predictions(load_documents(directory), predicted, output)


def _report(
    title: str,
    model: SpanBertCoreferenceResolver | None,
    directory: str,
    predicted: Sequence[Clusters],
) -> str:
    scores = _score(model, directory, predicted)
    return report_page(title, load_documents(directory), predicted, scores, predictor_of(model))


def _served(model: SpanBertCoreferenceResolver, top_k: int) -> ResolveTexts:
    return ResolveTexts(model)


def _link_equal_strings(directory: str) -> list[Clusters]:
    return link_equal_strings(load_documents(directory))


TASK = Task(
    name="coreference",
    main_metric="average_f1",
    model_class=SpanBertCoreferenceResolver,
    config_class=CoreferenceConfig,
    info_class=CoreferenceInfo,
    check_model=_check_model,
    build=_build,
    dataset=coreference_dataset,
    predict=_predict,
    baseline=_link_equal_strings,
    score=_score,
    answers=lambda model, directory, predicted: [str(found or "") for found in predicted],
    write=_write,
    written_files=WRITTEN_FILES,
    report=_report,
    served=_served,
    from_raw=resolve_texts,
    inspect=inspect_documents,
)
