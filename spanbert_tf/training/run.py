"""Runs a job, pre-training or the fine-tuning of a task, from its checks to its end."""

import os
from typing import Any

import keras

from spanbert_tf.layers import weights_are_loaded
from spanbert_tf.models.keras_hub_presets import preset_bytes
from spanbert_tf.terminal import print_line
from spanbert_tf.training.callbacks import UserCallbacks, load_callbacks
from spanbert_tf.training.checkpoint_files import saved_steps
from spanbert_tf.training.checkpoints import Checkpoints
from spanbert_tf.training.devices import NVIDIA_CARD, Devices, unused_card
from spanbert_tf.training.job import Job, lost_workers_named
from spanbert_tf.training.memory import describe_step, names_exhaustion
from spanbert_tf.training.precision import decide_precision
from spanbert_tf.training.run_directory import BACKEND, CHECKPOINTS, RunDirectory
from spanbert_tf.training.watch import Watch


@names_exhaustion
def run(
    job: Job, output: str, num_devices: int | None = None, *, backend_changed: bool = False
) -> Any:
    """Trains from the newest checkpoint to the end of the run, or until a signal stops it.

    Args:
        job: the job to run.
        output: directory of the run; several workers share it.
        num_devices: number of devices of each machine to use; all by default.
        backend_changed: whether to resume a run that was started on another backend of Keras.

    Returns:
        The result of `job.finish`; `None` if a signal ended the run, after saving a checkpoint.

    Raises:
        BadInputError: a file or directory cannot be used, or a record is damaged.
        MismatchError: the inputs of the run do not fit together, or differ from those with which
            the run was started.
        ConfigurationError: the devices cannot share the batch equally, or do not exist; or a
            callback cannot be created.
        TrainingError: the gradients of many steps in a row were not finite, another worker was
            lost, a device has too little memory, or a callback has failed.
    """
    directory = RunDirectory(output)
    begun_with = directory.check(job.config, job.load_config)
    backend = {BACKEND: keras.backend.backend()}
    directory.check_inputs(job.inputs if backend_changed else {**backend, **job.inputs})
    devices = Devices(job.config.training, num_devices)
    callbacks = load_callbacks(job.config.training.callbacks) if devices.is_chief else []
    job.config = decide_precision(job.config, begun_with, job.hidden_dim)

    steps = saved_steps(os.path.join(output, CHECKPOINTS))
    is_new = not steps
    # `_build` sets the seed, so it comes after `load_callbacks`: constructors of the user's
    # callbacks may draw random numbers.
    model, checkpoints = _build(job, directory, output, devices, steps)
    if is_new and directory.is_finished:
        directory.check_result(job.config, begun_with)
        with job.named_errors(output, devices):
            return job.read_result(model, output)
    with lost_workers_named(output, devices):
        job.begin(model, output, is_new=is_new)
    directory.check_inputs(job.inputs)  # which `begin` has completed
    keep_best = job.config.training.keep_best
    parts = {**checkpoints.room(keep_best=keep_best), "preset": preset_bytes(model)}
    room = directory.check_room(parts)
    with job.named_errors(output, devices):
        step = job.restore(checkpoints, output, devices)
        model.is_head_trained |= step > 0
        if devices.is_chief:
            job.inputs |= backend
            job.write(output, is_new=is_new)
        _describe(job, model, devices, f"{output}: {room}")
        user_callbacks = UserCallbacks(callbacks, model, job.num_steps) if callbacks else None
        with Watch(job, model, checkpoints, output, devices, step, user_callbacks) as watch:
            watch.catch_up()
            _train(job, model, watch, step)
        result = None
        if not watch.is_interrupted:
            result = job.finish(model, checkpoints, output, is_chief=devices.is_chief)
            if devices.is_chief and not job.config.training.keep_checkpoints:
                directory.sync()  # the preset is on the disk before the checkpoints are deleted
                checkpoints.remove()
        if user_callbacks:
            user_callbacks.check()  # after all else, for a callback may have failed at the end
        return result


def _build(
    job: Job, directory: RunDirectory, output: str, devices: Devices, steps: list[int]
) -> tuple[keras.Model, Checkpoints]:
    """Builds the model with new weights, and the checkpoints that can replace these.

    Args:
        job: the job of the run.
        directory: directory of the run.
        output: its path.
        devices: devices of the run.
        steps: steps of the checkpoints that the directory has, damaged or not.
    """
    training = job.config.training
    keras.utils.set_random_seed(training.library_seed)
    with lost_workers_named(output, devices):
        # Check before anything is built: on JAX, building a model needs all workers.
        devices.check_same_step(max(steps, default=0), output)
        with devices.scope(), weights_are_loaded(bool(steps) or directory.is_finished):
            model = job.build(devices)
    checkpoints = Checkpoints(
        os.path.join(output, CHECKPOINTS),
        model,
        best=job.best,
        max_to_keep=training.max_checkpoints,
        base=job.base,
        report=print_line,
        writes=devices.is_chief,
    )
    return model, checkpoints


def _describe(job: Job, model: keras.Model, devices: Devices, room: str) -> None:
    """Prints what the run trains on which devices, and the disk space and memory that it needs."""
    devices.say(f"{devices.describe(model, job.config.training.precision)}: {job.describe(model)}")
    devices.say(room)
    devices.say(describe_step(model, job.config, devices.num_replicas))
    advice = unused_card(NVIDIA_CARD)
    if advice:
        devices.say(advice)


def _train(job: Job, model: keras.Model, watch: Watch, step: int) -> None:
    """Trains the phases that remain after a step; `watch` ends each of them."""
    for phase in job.phases(step):
        model.freeze(phase.frozen)
        # Not the task's own `fit`, which would preprocess the batches again.
        keras.Model.fit(
            model,
            job.batches(phase.first),
            callbacks=watch.until(phase.last),  # they stop `fit` after that step
            shuffle=False,  # the data set is shuffled already
            verbose=0,
        )
