"""Components of spaCy's pipelines that predict with a preset or an export.

The entry points `spacy_factories` name the factories. spaCy imports this module with the first
pipeline of a process, whatever its components are, so the import changes nothing of spaCy's.

`Doc._.coref_clusters` and `Doc._.resolved_text` are read from `Doc.spans`, which spaCy writes to
disk and hands from process to process.
"""

import functools
import itertools
import math
import multiprocessing.util
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loky
from spacy.language import Language
from spacy.pipeline import Pipe
from spacy.tokens import Doc, Span
from spacy.util import filter_spans, minibatch

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import Output
from spanbert_tf.temporary import protected_children

if TYPE_CHECKING:
    from spanbert_tf.tasks.prediction import Predictor

CLUSTER_PREFIX = "coref_clusters_"  # of names of span groups; spaCy's experimental component has it
_MODEL_FOLDER = "model"
_BATCH_SIZE = 128  # as spaCy's components
_POSSESSIVES = ("PRP$", "WP$")  # fine-grained tags of English

_has_forked_tensorflow = False


def _note_fork() -> None:
    """Notes that this process was forked from one that had imported TensorFlow."""
    global _has_forked_tensorflow
    _has_forked_tensorflow = "tensorflow" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


class SpanBertComponent(Pipe):
    """Predicts for the texts of documents, and writes the answers to the documents.

    Args:
        name: name of the component.
        task: name of the task whose models the component reads.
        model: path of a preset or of an export. It is opened with the first text.
        write: writes an answer to its document.
        options: arguments for calls of the predictor.
    """

    def __init__(
        self,
        name: str,
        task: str,
        model: str,
        write: Callable[[Doc, Any], None],
        options: dict[str, Any],
    ) -> None:
        self.name = name
        self.task = task
        self.model = os.fspath(model)
        self._write = write
        self._options = options
        if write is _write_clusters:
            _add_extensions()

    def __reduce__(self) -> tuple:
        """Processes that are spawned open the model again."""
        arguments = (self.name, self.task, self.model, self._write, self._options)
        return type(self), arguments

    def __call__(self, doc: Doc) -> Doc:
        """Predicts for one document."""
        self._annotate([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = _BATCH_SIZE) -> Iterator[Doc]:
        """Predicts for documents in their order, so many at once."""
        handle_error = self.get_error_handler()
        for docs in minibatch(stream, size=batch_size):
            try:
                self._annotate(docs)
            except Exception as error:  # what it is, the handler decides
                handle_error(self.name, self, docs, error)
            else:
                yield from docs

    def to_disk(self, path: str | os.PathLike, *, exclude: Sequence[str] = ()) -> None:
        """Copies the model into the directory of the component, unless it is named on a hub."""
        target = Path(path) / _MODEL_FOLDER
        if not os.path.isdir(self.model):
            shutil.rmtree(target, ignore_errors=True)  # an earlier model, which would be read
            return
        if target.exists() and os.path.samefile(self.model, target):
            return
        with Output(target).written() as copy:
            shutil.copytree(self.model, copy, dirs_exist_ok=True)

    def from_disk(
        self, path: str | os.PathLike, *, exclude: Sequence[str] = ()
    ) -> "SpanBertComponent":
        """Reads the model in the directory of the component from now on."""
        copy = Path(path) / _MODEL_FOLDER
        if copy.is_dir():
            self.model = str(copy)
        return self

    def _annotate(self, docs: Sequence[Doc]) -> None:
        """Predicts for documents, and writes the answers to them."""
        arguments = (self.model, self.task, [doc.text for doc in docs], self._options)
        if _has_forked_tensorflow:
            # Its threads were not copied, and it would wait for them forever.
            with protected_children():  # the first call starts the process
                future = _own_process(os.getpid()).submit(_predict, *arguments)
            answers = future.result()
        else:
            answers = _predict(*arguments)
        for doc, answer in zip(docs, answers, strict=True):
            self._write(doc, answer)


@functools.cache
def _own_process(pid: int) -> loky.ProcessPoolExecutor:
    """Starts a process that computes for this one, whose number is `pid`, and ends with it."""
    executor = loky.ProcessPoolExecutor(1)
    end = {"kill_workers": True}
    multiprocessing.util.Finalize(None, executor.shutdown, kwargs=end, exitpriority=100)
    return executor


def _predict(model: str, task: str, texts: Sequence[str], options: dict[str, Any]) -> list:
    """Predicts for texts; classes get all their probabilities.

    Args:
        model: path of a preset or of an export.
        task: name of its task.
        texts: the texts.
        options: arguments for the call of the predictor.

    Raises:
        BadInputError: the model cannot be used, or is for another task.
    """
    predictor = _predictor(model, _state(model))
    if predictor.task != task:
        raise BadInputError(f"{model}: is for {predictor.task}, and the component for {task}")
    top_k = len(predictor.labels) if task == "text_classification" else None
    return list(predictor(texts, top_k=top_k, **options))


def _state(model: str) -> tuple[int, int]:
    """Returns what changes when another model is written to the same path."""
    if not os.path.isdir(model):  # a name on a hub
        return 0, 0
    found = os.stat(model)
    return found.st_ino, found.st_mtime_ns


@functools.lru_cache(maxsize=8)
def _predictor(model: str, state: tuple[int, int]) -> "Predictor":
    """Opens a model in a state, once in a process."""
    from spanbert_tf.tasks.prediction import Predictor

    return Predictor(model)


def _span(doc: Doc, start: int, end: int, label: str = "") -> Span | None:
    """Returns the tokens that characters of a document touch; `None` if they touch none."""
    return doc.char_span(start, end, label=label, alignment_mode="expand")


def _write_entities(doc: Doc, answer: list[dict]) -> None:
    """Replaces the entities of a document. Of two that share a token, the longer one is kept."""
    found = [_span(doc, one["start"], one["end"], one["entity_group"]) for one in answer]
    doc.set_ents(filter_spans([span for span in found if span is not None]))


def _write_classes(doc: Doc, answer: list[dict] | dict) -> None:
    """Adds the classes of a document with their probabilities."""
    for found in [answer] if isinstance(answer, dict) else answer:
        doc.cats[found["label"]] = found["score"]


def _write_clusters(doc: Doc, answer: dict) -> None:
    """Replaces the clusters of a document. Of mentions with the same tokens, one is kept."""
    for name in [name for name in doc.spans if name.startswith(CLUSTER_PREFIX)]:
        del doc.spans[name]
    for number, places in enumerate(answer["clusters"], start=1):
        spans = {}
        for start, end in places:
            span = _span(doc, start, end)
            if span is not None:
                spans[span.start, span.end] = span
        doc.spans[f"{CLUSTER_PREFIX}{number}"] = list(spans.values())


def _cluster_spans(doc: Doc) -> list[list[Span]]:
    """Returns the mentions of each cluster in their order."""
    numbers = itertools.count(1)
    names = itertools.takewhile(
        lambda name: name in doc.spans, (f"{CLUSTER_PREFIX}{number}" for number in numbers)
    )
    return [list(doc.spans[name]) for name in names]


def _clusters(doc: Doc) -> list[list[tuple[int, int]]]:
    """Returns the first characters and the ends of the mentions of each cluster, as fastcoref."""
    clusters = []
    for spans in _cluster_spans(doc):
        clusters.append([(span.start_char, span.end_char) for span in spans])
    return clusters


def _has_noun(span: Span) -> bool:
    """Whether a mention has a noun or a name."""
    return any(token.pos_ in ("NOUN", "PROPN") for token in span)


def _resolved_text(doc: Doc) -> str:
    """Returns the text with each mention replaced by the first one of its cluster that has a noun.

    Without part-of-speech tags, it is the first one. A mention that has others inside of it stays
    as it is. What replaces a possessive pronoun ends in 's.
    """
    clusters = _cluster_spans(doc)
    mentions = itertools.chain.from_iterable(clusters)
    holders = _holders((span.start, span.end) for span in mentions)
    changes = []
    for spans in filter(None, clusters):
        first = next(filter(_has_noun, spans), spans[0])
        for span in spans:
            if span is not first and (span.start, span.end) not in holders:
                ending = "'s" if span[-1].tag_ in _POSSESSIVES else ""
                changes.append((span.start_char, span.end_char, first.text + ending))
    parts = []
    place = 0
    for start, end, text in sorted(changes):
        if start >= place:
            parts += [doc.text[place:start], text]
            place = end
    return "".join([*parts, doc.text[place:]])


def _holders(places: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Returns the places, first and end, that have another one inside of them, or twice there."""
    holders = set()
    nearest_end = math.inf  # of the places that begin later, or there and are not longer
    for start, end in sorted(places, key=lambda place: (-place[0], place[1])):
        if nearest_end <= end:
            holders.add((start, end))
        nearest_end = min(nearest_end, end)
    return holders


def _add_extensions() -> None:
    """Adds attributes to `Doc._`, but for those that another package has added."""
    for name, getter in (("coref_clusters", _clusters), ("resolved_text", _resolved_text)):
        if not Doc.has_extension(name):
            Doc.set_extension(name, getter=getter)


def _factory(
    task: str, write: Callable[[Doc, Any], None], assigns: list[str]
) -> Callable[..., SpanBertComponent]:
    """Registers the factory of the components of a task, `spanbert_TASK`."""

    def make(
        nlp: Language, name: str, model: str, batch_size: int, max_tokens_in_batch: int | None
    ) -> SpanBertComponent:
        options = {"batch_size": batch_size, "max_tokens_in_batch": max_tokens_in_batch}
        return SpanBertComponent(name, task, model, write, options)

    config = {"batch_size": 32, "max_tokens_in_batch": None}
    return Language.factory(f"spanbert_{task}", default_config=config, assigns=assigns, func=make)


make_named_entities = _factory("named_entities", _write_entities, ["doc.ents"])
make_text_classification = _factory("text_classification", _write_classes, ["doc.cats"])
make_coreference = _factory(
    "coreference", _write_clusters, ["doc.spans", "doc._.coref_clusters", "doc._.resolved_text"]
)
