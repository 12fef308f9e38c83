"""Training by a model's own objectives; `compile()` needs no loss.

B rows or documents.
"""

import keras
from keras import ops

from spanbert_tf.models.objective_sums import ObjectiveSums
from spanbert_tf.models.replicas import global_mean_share


class OwnObjective:
    """Base of tasks with objectives of their own; to be named before `SpanBertTask`.

    A class has `objective_sums`; with one objective `_objective`, its name, and `_target_weights`,
    with several `objectives` and `target_counts`.
    """

    _objective: str

    def compile(
        self, optimizer: str | keras.Optimizer = "auto", loss: str | None = "auto", **kwargs
    ) -> None:
        """Configures the model for training; the loss is the model's own.

        Args:
            optimizer: `"auto"` (Adam, 3e-5), a name, or a `keras.Optimizer`.
            loss: `"auto"` or `None`.
            **kwargs: as for `keras.Model.compile`.

        Raises:
            ValueError: another loss.
        """
        if not (loss is None or (isinstance(loss, str) and loss == "auto")):
            raise ValueError(
                f"loss must be 'auto' or None: {type(self).__name__} is trained by its own "
                f"objective. Received: {loss!r}"
            )
        if optimizer == "auto":
            optimizer = keras.optimizers.Adam(3e-5)
        super().compile(optimizer=optimizer, **kwargs)

    @property
    def objectives(self) -> tuple[str, ...]:
        """The one objective."""
        return (self._objective,)

    def objective_sums(
        self, x: dict, outputs: object, y: object, sample_weight: keras.KerasTensor | None = None
    ) -> dict[str, ObjectiveSums]:
        """Sums over the targets of a batch.

        Args:
            x: as for `call`.
            outputs: what `call` returned.
            y: targets, of the task's own kind.
            sample_weight: float [B]; 1 by default.
        """
        raise NotImplementedError

    def _target_weights(
        self, y: object, sample_weight: keras.KerasTensor | None
    ) -> keras.KerasTensor:
        """Weights of the targets, float32."""
        raise NotImplementedError

    def target_counts(
        self, x: dict, y: object, sample_weight: keras.KerasTensor | None = None
    ) -> dict[str, keras.KerasTensor]:
        """The sum of the weights of the targets of a batch, float32 []."""
        return {self._objective: ops.sum(self._target_weights(y, sample_weight))}

    def compute_loss(
        self,
        x: dict | None = None,
        y: object = None,
        y_pred: object = None,
        sample_weight: keras.KerasTensor | None = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """This replica's share of each objective's mean over the targets of the global batch.

        It is their sum, by the targets' weights, with the losses of regularisers and of `add_loss`;
        an objective without targets counts as 0.

        Args:
            x: as for `call`.
            y: as for `objective_sums`.
            y_pred: what `call` returned.
            sample_weight: float [B]; 1 by default.
            training: unused.
        """
        parts = self.objective_sums(x, y_pred, y, sample_weight).values()
        # As Keras does; it divides these, which all replicas have alike, by the replicas' number.
        further = [self._aggregate_additional_loss(loss) for loss in self.losses]
        return sum((global_mean_share(part.loss, part.num_targets) for part in parts), sum(further))
