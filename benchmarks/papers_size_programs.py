"""The processes of `papers_size`: its inputs, our commands looked at, and the peers.

    python -m benchmarks.papers_size_programs NAME ARGUMENT …

Peers are `transformers` and PyTorch as people use them. What a table shows beside the costs of a
whole process is printed as the last line, a JSON object.
"""

import dataclasses
import json
import os
import pathlib
import random
import sys
import time
from collections.abc import Callable

FACTS = "facts: "  # what the last line begins with
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", "Ann", "who")
_STEPS, _ROWS = 3, 2
_LEARNING_RATE, _RANK = 1e-5, 8


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the model and its rows; the defaults are SpanBERT large's."""

    layers: int = 24
    width: int = 1024
    vocabulary: int = 28_996
    length: int = 512

    @property
    def heads(self) -> int:
        """As in all published BERT models, but of small ones."""
        return max(self.width // 64, 2)


def write_inputs(folder: pathlib.Path, size: Size) -> None:
    """Vocabulary, texts, questions and documents of random words.

    A row of pre-training is full, a question is one window, the second document twice as long as
    the first.
    """
    source = random.Random(0)
    words = [f"w{number}" for number in range(size.vocabulary - len(_SPECIAL))]
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in (*_SPECIAL, *words)))
    sentences = [source.choices(words, k=15) for _ in range(12 * size.length // 15)]
    lines = [f"{' '.join(sentence)} ." for sentence in sentences]
    for number in range(4):  # documents
        (folder / f"text{number}.txt").write_text("\n".join(lines[number::4]))
    paragraphs = []
    for number in range(4):
        context = source.choices(words, k=size.length * 3 // 4)
        answers = [{"text": context[0], "answer_start": 0}]
        question = {"id": str(number), "question": f"who {context[1]} ?", "answers": answers}
        paragraphs.append({"context": " ".join(context), "qas": [question]})
    squad = {"version": "1.1", "data": [{"title": "random", "paragraphs": paragraphs}]}
    (folder / "squad.json").write_text(json.dumps(squad))
    documents = [_document(words, source, count * size.length) for count in (1, 2)]
    (folder / "coreference.jsonlines").write_text("".join(f"{line}\n" for line in documents))
    (folder / "masked.jsonl").write_text(json.dumps({"text": "w1 [MASK] w2 w3 ."}) + "\n")


def _document(words: list[str], source: random.Random, length: int) -> str:
    """Sentences of 16 words, each of which begins with the same name."""
    sentences = [["Ann", *source.choices(words, k=14), "."] for _ in range(length // 16)]
    return json.dumps(
        {
            "doc_key": f"nw/random/{length}",
            "sentences": sentences,
            "speakers": [["-"] * 16 for _ in sentences],
            "clusters": [[[16 * number, 16 * number] for number in range(len(sentences))]],
        }
    )


def make(*sizes: str) -> None:
    """The model with random weights: `huggingface`, and `fairseq` as the original code has it."""
    import torch
    import transformers

    size = Size(*map(int, sizes))
    config = _bert_config(size)
    model = transformers.BertForPreTraining(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # those of a new head are 0, by which it is recognized
            torch.nn.init.normal_(parameter, std=0.02)
    tokenizer = transformers.BertTokenizer("inputs/vocab.txt", do_lower_case=False)
    for directory in ("huggingface", "fairseq"):
        tokenizer.save_pretrained(directory)
        config.save_pretrained(directory)
        text = pathlib.Path("inputs/vocab.txt").read_text()
        pathlib.Path(directory, "vocab.txt").write_text(text)
    model.save_pretrained("huggingface")
    state = {f"decoder.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"model": state | _span_boundary_head(size)}, "fairseq/model.pt")


def _span_boundary_head(size: Size) -> dict:
    """Names and shapes of the original code; its output matrix is the token embedding."""
    import torch

    prefix = "decoder.cls.pair_target_predictions."
    shapes = {"position_embeddings.weight": (20, 200), "bias": (size.vocabulary,)}
    for number, inputs in ((1, 2 * size.width + 200), (2, size.width)):
        layer = "mlp_layer_norm."
        shapes[f"{layer}linear{number}.weight"] = (size.width, inputs)
        shapes[f"{layer}linear{number}.bias"] = (size.width,)
        shapes |= {
            f"{layer}layer_norm{number}.{kind}": (size.width,) for kind in ("weight", "bias")
        }
    return {prefix + name: 0.02 * torch.randn(shape) for name, shape in shapes.items()}


def _bert_config(size: Size) -> "transformers.BertConfig":  # noqa: F821
    import transformers

    return transformers.BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        max_position_embeddings=size.length,
        layer_norm_eps=1e-12,
    )


def command(*arguments: str) -> None:
    """A command of ours. Of training it tells the steps' seconds and how long saves held them."""
    from spanbert_tf.cli import main as command_line

    if arguments[0] in ("pretrain", "finetune"):
        _watch_steps()
    command_line(list(arguments))


def _watch_steps() -> None:
    from spanbert_tf.training.checkpoints import Checkpoints
    from spanbert_tf.training.watch import Watch

    clock = _Clock()

    def timed(method: Callable, begin: Callable, end: Callable) -> Callable:
        def call(*arguments: object, **options: object) -> object:
            begin()
            try:
                return method(*arguments, **options)
            finally:
                end()

        return call

    Watch.on_train_batch_begin = timed(Watch.on_train_batch_begin, lambda: None, clock.begin_step)
    Watch.on_train_batch_end = timed(Watch.on_train_batch_end, clock.end_step, lambda: None)
    Checkpoints.save = timed(Checkpoints.save, clock.begin_save, clock.end_save)
    Watch.__exit__ = timed(Watch.__exit__, lambda: None, clock.tell)


class _Clock:
    """Seconds of a process: to its first step, of a step, and of the saves that it waits for."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, float]] = []  # of the clock, of the processor
        self._first: float | None = None
        self._saves: list[float] = []

    def begin_step(self) -> None:
        self._start = time.monotonic(), time.process_time()
        if self._first is None:
            self._first = seconds_since_start()

    def end_step(self) -> None:
        wall, processor = self._start
        self._steps.append((time.monotonic() - wall, time.process_time() - processor))

    def begin_save(self) -> None:
        self._save_start = time.monotonic()

    def end_save(self) -> None:
        self._saves.append(time.monotonic() - self._save_start)

    def tell(self) -> None:
        """The first step traces; of the others the fastest is the one least disturbed."""
        later = self._steps[1:] or self._steps
        facts = {"to first step": self._first, "save": max(self._saves, default=0.0)}
        if later:
            facts |= {"step": min(step[0] for step in later)}
            facts |= {"step, CPU": min(step[1] for step in later)}
        _tell(facts)


def seconds_since_start() -> float:
    """Since this process began, imports included (Linux)."""
    ticks = float(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    up = float(pathlib.Path("/proc/uptime").read_text().split()[0])
    return up - ticks / os.sysconf("SC_CLK_TCK")


def _tell(facts: dict[str, float | None]) -> None:
    known = {name: seconds for name, seconds in facts.items() if seconds is not None}
    print(f"{FACTS}{json.dumps(known)}", flush=True)


def load(preset: str) -> None:
    """Our class with its weights, checked as every command checks it."""
    from spanbert_tf.lazy import import_keras

    import_keras()
    start = time.monotonic()
    from spanbert_tf.models import SpanBertMaskedLM
    from spanbert_tf.presets.preset import Preset

    imported = time.monotonic()
    Preset(preset).task(SpanBertMaskedLM)
    _tell({"imports": imported - start, "load": time.monotonic() - imported})


def torch_load(directory: str) -> None:
    """`from_pretrained` of the same weights."""
    import transformers

    start = time.monotonic()
    model = transformers.BertForMaskedLM.from_pretrained(directory)
    # It maps the file; a reader wants the values.
    sum(float(parameter.detach().sum()) for parameter in model.parameters())
    _tell({"load": time.monotonic() - start})


def torch_convert(directory: str, output: str) -> None:
    """Loads and writes again."""
    import transformers

    transformers.BertForPreTraining.from_pretrained(directory).save_pretrained(output)


def torch_predict(directory: str, length: str, count: str) -> None:
    """Answers to so many full rows."""
    import torch
    import transformers

    model = transformers.BertForQuestionAnswering.from_pretrained(directory).eval()
    ids = torch.randint(10, model.config.vocab_size, (int(count), int(length)))
    with torch.no_grad():
        model(input_ids=ids)


def torch_pretrain(output: str, *sizes: str) -> None:
    """Some steps of MLM and NSP with AdamW, and the state in a file."""
    import transformers

    size = Size(*map(int, sizes))
    model = transformers.BertForPreTraining(_bert_config(size))
    _train(model, output, _pretraining_batch(size))


def torch_resume(output: str, *sizes: str) -> None:
    """Reads that state and goes on for a step."""
    import transformers
    from transformers.initialization import no_init_weights

    size = Size(*map(int, sizes))
    with no_init_weights():
        model = transformers.BertForPreTraining(_bert_config(size))
    model.tie_weights()
    _train(model, output, _pretraining_batch(size), is_begun=True, steps=1)


def _pretraining_batch(size: Size) -> dict:
    import torch

    ids = torch.randint(10, size.vocabulary, (_ROWS, size.length))
    labels = torch.where(torch.rand(ids.shape) < 0.15, ids, -100)
    following = torch.zeros(_ROWS, dtype=torch.long)
    return {"input_ids": ids, "labels": labels, "next_sentence_label": following}


def torch_finetune(directory: str, length: str, output: str, adapter: str = "") -> None:
    """Some steps of question answering, of all weights or of adapters alone."""
    import torch
    import transformers

    model = transformers.BertForQuestionAnswering.from_pretrained(directory)
    if adapter:
        import peft

        model = peft.get_peft_model(
            model, peft.LoraConfig(r=_RANK, target_modules=["query", "value"])
        )
    ids = torch.randint(10, model.config.vocab_size, (_ROWS, int(length)))
    places = torch.full((_ROWS,), 3)
    _train(model, output, {"input_ids": ids, "start_positions": places, "end_positions": places})


def _train(
    model: "torch.nn.Module",  # noqa: F821
    output: str,
    batch: dict,
    *,
    is_begun: bool = False,
    steps: int = _STEPS,
) -> None:
    """Steps, then `torch.save` of what is trained and of the optimizer."""
    import torch

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=_LEARNING_RATE)
    path = os.path.join(output, "state.pt")
    if is_begun:
        state = torch.load(path, mmap=True)
        model.load_state_dict(state["model"], strict=False)  # without the tied matrix
        optimizer.load_state_dict(state["optimizer"])
    clock = _Clock()
    model.train()
    for _ in range(steps):
        clock.begin_step()
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.end_step()
    names = {name for name, each in model.named_parameters() if each.requires_grad}
    weights = {name: value for name, value in model.state_dict().items() if name in names}
    os.makedirs(output, exist_ok=True)
    clock.begin_save()
    state = {"model": weights, "optimizer": optimizer.state_dict()}
    torch.save(state, f"{path}.new")
    clock.end_save()
    os.replace(f"{path}.new", path)
    clock.tell()


PROGRAMS: dict[str, Callable[..., None]] = {
    each.__name__: each
    for each in (
        *(make, command, load),
        *(torch_load, torch_convert, torch_predict, torch_pretrain, torch_resume, torch_finetune),
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
