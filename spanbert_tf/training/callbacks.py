"""The user's own callbacks, which `training.callbacks` names."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras

from spanbert_tf.errors import ConfigurationError, TrainingError, reason
from spanbert_tf.lazy import load
from spanbert_tf.terminal import print_line

_SETTING = "training.callbacks"


class CallbackFailed(TrainingError):
    """A callback of the user has raised an error. The run ends after saving the step."""


class _Named(NamedTuple):
    place: str
    callback: keras.callbacks.Callback


class UserCallbacks:
    """Calls the callbacks of a run as `keras.Model.fit` does.

    A run logs in intervals of steps and evaluates between them, so the hooks of Keras mean:

    - `on_train_begin(logs)` and `on_train_end(logs)`: the beginning and the end of the command, for
      all callbacks but one that has failed;
    - `on_train_batch_end(batch, logs)`: a step was logged. `batch` counts steps from 0, and `logs`
      is the line of `metrics.jsonl` without `step`;
    - `on_epoch_begin(epoch)` and `on_epoch_end(epoch, logs)`: an epoch ends with each evaluation.
      `logs` is the last line and the metrics of the evaluation, with the prefix `val_`.

    Args:
        callbacks: the callbacks from `load_callbacks`.
        model: the model of the run.
        num_steps: number of steps of the run, `params["steps"]` of the callbacks.
    """

    def __init__(self, callbacks: Sequence[_Named], model: keras.Model, num_steps: int) -> None:
        self._callbacks = callbacks
        self._model = model
        self._num_steps = num_steps
        self._epoch = 0
        self._logs: dict[str, float] = {}
        self._failed: _Named | None = None
        self._failure: CallbackFailed | None = None

    def begin(self, num_evaluations: int) -> None:
        """Begins the training of a run that has some evaluations already."""
        self._epoch = num_evaluations
        params = {"verbose": 0, "epochs": 1, "steps": self._num_steps}
        self._call("set_params", params)
        self._call("set_model", self._model)
        self._call("on_train_begin", {})
        self._call("on_epoch_begin", self._epoch, {})

    def log(self, step: int, line: Mapping[str, float]) -> bool:
        """Passes a line of the log on; returns whether a callback asks to stop the training."""
        self._logs = {name: value for name, value in line.items() if name != "step"}
        return self._asks_to_stop("on_train_batch_end", step - 1)

    def evaluated(self, metrics: Mapping[str, float]) -> bool:
        """Passes an evaluation on; returns whether a callback asks to stop the training."""
        self._logs |= {f"val_{name}": float(value) for name, value in metrics.items()}
        stops = self._asks_to_stop("on_epoch_end", self._epoch)
        self._epoch += 1
        self._call("on_epoch_begin", self._epoch, {})
        return stops

    def end(self) -> None:
        """Ends the training of this command; `check` tells of callbacks that fail in this."""
        for named in self._callbacks:
            if named is not self._failed:
                with contextlib.suppress(CallbackFailed):
                    self._call_one(named, "on_train_end", dict(self._logs))

    def check(self) -> None:
        """Raises the error of the first callback that has failed."""
        if self._failure:
            raise self._failure

    def _asks_to_stop(self, hook: str, number: int) -> bool:
        """Calls a hook; as in Keras, a callback sets `model.stop_training` to stop."""
        before = self._model.stop_training
        self._model.stop_training = False
        self._call(hook, number, dict(self._logs))
        stops = self._model.stop_training
        self._model.stop_training = before
        return stops

    def _call(self, hook: str, *arguments: Any) -> None:
        for named in self._callbacks:
            self._call_one(named, hook, *arguments)

    def _call_one(self, named: _Named, hook: str, *arguments: Any) -> None:
        try:
            getattr(named.callback, hook)(*arguments)
        except Exception as error:  # anything that the user's code raises
            advice = "mend it or leave it out, and give the same command again to go on"
            if hook == "on_train_end":
                advice = "what the command itself writes is complete"
            failure = CallbackFailed(
                f"{_SETTING}: {named.place} failed in {hook} ({_described(error)}); {advice}"
            )
            self._failed = self._failed or named
            self._failure = self._failure or failure
            raise failure from error


def load_callbacks(settings: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[_Named]:
    """Imports the classes of callbacks and creates one callback of each; says so before.

    Args:
        settings: value of `training.callbacks`: each maps `package.module:Class` to the arguments
            of the class.

    Raises:
        ConfigurationError: a class cannot be imported or created, or is no Keras callback.
    """
    callbacks = []
    for setting in settings:
        for place, arguments in setting.items():
            print_line(f"{_SETTING}: {place} is imported, and its code runs")
            callbacks.append(_Named(place, _create(place, arguments)))
    return callbacks


def _create(place: str, arguments: Mapping[str, Any]) -> keras.callbacks.Callback:
    try:
        kind = load(place)
    except Exception as error:  # anything that the user's module raises
        raise ConfigurationError(
            f"{_SETTING}: {place} cannot be imported ({_described(error)}); install its package, "
            "or name its directory in PYTHONPATH"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, keras.callbacks.Callback)):
        raise ConfigurationError(
            f"{_SETTING}: {place} is no class derived from keras.callbacks.Callback; name one"
        )
    try:
        return kind(**arguments)
    except Exception as error:  # anything that the user's class raises
        raise ConfigurationError(
            f"{_SETTING}: {place} cannot be created with {dict(arguments)} ({_described(error)}); "
            f"write its arguments as [{{{place}: {{name: value}}}}]"
        ) from error


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {reason(error)}"
