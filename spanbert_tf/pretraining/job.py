"""The job of pre-training: it trains a model on records and writes a preset."""

import os
from collections.abc import Iterable, Mapping

import keras
import tensorflow as tf

from spanbert_tf.config import PretrainingConfig, load_config
from spanbert_tf.config.run import PRESET
from spanbert_tf.data.manifest import VOCABULARY_FILE, PretrainingManifest
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.written import print_written
from spanbert_tf.masking.schemes import SCHEMES, find_scheme
from spanbert_tf.models import SpanBertPretrainer, SpanBertTokenizer
from spanbert_tf.models.keras_hub_presets import weights_digest
from spanbert_tf.models.pretraining_heads import LOADED
from spanbert_tf.presets.pretraining import load_preset_into, save_pretraining_preset
from spanbert_tf.pretraining.datasets import RunDatasets, check_records, steps_per_epoch
from spanbert_tf.pretraining.model import (
    begin_at_frequencies,
    begin_with_preset,
    check_initial_encoder,
    compiled_pretrainer,
    keep_initial_encoder,
    mix_with_initial,
)
from spanbert_tf.terminal import print_line
from spanbert_tf.text.vocabulary import load_vocabulary
from spanbert_tf.text.word_segmentation import stated_segmentation
from spanbert_tf.training.checkpoints import Best, Checkpoints
from spanbert_tf.training.cluster import locks_run
from spanbert_tf.training.configured_optimizer import encoder_variables
from spanbert_tf.training.devices import Devices
from spanbert_tf.training.job import CheckStop, Evaluated, Job, Phase, check_best
from spanbert_tf.training.metrics_log import METRICS_FILE, read_metrics
from spanbert_tf.training.run import run

_PRESET = "--initial-preset"
_SCHEME = "masking.scheme"


@locks_run
def run_pretraining(
    config: PretrainingConfig,
    data: str,
    output: str,
    initial_preset: str | None = None,
    *,
    num_devices: int | None = None,
    backend_changed: bool = False,
    show_next_steps: bool = True,
) -> SpanBertPretrainer | None:
    """Pre-trains a model, or resumes a run that was stopped or killed.

    A run that is killed at any time and resumed ends with the same weights, bit for bit, as an
    uninterrupted run on the same machine. GPUs are an exception, see "Equal bits" in
    docs/devices.md.

    Args:
        config: configuration of the run.
        data: directory of the records.
        output: directory of the run; several workers share it.
        initial_preset: preset from which the run takes its initial weights. A resumed run does not
            need it again, and refuses another one.
        num_devices: number of devices of each machine to use; all by default.
        backend_changed: whether to resume a run that was started on another backend of Keras.
        show_next_steps: whether to print commands that use the result.

    Returns:
        The trained model, or `None` if a signal ended the run.

    Raises:
        BadInputError: a file or directory cannot be used, or a record is damaged.
        MismatchError: records, configuration, preset and earlier run do not fit together.
        ConfigurationError: the devices cannot share the batch equally, or do not exist.
        TrainingError: the gradients of many steps in a row were not finite, another worker was
            lost, or a device has too little memory.
    """
    job = PretrainingJob(config, data, initial_preset, show_next_steps=show_next_steps)
    return run(job, output, num_devices, backend_changed=backend_changed)


class PretrainingJob(Job[PretrainingConfig]):
    """Pre-trains a model on records. Its arguments are those of `run_pretraining`."""

    def __init__(
        self,
        config: PretrainingConfig,
        data: str,
        initial_preset: str | None,
        *,
        show_next_steps: bool,
    ) -> None:
        self._manifest = PretrainingManifest.load(data)
        check_records(config, self._manifest, data)
        self.config = config
        self._data = data
        self._preset = initial_preset
        self.best = Best("loss", "min").or_by(config.training.best_metric)
        self._show_next_steps = show_next_steps
        self.inputs = {"--data": self._manifest.digest}
        scheme = config.masking.scheme
        if scheme not in SCHEMES:  # another package defines it, and may change it
            self.inputs[_SCHEME] = find_scheme(scheme).model_dump_json()
        self.num_steps = config.training.steps
        self.hidden_dim = config.model.hidden_dim

    def load_config(self, path: str) -> PretrainingConfig:
        """Reads the `config.yaml` of a run."""
        return load_config(path)

    def build(self, devices: Devices) -> SpanBertPretrainer:
        """Builds the data sets, and the pretrainer with its optimizer."""
        self._datasets = RunDatasets(self.config, self._data, self._manifest, devices)
        self._datasets.check_batches()
        # Made before the model, since it refuses records that lack annotations for the masking.
        self._held_out = self._datasets.held_out()
        model = compiled_pretrainer(self.config, self._manifest.vocabulary_size)
        check_best(self.best, model.get_metrics_result(), self._data)
        return model

    def begin(self, model: SpanBertPretrainer, output: str, *, is_new: bool) -> None:
        """Loads the initial preset, and sets output biases to the logarithms of frequencies."""
        self._model = model
        share = self.config.training.initial_encoder_share
        check_initial_encoder(share, output, self._preset, is_new=is_new)
        preset = self._preset
        loaded: dict[str, str] = {}
        if is_new:
            self.inputs[_PRESET] = None
            if preset:
                loaded = begin_with_preset(model, preset, self._data, self._manifest)
                self.inputs[_PRESET] = weights_digest(model.backbone)
        elif preset and os.path.isdir(preset):
            # A run that resumes does not need the preset. It is compared if it still exists.
            load_preset_into(model, preset)
            self.inputs[_PRESET] = weights_digest(model.backbone)
        if is_new and self.config.objectives.output_bias == "unigrams":
            trained = [part for part, outcome in loaded.items() if outcome == LOADED]
            counts = self._manifest.unigram_counts(self._data)
            for head in begin_at_frequencies(self._model, counts, trained):
                words = head.replace("_", " ")
                print_line(f"  output bias of the {words}: frequencies of the training text")

    def write(self, output: str, *, is_new: bool) -> None:
        """Also writes the initial encoder, with which the trained one is mixed at the end."""
        super().write(output, is_new=is_new)
        if is_new and self.config.training.initial_encoder_share:
            keep_initial_encoder(self._model.backbone, output)

    def describe(self, model: SpanBertPretrainer) -> str:
        """Describes the steps, the rows of a batch and the epochs."""
        training = self.config.training
        num_records = self._manifest.num_records("train")
        num_epochs = training.steps / steps_per_epoch(self.config, self._manifest, self._data)
        by_length = ", or more rows if they are shorter" if training.batch_by_length else ""
        alone = min(training.head_steps, training.steps)
        heads = f", the heads alone in the first {alone:,}" if alone else ""
        return (
            f"{training.steps:,} steps of {training.batch_size:,} rows of "
            f"{self._manifest.sequence_length}{by_length}, {num_epochs:,.1f} epochs of "
            f"{num_records:,} records{heads}"
        )

    def phases(self, first_step: int) -> Iterable[Phase]:
        """Returns two phases if the heads are first trained alone, else one."""
        switch = min(self.config.training.head_steps, self.num_steps)
        encoder = encoder_variables(self._model)
        if first_step < switch:
            yield Phase(first_step, switch, encoder)
        if max(first_step, switch) < self.num_steps:
            yield Phase(max(first_step, switch), self.num_steps)

    def batches(self, first_step: int) -> tf.data.Dataset:
        """Returns the masked training batches."""
        return self._datasets.training(first_step)

    def evaluates_after(self, step: int) -> bool:
        """Whether a multiple of `evaluate_every` steps, or all steps, are done."""
        return step % self.config.training.evaluate_every == 0 or step == self.num_steps

    def evaluate(self, model: SpanBertPretrainer, check_stop: CheckStop) -> Evaluated:
        """Computes losses and accuracies on held-out records, whose masks are always the same."""
        stop = keras.callbacks.LambdaCallback(on_test_batch_end=lambda batch, logs: check_stop())
        found = model.evaluate(self._held_out, callbacks=[stop], return_dict=True, verbose=0)
        return Evaluated(found)

    def finish(
        self, model: SpanBertPretrainer, checkpoints: Checkpoints, output: str, *, is_chief: bool
    ) -> SpanBertPretrainer:
        """Restores the best weights, mixes the encoder, writes the preset, and prints a summary."""
        devices = self._datasets.devices
        if self.config.training.keep_best:
            # Wait until the chief has written the best checkpoint, which all workers read.
            devices.wait_for_all()
        step = self.restore_best(checkpoints, devices) or self.num_steps
        share = self.config.training.initial_encoder_share
        mixed = None
        if share:
            mix_with_initial(self._model.backbone, output, share)
            # The log has the metrics of the trained encoder, so all workers evaluate the mixed one.
            mixed = self.evaluate(model, lambda: None).metrics
        devices.leave(model)
        if not is_chief:
            return model
        if share:
            print_line(f"encoder: {share:g} x first weights + {1 - share:g} x trained weights")
        measured = mixed or evaluation_after(output, step)
        facts = _card_facts(self.config, self._manifest, measured, step)
        save_run_preset(self._model, self._data, output, self._manifest, facts)
        print_summary(output, step, measured, show_next_steps=self._show_next_steps)
        return model

    def read_result(self, model: SpanBertPretrainer, output: str) -> SpanBertPretrainer:
        """Loads the weights of the preset into the model, and prints the summary."""
        preset = os.path.join(output, PRESET)
        steps = max((int(line["step"]) for line in read_metrics(_metrics_of(output))), default=0)
        if steps != self.num_steps:
            raise MismatchError(
                f"{output}: was finished after {steps:,} steps and kept no checkpoints to go on "
                f"from; begin another --output with {_PRESET} {preset}"
            )
        load_preset_into(model, preset)
        # The last line of the log belongs neither to mixed weights nor to the best ones.
        training = self.config.training
        if training.initial_encoder_share or training.keep_best:
            measured = self.evaluate(model, lambda: None).metrics
        else:
            measured = evaluation_after(output, steps)
        if self._datasets.devices.is_chief:
            print_summary(output, steps, measured, show_next_steps=self._show_next_steps)
        return model

    def damage(self) -> BadInputError | None:
        """Returns an error that names the damaged record."""
        return self._manifest.damage(self._data)

    def files_of_step(self, step: int) -> str:
        """Names the files of the records of a batch."""
        return ", ".join(self._datasets.files_of_batch(step))


def save_run_preset(
    model: SpanBertPretrainer,
    data: str,
    output: str,
    manifest: PretrainingManifest,
    facts: Mapping[str, str],
) -> None:
    """Writes the preset of a finished run into its directory."""
    vocabulary = load_vocabulary(os.path.join(data, VOCABULARY_FILE))
    save_pretraining_preset(
        model,
        SpanBertTokenizer(
            vocabulary,
            **manifest.text_rules._asdict(),
            word_segmentation=stated_segmentation(manifest.word_segmentation, manifest.language),
            spacy_model=manifest.spacy_model_of_words,
        ),
        os.path.join(output, PRESET),
        sequence_length=manifest.sequence_length,
        facts=facts,
        overwrite=True,
    )


def _card_facts(
    config: PretrainingConfig,
    manifest: PretrainingManifest,
    measured: Mapping[str, float],
    step: int,
) -> dict[str, str]:
    """Returns the rows of the model card; the preset has the weights after `step` steps."""
    training = config.training
    names = ["masked LM"]
    if config.objectives.span_boundary:
        names.append("span boundary")
    if config.objectives.next_sentence:
        names.append("next sentence")
    losses = (
        f"{name.removesuffix('_loss').replace('_', ' ')} {value:.4f}"
        for name, value in measured.items()
        if name.endswith("_loss")
    )
    facts = {
        "Pre-training": f"{config.masking.scheme} masking, {training.steps:,} steps of "
        f"{training.batch_size} rows of {manifest.sequence_length} positions",
        "Objectives": ", ".join(names),
        "Data": (
            f"{manifest.num_records('train'):,} records, {manifest.num_tokens('train'):,} tokens"
        ),
        "Held-out losses in nats": ", ".join(losses),
    }
    if step != training.steps:
        facts["Weights"] = f"those of step {step:,}, the best evaluation"
    share = training.initial_encoder_share
    if share:
        facts["Weights of the encoder"] = f"{share:g} x before + {1 - share:g} x trained"
    return facts


def print_summary(
    output: str, step: int, measured: Mapping[str, float], *, show_next_steps: bool = True
) -> None:
    """Prints the metrics of a run, its files, and commands that use its preset."""
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in measured.items())
    print_line()
    print_line(f"Held-out records after step {step}: {shown}")
    if not show_next_steps:
        return
    preset = os.path.join(output, PRESET)
    records = ["--input", "FILE", "--output", "RECORDS"]
    print_written(
        output,
        ["tensorboard", "--logdir", os.path.join(output, "logs")],
        ["spanbert-tf", "prepare", "TASK", "--preset", preset, *records],
        ["spanbert-tf", "export", "--preset", preset, "--output", "served"],
        contents="preset/, checkpoints/, metrics.jsonl, config.yaml",
    )


def _metrics_of(output: str) -> str:
    return os.path.join(output, METRICS_FILE)


def evaluation_after(output: str, step: int) -> dict[str, float]:
    """Reads the metrics of a run's evaluation after a step, by their names in the model."""
    lines = read_metrics(_metrics_of(output))
    evaluations = [line for line in lines if "validation_loss" in line and line["step"] == step]
    return {
        name.removeprefix("validation_"): value
        for name, value in evaluations[-1].items()
        if name != "step"
    }
