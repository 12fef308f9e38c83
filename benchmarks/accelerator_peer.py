"""The peer of `benchmarks.accelerator`: `BertForMaskedLM` of `transformers`, on PyTorch.

`torch.compile`, scaled-dot-product attention, autocast to bfloat16 and the fused AdamW. B rows,
S positions, K prediction slots.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import transformers

from spanbert_tf.conversion.checkpoint import SIZE_NAMES

_NO_LABEL = -100  # PyTorch's
_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_TIED = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}


def masked_lm(
    sizes: Mapping[str, int], *, dropout: float, attention_dropout: bool = True
) -> transformers.BertForMaskedLM:
    """A new model of float32 weights on the device.

    Args:
        sizes: arguments of `SpanBertBackbone`.
        dropout: rate of all dropouts.
        attention_dropout: whether attention's weights have it, too.
    """
    config = transformers.BertConfig(
        **{theirs: sizes[ours] for ours, theirs in SIZE_NAMES.items() if ours in sizes},
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout if attention_dropout else 0.0,
    )
    model = transformers.AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa")
    return model.to(_DEVICE)


def assign(model: transformers.BertForMaskedLM, arrays: Mapping[str, np.ndarray]) -> None:
    """Gives it weights by their names; nothing may be left over or be missing."""
    tensors = {name: torch.tensor(values) for name, values in arrays.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if unexpected or set(missing) - _TIED:
        raise ValueError(f"weights: {missing} are missing, {unexpected} are unknown")


def inputs_of(batches: Sequence[dict[str, np.ndarray]]) -> list[dict[str, torch.Tensor | None]]:
    """Batches on the device; without a mask if none has padding: some kernels take none."""
    has_padding = not all(batch["padding_mask"].all() for batch in batches)
    return [_inputs(batch, has_padding) for batch in batches]


def _inputs(batch: dict[str, np.ndarray], has_padding: bool) -> dict[str, torch.Tensor | None]:
    is_target = batch["mask_weights"] > 0  # [B, K]
    labels = np.full(batch["token_ids"].shape, _NO_LABEL)  # [B, S]
    rows = np.nonzero(is_target)[0]
    labels[rows, batch["mask_positions"][is_target]] = batch["mask_ids"][is_target]
    arrays = {
        "input_ids": batch["token_ids"],
        "token_type_ids": batch["segment_ids"],
        "attention_mask": batch["padding_mask"] if has_padding else None,
        "labels": labels,
        "positions": batch["mask_positions"],
        "ids": np.where(is_target, batch["mask_ids"], _NO_LABEL),  # [B, K]
    }
    return {
        name: None if values is None else torch.tensor(values, device=_DEVICE).long()
        for name, values in arrays.items()
    }


def loss_at_all_positions(
    model: transformers.BertForMaskedLM, batch: dict[str, torch.Tensor | None]
) -> torch.Tensor:
    """The loss as it comes, of logits [B, S, V]."""
    names = ("input_ids", "token_type_ids", "attention_mask", "labels")
    return model(**{name: batch[name] for name in names}).loss


def loss_at_targets(
    model: transformers.BertForMaskedLM, batch: dict[str, torch.Tensor | None]
) -> torch.Tensor:
    """The same loss, of logits [B, K, V] at the masked positions alone."""
    names = ("input_ids", "token_type_ids", "attention_mask")
    hidden = model.bert(**{name: batch[name] for name in names}).last_hidden_state  # [B, S, H]
    index = batch["positions"][:, :, None].expand(-1, -1, hidden.shape[-1])
    logits = model.cls(hidden.gather(1, index))  # [B, K, V]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["ids"].flatten())


def training_steps(
    model: transformers.BertForMaskedLM,
    batches: Sequence[dict[str, np.ndarray]],
    loss: Callable[..., torch.Tensor],
    *,
    compiles: bool = True,
) -> Callable[[int], float]:
    """Steps in bfloat16 with dropout, clipping and AdamW.

    Args:
        model: what `masked_lm` returned.
        batches: are on the device before the first step, and taken in turns.
        loss: one of the two above.
        compiles: whether `torch.compile` compiles the loss, and so its gradient.

    Returns:
        A function that trains so many steps, waits for them, and returns the last loss.
    """
    source = itertools.cycle(inputs_of(batches))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    compute = torch.compile(loss) if compiles else loss
    model.train()

    def train(count: int) -> float:
        for _ in range(count):
            with torch.autocast(_DEVICE.type, torch.bfloat16):
                value = compute(model, next(source))
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if _DEVICE.type == "cuda":
            torch.cuda.synchronize()
        return float(value.detach())

    return train


def losses(
    model: transformers.BertForMaskedLM, batch: dict[str, np.ndarray]
) -> tuple[float, float]:
    """Both losses of a batch, in float32: of the masked positions alone, and as it comes."""
    (tensors,) = inputs_of([batch])
    with torch.no_grad():
        return float(loss_at_targets(model, tensors)), float(loss_at_all_positions(model, tensors))


def describe_device() -> str:
    """The device and the versions that matter."""
    name = torch.cuda.get_device_name() if _DEVICE.type == "cuda" else "cpu"
    return f"{name}, PyTorch {torch.__version__}, transformers {transformers.__version__}"
