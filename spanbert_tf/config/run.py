"""The settings of all training runs, pre-training and fine-tuning."""

import math
import re
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from spanbert_tf.errors import ConfigurationError
from spanbert_tf.validation import (
    BelowOne,
    NotNegative,
    NotNegativeInt,
    Positive,
    PositiveInt,
    Section,
    conflict,
    largest_divisor,
)

CONFIG_FILE = "config.yaml"  # the resolved configuration in the directory of a run
INPUTS_FILE = "inputs.json"  # beside it: what the run was begun with
SCORES_FILE = "scores.json"  # and, of fine-tuning, the scores of its preset
PRESET = "preset"  # directory of what was trained
# In INPUTS_FILE: version of the format, raised when the meaning of masks or defaults changes.
RUN_FORMAT = "format"
VALIDATION_ROWS: Final = "validation_rows"  # in INPUTS_FILE: number of rows that were scored

Precision = Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"]
Strategy = Literal["one_device", "mirrored", "multi_worker", "tpu"]
# Names of variables: BERT's code decays none of them, biases and LayerNorm's scales and shifts.
NotDecayed = Literal["bias", "gamma", "beta"]


_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _with_arguments(value: Any) -> dict[str, dict[str, Any]]:
    """Returns a callback as the place of its class and its arguments; a place alone has none."""
    callback = {value: {}} if isinstance(value, str) else value
    if isinstance(callback, dict) and len(callback) == 1:
        place, arguments = next(iter(callback.items()))
        if isinstance(place, str) and _CLASS.fullmatch(place) and isinstance(arguments, dict):
            return callback
    wanted = "package.module:Class, or {package.module:Class: {argument: value}}"
    problem = f"{value!r} must be {wanted}"
    raise PydanticCustomError("callback", "{problem}", {"problem": problem})


_Callback = Annotated[dict[str, dict[str, Any]], BeforeValidator(_with_arguments)]


class AdamWConfig(Section):
    """AdamW with linear warm-up and linear decay to 0.

    SpanBERT was fine-tuned with BertAdam: `bias_correction: false`, `global_clipnorm: null` and
    `clipnorm: 1.0`. It was pre-trained with fairseq's Adam, which decays all variables:
    `exclude_from_weight_decay: []`.

    Attributes:
        learning_rate: peak of the schedule.
        weight_decay: decoupled weight decay of all variables except those excluded below.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the root of the second moment.
        bias_correction: whether to correct the moments for their initial value of 0.
        global_clipnorm: limit of the gradients' global norm; null: no limit.
        clipnorm: limit of the norm of each variable's gradient, instead of the global norm; null:
            no limit.
        exclude_from_weight_decay: names of variables without weight decay: `bias`, and LayerNorm's
            `gamma` and `beta`.
        all_reduce_dtype: type in which several devices add up their gradients. `bfloat16` sends
            half as many bytes and rounds to three digits. null: float32, the type of the weights.
    """

    learning_rate: Positive
    weight_decay: NotNegative
    beta_1: BelowOne = 0.9
    beta_2: BelowOne = 0.999
    epsilon: Positive = 1e-8
    bias_correction: bool = True
    global_clipnorm: Positive | None = 1.0
    clipnorm: Positive | None = None
    exclude_from_weight_decay: list[NotDecayed] = Field(default=["bias", "gamma", "beta"])
    all_reduce_dtype: Literal["bfloat16"] | None = None

    @model_validator(mode="after")
    def _check_norms(self) -> Self:
        if None not in (self.clipnorm, self.global_clipnorm):
            raise conflict(
                f"{self.clipnorm} and global_clipnorm ({self.global_clipnorm}) exclude each other",
                "clipnorm",
                "global_clipnorm",
                fix="optimizer.global_clipnorm=null",
            )
        return self


def check_equal_parts(
    place: str, rows: int, *, num_devices: int, accumulation_steps: int, advice: str
) -> None:
    """Checks that devices can share the rows of a batch equally, in equal micro-batches.

    Args:
        place: the setting or option, for the error.
        rows: rows of a global batch.
        num_devices: number of devices.
        accumulation_steps: number of micro-batches of each device.
        advice: what to do; `{parts}` stands for the number that must divide the rows, `{next}` for
            the next number of rows that it divides.

    Raises:
        ConfigurationError: they cannot.
    """
    parts = num_devices * accumulation_steps
    if rows % parts:
        raise ConfigurationError(
            f"{place}: {rows:,} rows cannot be cut into {parts} equal parts (devices: "
            f"{num_devices}, training.accumulation_steps: {accumulation_steps}); "
            f"{advice.format(parts=parts, next=-(-rows // parts) * parts)}"
        )


class RunConfig(Section):
    """The course of a run.

    Attributes:
        seed: seed of new weights, dropout, the order of the records and the masks.
        batch_size: rows of a global batch, all devices together.
        accumulation_steps: number of micro-batches into which the rows of each device are cut, to
            save memory. Without dropout the result is the same up to rounding.
        gradient_checkpointing: store only the inputs of each encoder layer and compute the rest
            again for the gradients: less memory, more time, the same result up to rounding.
        precision: `auto` is bfloat16 or float16 on a device that computes faster in it, and float32
            on others. It is decided when a run begins.
        strategy: `one_device`; `mirrored` over the devices of this machine; `multi_worker` over
            the machines that TF_CONFIG or Slurm names; `tpu`.
        tpu: the TPU: `local` for that of this machine. `--set` also takes a name or
            `grpc://HOST:PORT`.
        jit_compile: compile the step with XLA.
        steps_per_execution: number of steps that run on the device before Python sees signals and
            the clock again. It must divide `log_every`, `checkpoint_every_steps` and
            `evaluate_every`.
        deterministic: whether the same run computes the same bits on a GPU, too; it is slower
            there.
        log_every: steps between lines of `metrics.jsonl`.
        callbacks: Keras callbacks, which are called at each line of the log and at each
            evaluation: `package.module:Class`, or `{package.module:Class: {argument: value}}` with
            arguments. Only `--set` and the file of `--config` itself may name them, since their
            code runs.
        profile_steps: the first and the last step that TensorBoard's profiler shows; null: none.
            Whole executions are profiled.
        checkpoint_every_minutes: minutes between checkpoints; null: none by the clock. There is
            always one after the last step, and after the step in which a signal arrives.
        checkpoint_every_steps: steps between further checkpoints; null: no further ones.
        max_checkpoints: number of checkpoints that are kept, the newest ones.
        keep_checkpoints: whether a finished run keeps them; otherwise only its preset remains.
        max_skipped_steps: the run stops after this number of updates in a row whose gradients were
            not finite.
        keep_best: whether to keep also the checkpoint of the best evaluation. The preset of the run
            then has its weights.
        best_metric: the metric that decides which evaluation is the best one, for `keep_best`,
            `early_stopping_patience` and `--grid`: `loss`, or any other metric that the evaluation
            prints. Lower is better for names that end in `loss`, higher for all others. null: the
            held-out loss in pre-training, the task's main metric in fine-tuning.
    """

    seed: NotNegativeInt = 0
    batch_size: PositiveInt = 32
    accumulation_steps: PositiveInt = 1
    gradient_checkpointing: bool = False
    precision: Precision = "auto"
    strategy: Strategy = "one_device"
    tpu: str = "local"
    jit_compile: bool = False
    steps_per_execution: PositiveInt = 1
    deterministic: bool = False
    log_every: PositiveInt = 50
    callbacks: list[_Callback] = Field(default=[])
    profile_steps: Annotated[list[PositiveInt], Field(min_length=2, max_length=2)] | None = None
    checkpoint_every_minutes: Positive | None = 10.0
    checkpoint_every_steps: PositiveInt | None = None
    max_checkpoints: PositiveInt = 2
    keep_checkpoints: bool = True
    max_skipped_steps: PositiveInt = 10
    keep_best: bool = False
    best_metric: str | None = None

    # Periods that `steps_per_execution` must divide.
    periods: ClassVar[tuple[str, ...]] = ("log_every", "checkpoint_every_steps")

    @model_validator(mode="after")
    def _check_profile(self) -> Self:
        if self.profile_steps and self.profile_steps[0] > self.profile_steps[1]:
            raise conflict(
                f"{self.profile_steps} ends before it begins",
                "profile_steps",
                fix="training.profile_steps=null",
            )
        return self

    @model_validator(mode="after")
    def _check_executions(self) -> Self:
        periods = {name: getattr(self, name) for name in self.periods}
        periods = {name: period for name, period in periods.items() if period is not None}
        for name, period in periods.items():
            if period % self.steps_per_execution:
                common = math.gcd(*periods.values())
                fitting = largest_divisor(common, self.steps_per_execution)
                raise conflict(
                    f"{self.steps_per_execution} does not divide training.{name} ({period})",
                    "steps_per_execution",
                    name,
                    fix=f"training.steps_per_execution={fitting}",
                )
        return self

    @property
    def library_seed(self) -> int:
        """The seed for Keras, reduced to the 32 bits that NumPy's seed has."""
        return self.seed % 2**32
