"""Variables that an optimizer trains with values of their own."""

import dataclasses
from collections.abc import Mapping

from spanbert_tf.training.schedule import WarmupLinearDecay


@dataclasses.dataclass(frozen=True)
class VariableGroup:
    """Variables that are trained with values of their own, such as a task's new layers.

    Attributes:
        paths: paths of the variables (`keras.Variable.path`).
        learning_rate: schedule of their learning rate; gradients must be 0 or left out before its
            `first_step`, from which the moments of the gradients are counted.
        weight_decay: decoupled, with the exceptions of `AdamW`.
        epsilon: added to the root of the second moment.
        global_clipnorm: limit of the norm of these gradients alone; `None`: they count with those
            of all other variables.
    """

    paths: tuple[str, ...]
    learning_rate: WarmupLinearDecay
    weight_decay: float
    epsilon: float
    global_clipnorm: float | None = None

    def to_config(self) -> dict:
        """The attributes as Keras saves them."""
        return {
            "paths": list(self.paths),
            "learning_rate": self.learning_rate.get_config(),
            "weight_decay": self.weight_decay,
            "epsilon": self.epsilon,
            "global_clipnorm": self.global_clipnorm,
        }

    @classmethod
    def from_config(cls, config: Mapping) -> "VariableGroup":
        """A group from what `to_config` returned."""
        schedule = WarmupLinearDecay(**config["learning_rate"])
        return cls(**{**config, "paths": tuple(config["paths"]), "learning_rate": schedule})
