"""Coreference resolution beside the PyTorch code of the field: speed, memory, scoring.

    spanbert-tf prepare coreference --input dev.english.v4_gold_conll.gz --vocabulary vocab.txt \
      --lowercase --output ontogum/dev
    python -m benchmarks.coreference --data ontogum/dev [--preset PRESET] [--plot memory.svg]

The peer (`coreference_peer`) has the same weights; its outputs are compared first. Without a preset
both encoders are BERT base with random weights. Peaks of memory are measured in a process of their
own, above the loaded model. Goals: 1.8 times as fast as a whole, 2.5 times without the encoder, 1.5
times in training, a quarter of the memory at 5,000 pieces, 2 GiB at 20,000, 2 s to score.
"""

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable

import click
import numpy as np

from benchmarks.fine_tuning_step import fine_tuning_step
from benchmarks.machine import describe_machine
from benchmarks.process_memory import peak_above
from benchmarks.row_batches import median_seconds

_OUR_PIECES, _THEIR_PIECES = (1000, 2500, 5000, 10000, 20000), (1000, 2500, 5000)
_SEGMENT = 384
_CONFIG = "coreference_spanbert_base"
_LONGEST_DIFFERENCE = 2e-3  # of scores, which go up to about 10
_NO_SCORE = -1e8  # scores below are of no antecedent


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True), help="Records to predict.")
@click.option("--preset", help="Of an encoder.  [default: base shape, random weights]")
@click.option("--documents", default=30, show_default=True, help="To predict.")
@click.option("--steps", default=10, show_default=True, help="Of training.")
@click.option("--plot", type=click.Path(), help="Draws the memory over the pieces.")
def main(data: str, preset: str | None, documents: int, steps: int, plot: str | None) -> None:
    print(describe_machine())
    show_scoring(data)
    with tempfile.TemporaryDirectory() as directory:
        write_models(data, preset, directory)
        show_memory(directory, plot)
        show_speed(data, directory, documents, steps)


def show_scoring(data: str) -> None:
    """All metrics of the official scorer, of equal strings linked."""
    from spanbert_tf.tasks.coreference.task import Coreference
    from spanbert_tf.tasks.lookup import open_records

    task = Coreference()
    records = open_records(data, task)
    predicted = task.baseline(records)
    outcome = task.outcome(None, records, predicted)
    seconds = median_seconds(lambda: task.score(outcome), 3)
    print(f"scoring {len(predicted)} documents: {seconds:.2f} s (goal: below 2)")


def write_models(data: str, preset: str | None, directory: str) -> None:
    """The same weights for both sides: `ours`, `theirs` and `head.npz`."""
    from spanbert_tf.conversion.convert import convert_checkpoint
    from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
    from spanbert_tf.presets.writing import write_preset
    from spanbert_tf.tasks.coreference.task import Coreference
    from spanbert_tf.tasks.lookup import open_records
    from spanbert_tf.tasks.table import load_task_config
    from spanbert_tf.text.vocabulary import load_vocabulary

    task = Coreference()
    manifest = open_records(data, task).manifest
    if preset is None:
        vocabulary = os.path.join(data, "vocab.txt")
        tokenizer = SpanBertTokenizer(vocabulary, lowercase=manifest.lowercase)
        backbone = SpanBertBackbone(
            vocabulary_size=len(load_vocabulary(vocabulary)),
            num_layers=12,
            num_heads=12,
            hidden_dim=768,
            intermediate_dim=3072,
        )
        preset = os.path.join(directory, "encoder")
        write_preset(backbone, preset, tokenizer=tokenizer)
    convert_checkpoint("keras", "huggingface", preset, os.path.join(directory, "theirs"))
    backbone = SpanBertBackbone.from_preset(preset)
    tokenizer = SpanBertTokenizer.from_preset(preset)
    config = load_task_config(_CONFIG)
    model = task.build(backbone, tokenizer, manifest, config)
    model.save_to_preset(os.path.join(directory, "ours"))
    weights = {weight.path: np.array(weight) for weight in model.head.weights}
    np.savez(os.path.join(directory, "head.npz"), **weights)


def load_ours(directory: str) -> "keras.Model":  # noqa: F821
    from spanbert_tf.models import SpanBertCoreferenceResolver

    return SpanBertCoreferenceResolver.from_preset(os.path.join(directory, "ours"))


def load_theirs(directory: str) -> "torch.nn.Module":  # noqa: F821
    from benchmarks.coreference_peer import Peer

    with np.load(os.path.join(directory, "head.npz")) as arrays:
        weights = {_path_of_peer(name): array for name, array in arrays.items()}
    config = json.loads(pathlib.Path(directory, "ours", "task.json").read_text())["config"]
    return Peer(os.path.join(directory, "theirs"), weights, config).eval()


def _path_of_peer(path: str) -> str:
    """The last two parts of a weight's path."""
    return "/".join(path.split("/")[-2:])


def show_memory(directory: str, plot: str | None) -> None:
    """Peaks of both sides over the length of a document."""
    peaks = {
        "here": {pieces: _peak(_peak_of_ours, directory, pieces) for pieces in _OUR_PIECES},
        "there": {pieces: _peak(_peak_of_theirs, directory, pieces) for pieces in _THEIR_PIECES},
    }
    for side, of_side in peaks.items():
        for pieces, peak in of_side.items():
            print(f"memory {side}, {pieces:,} pieces: {peak:.2f} GiB above the loaded model")
    share = peaks["here"][5000] / peaks["there"][5000]
    print(f"memory here at 5,000 pieces: {share:.2f} of the peer's (goal: at most 0.25)")
    if plot:
        _draw(peaks, plot)


def _peak(measure: Callable, directory: str, pieces: int) -> float:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, directory, pieces).result()


def _peak_of_ours(directory: str, pieces: int) -> float:
    import tensorflow as tf

    from spanbert_tf.tasks.coreference.graph import link_spans

    model = load_ours(directory)
    link = tf.function(
        lambda x: link_spans(model, x, model(x, training=False)), reduce_retracing=True
    )
    return _peak_above(lambda number: link(made_up_document(number)), pieces)


def _peak_of_theirs(directory: str, pieces: int) -> float:
    import torch

    from benchmarks.coreference_peer import peer_document

    model = load_theirs(directory)
    with torch.inference_mode():
        return _peak_above(lambda number: model(peer_document(made_up_document(number))), pieces)


def _peak_above(call: Callable[[int], object], pieces: int) -> float:
    """GiB that a call needs above what the process has after one of a short document."""
    call(400)
    return peak_above(lambda: call(pieces))


def made_up_document(num_pieces: int) -> dict[str, np.ndarray]:
    """Features of a document of so many random pieces, in sentences of 25."""
    num_segments = -(-num_pieces // _SEGMENT)
    places = np.arange(num_pieces, dtype=np.int32)[None]
    shape = (1, num_segments, _SEGMENT)
    ids = np.random.default_rng(0).integers(1000, 20000, shape, np.int32)
    mask = np.arange(num_segments * _SEGMENT).reshape(shape) < num_pieces
    return {
        "token_ids": ids,
        "padding_mask": mask.astype(np.int32),
        "piece_positions": places,
        "sentence_indices": places // 25,
        "word_indices": places,
        "speaker_ids": places // 100 % 3 + 2,
        "segment_indices": places // _SEGMENT,
        "begins_word": np.ones_like(places),
        "ends_word": np.ones_like(places),
        "genre_ids": np.zeros(1, np.int32),
    }


def _draw(peaks: dict[str, dict[int, float]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5))
    for side, of_side in peaks.items():
        axes.plot(list(of_side), list(of_side.values()), marker="o", label=side)
    axes.set_xlabel("word pieces of a document")
    axes.set_ylabel("GiB above the loaded model")
    axes.legend()
    figure.savefig(path, bbox_inches="tight")


def show_speed(data: str, directory: str, num_documents: int, num_steps: int) -> None:
    """Prediction and training of both sides, after a comparison of what they put out."""
    from spanbert_tf.tasks.lookup import task_dataset

    ours, theirs = load_ours(directory), load_theirs(directory)
    batches = [
        {name: values for name, values in x.items() if name != "row_index"}
        for x, _ in task_dataset(data, batch_size=1, training=False).as_numpy_iterator()
    ]
    places = np.linspace(0, len(batches) - 1, min(num_documents, len(batches))).astype(int)
    documents = [batches[place] for place in places]
    check_equal(ours, theirs, documents[-1])
    show_prediction(ours, theirs, documents)
    trained = task_dataset(data, batch_size=1, training=True)
    show_training(ours, theirs, list(trained.take(num_steps).as_numpy_iterator()))


def check_equal(ours: Callable, theirs: Callable, x: dict[str, np.ndarray]) -> None:
    """Compares spans and scores of a document.

    Raises:
        SystemExit: they differ.
    """
    import torch

    from benchmarks.coreference_peer import peer_document

    mine = {name: np.array(values)[0] for name, values in ours(x, training=False).items()}
    with torch.inference_mode():
        other = {name: values.numpy() for name, values in theirs(peer_document(x)).items()}
    kept = mine["is_span"] > 0
    spans = [(mine["span_starts"][kept], mine["span_ends"][kept]), (other["starts"], other["ends"])]
    sets = [set(zip(*map(np.ndarray.tolist, pair), strict=True)) for pair in spans]
    missing = len(sets[1] - sets[0])
    scores, peer_scores = (
        np.sort(np.where(side > _NO_SCORE, side, 0.0), axis=1)
        for side in (mine["scores"][kept], other["scores"])
    )
    difference = np.abs(scores - peer_scores).max()
    print(f"equality: {missing} other spans of {len(sets[1])}, scores differ by {difference:.1e}")
    if missing or difference > _LONGEST_DIFFERENCE:
        raise SystemExit("the two sides do not compute the same")


def show_prediction(ours: Callable, theirs: Callable, documents: list[dict]) -> None:
    """Seconds for all documents, as a whole and of the encoder alone."""
    import tensorflow as tf
    import torch

    from benchmarks.coreference_peer import peer_document
    from spanbert_tf.tasks.coreference.graph import link_spans

    encoder = ours.backbone
    link = tf.function(
        lambda x: link_spans(ours, x, ours(x, training=False)), reduce_retracing=True
    )

    @tf.function(reduce_retracing=True)
    def encode(x: dict) -> tf.Tensor:
        rows = {name: x[name][0] for name in ("token_ids", "padding_mask")}
        rows["segment_ids"] = tf.zeros_like(rows["token_ids"])
        return encoder(rows, training=False)["sequence_output"]

    whole, encoding = (
        _seconds(lambda x, call=call: tf.nest.map_structure(np.array, call(x)), documents)
        for call in (link, encode)
    )
    of_peer = [peer_document(x) for x in documents]
    with torch.inference_mode():
        peer_whole = _seconds(theirs, of_peer)
        peer_encoding = _seconds(theirs.encode, of_peer)
    print(f"prediction of {len(documents)} documents: {whole:.1f} s here, {peer_whole:.1f} s there")
    print(f"  of which the encoder: {encoding:.1f} s here, {peer_encoding:.1f} s there")
    print(f"  {peer_whole / whole:.2f} times as fast (goal: at least 1.8)")
    head, peer_head = whole - encoding, peer_whole - peer_encoding
    print(f"  without the encoder {peer_head / head:.2f} times as fast (goal: at least 2.5)")


def _seconds(call: Callable, documents: Iterable) -> float:
    """Seconds of a pass over all documents, each of whose shapes was seen before."""
    seconds = 0.0
    shapes: set = set()
    for document in documents:
        shape = tuple(values.shape for values in document.values())
        if shape not in shapes:  # traces
            shapes.add(shape)
            call(document)
        start = time.perf_counter()
        call(document)
        seconds += time.perf_counter() - start
    return seconds


def show_training(ours: Callable, theirs: Callable, batches: list[tuple]) -> None:
    """Median seconds of a step of training."""
    seconds = [
        np.median([_timed(step, batch) for batch in batches])
        for step in (fine_tuning_step(ours, _CONFIG), _their_step(theirs))
    ]
    print(f"training: {seconds[0]:.2f} s a step here, {seconds[1]:.2f} s there")
    print(f"  {seconds[1] / seconds[0]:.2f} times as fast (goal: at least 1.5)")


def _timed(step: Callable, batch: tuple) -> float:
    step(batch)
    start = time.perf_counter()
    step(batch)
    return time.perf_counter() - start


def _their_step(model: "torch.nn.Module") -> Callable[[tuple], float]:  # noqa: F821
    import torch

    from benchmarks.coreference_peer import peer_document

    groups = [list(model.encoder.parameters()), list(model.head.parameters())]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=1e-6)

    def step(batch: tuple) -> float:
        x, y, _ = batch
        model.train()
        spans = zip(y["mention_starts"][0].tolist(), y["mention_ends"][0].tolist(), strict=True)
        gold = dict(zip(spans, y["mention_clusters"][0].tolist(), strict=True))
        loss = model.loss(model(peer_document(x)), gold)
        loss.backward()
        for group in groups:
            torch.nn.utils.clip_grad_norm_(group, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    main()
