"""The base class of all tasks, which trains them by their own objectives."""

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import keras

from spanbert_tf.files.preset import PresetFiles
from spanbert_tf.models.keras_hub_presets import NewHeadWarning, TaskPresets
from spanbert_tf.models.objective import ObjectiveMetrics, Objectives, mean_loss
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.train_step import TrainStep
from spanbert_tf.models.work import encoder_operations

try:
    from spanbert_tf.models.text_batches import TextBatches
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise

    class TextBatches:  # type: ignore[no-redef]
        """Stands in for the class of this name: without TensorFlow no model reads text."""


class DenseHead(NamedTuple):
    """The names of a head that is one dense layer, here and in other projects.

    Attributes:
        layer: name of the model's attribute with the layer.
        transformers_name: name of the layer in the model of `transformers`.
        peft_task: type of the task in the `adapter_config.json` of `peft`.
    """

    layer: str
    transformers_name: str
    peft_task: str


class SpanBertTask(TextBatches, Objectives, TrainStep, TaskPresets):
    """Base class of the tasks on a `SpanBertBackbone`; name it before KerasHub's class.

    A task that does not read the pooler neither trains it nor has it in its optimizer. The
    backbone, which other tasks may share, is not changed by this.

    Attributes:
        reads_pooler: whether the head reads the encoder's `pooled_output`. Only then is the pooler
            trained.
        loaded_from: preset from which a command loaded the model.
        is_head_trained: whether the head was ever trained. `fit` sets it, and files of weights
            store it. If you assign weights yourself, set it, too.
        dense_head: names of the head, if it is one dense layer.
        accepts_loss: whether `compile` takes a Keras loss, which fits the outputs and labels.
    """

    dense_head: ClassVar[DenseHead | None] = None
    loaded_from: PresetFiles | None = None
    accepts_loss = False
    reads_pooler = False
    _has_warned = False  # whether `NewHeadWarning` was given
    _learning_rate = 3e-5  # of the optimizer `"auto"`

    def compile(
        self,
        optimizer: str | keras.Optimizer = "auto",
        loss: str | keras.losses.Loss | None = "auto",
        **kwargs,
    ) -> None:
        """Configures the model for training.

        Args:
            optimizer: `"auto"` (Adam), a name, or a `keras.Optimizer`.
            loss: `"auto"` or `None` for the loss of the model's objectives, a mean over the targets
                of the global batch. If `accepts_loss`, another loss is possible, and Keras' own
                step trains the model.
            **kwargs: as for `keras.Model.compile`, and `accumulation_steps`, see `TrainStep`.

        Raises:
            ValueError: a loss is given, and the model takes none; or `accumulation_steps` is less
                than 1.
        """
        is_own = loss is None or (isinstance(loss, str) and loss == "auto")
        if not (is_own or self.accepts_loss):
            raise ValueError(
                f"loss must be 'auto' or None: {type(self).__name__} is trained by its own "
                f"objective. Received: {loss!r}"
            )
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = keras.optimizers.Adam(self._learning_rate)
        accumulation_steps = kwargs.get("accumulation_steps", 1)
        if not isinstance(accumulation_steps, int) or accumulation_steps < 1:
            raise ValueError(f"accumulation_steps must be 1 or more: {accumulation_steps!r}")
        if getattr(optimizer, "dynamic_loss_scale", False):
            kwargs["auto_scale_loss"] = False  # Keras would scale the loss a second time
        # Keras 3.15 would keep the values of an earlier call, such as that of the constructor.
        self._compile_loss = None
        self._compile_metrics = None
        self._objective_metrics = None
        super().compile(optimizer=optimizer, loss=None if is_own else loss, **kwargs)
        if is_own:
            # KerasHub's default metric may be an accuracy already.
            kinds = [kwargs.get(name, "auto") for name in ("metrics", "weighted_metrics")]
            are_default = all(isinstance(kind, str) and kind == "auto" for kind in kinds)
            has_accuracy_of_keras = are_default and self._compile_metrics is not None
            has_accuracy = self.has_accuracy and not has_accuracy_of_keras
            self._objective_metrics = ObjectiveMetrics(self.objectives, has_accuracy)

    # Keras' own steps call the next two methods: if `compile` got a loss, and on other backends.
    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: keras.KerasTensor | None = None,
        training: bool = True,
    ) -> keras.KerasTensor:
        """Computes the loss of a batch from the outputs of the model, like `loss_of`."""
        if self._compile_loss is not None:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        loss = mean_loss(self.objective_sums(x, y_pred, y, sample_weight))
        further_loss = self.further_loss()
        if further_loss is not None:
            loss += further_loss
        return loss

    def compute_metrics(
        self, x: dict, y: Any, y_pred: Any, sample_weight: keras.KerasTensor | None = None
    ) -> dict[str, keras.KerasTensor]:
        """Updates the metrics with a batch, and returns their values."""
        if self._objective_metrics is not None:
            sums = self.objective_sums(x, y_pred, y, sample_weight)
            self._objective_metrics.update(sums, self.further_loss())
        y, sample_weight = self._metric_targets(y, sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def predict(self, x: Any = None, batch_size: int | None = None, **kwargs) -> Any:
        """Returns the outputs for inputs, as `keras.Model.predict`; warns once if the head is new.

        Args:
            x: texts or other inputs of the preprocessor, or a data set.
            batch_size: number of rows of a batch, where `x` is no data set; 32 by default.
            **kwargs: as for `keras.Model.predict`.
        """
        self._warn_of_new_head()
        return super().predict(x, batch_size, **kwargs)

    def predict_on_batch(self, x: Any, **kwargs) -> Any:
        """Returns the outputs for a batch; warns like `predict`."""
        self._warn_of_new_head()
        return super().predict_on_batch(x, **kwargs)

    def _warn_of_new_head(self) -> None:
        # The outputs of a new head are meaningless. Commands and predictors refuse it, but programs
        # may want its outputs, as KerasHub's own tests do.
        if self.is_head_trained or self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"{type(self).__name__}: its head is new and was never trained, so what it predicts "
            "means nothing; `fit` it, or load the preset of a trained model (of weights that come "
            "from elsewhere, set is_head_trained to True)",
            NewHeadWarning,
            stacklevel=3,
        )

    def make_train_function(self, force: bool = False) -> Callable[..., Any]:
        """Makes the function of a step, as in Keras; from now on the head counts as trained."""
        self.is_head_trained = True
        return super().make_train_function(force)

    def step_operations(self, x: Any) -> keras.KerasTensor | float:
        """Computes the operations of a training step in billions, without the task's own layers.

        See `encoder_operations`; 0.0 if the encoder is not of this project.
        """
        if not isinstance(self.backbone, SpanBertBackbone) or "padding_mask" not in x:
            return 0.0
        return encoder_operations(self.backbone, x["padding_mask"], self._is_trained)

    def _is_trained(self, variable: keras.Variable) -> bool:
        """Whether steps train a variable now."""
        return variable.trainable and not self.is_frozen(variable)

    def get_compile_config(self) -> dict:
        """Returns the arguments of `compile`; empty if the optimizer has groups of variables."""
        if getattr(self.optimizer, "groups", ()):
            return {}
        return super().get_compile_config()

    # On JAX, an unused pooler has gradients of 0, and weight decay would change it.
    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The trained variables, without frozen ones and without the pooler if it is not read."""
        trained = super().trainable_variables
        if self.backbone is None:
            return trained
        left_out = set(self.left_out_of_training)
        if not self.reads_pooler:
            left_out.update(id(variable) for variable in self.backbone.pooled_dense.variables)
        return [variable for variable in trained if id(variable) not in left_out]

    trainable_weights = trainable_variables  # neither includes states of metrics and seeds

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """The variables that are not trained."""
        trained = {id(variable) for variable in self.trainable_variables}
        return [variable for variable in self.variables if id(variable) not in trained]

    @property
    def non_trainable_weights(self) -> list[keras.Variable]:
        """The weights that are not trained, without states of metrics and seeds."""
        trained = {id(weight) for weight in self.trainable_weights}
        return [weight for weight in self.weights if id(weight) not in trained]
