"""A preset that a command opened: what it holds, and its encoder, task and tokenizer, checked."""

import functools
import warnings
from typing import Any, Protocol

import keras_hub

from spanbert_tf.data.manifest import vocabulary_hash
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.kinds import convert_keras_command
from spanbert_tf.files.preset import TASK_CONFIG, TASK_WEIGHTS, TOKENIZER_CONFIG, PresetFiles
from spanbert_tf.layers import weights_are_loaded
from spanbert_tf.models import SpanBertBackbone, SpanBertMaskedLM, SpanBertTokenizer
from spanbert_tf.models.keras_hub_presets import (
    LoadsPresets,
    NewHeadWarning,
    TaskPresets,
    check_preset,
)
from spanbert_tf.models.preprocessing import RowPreprocessor
from spanbert_tf.models.span_bert_task import SpanBertTask
from spanbert_tf.presets.golden import check_token_ids
from spanbert_tf.text.vocabulary import TextRules
from spanbert_tf.training.precision import choose_precision

# What Keras, KerasHub and h5py raise for damaged descriptions and weights.
_DAMAGE = (
    ValueError,
    OSError,
    LookupError,
    TypeError,
    ImportError,
    RuntimeError,
    ArithmeticError,
    AttributeError,
)


class RecordsManifest(Protocol):
    """The vocabulary and the text rules in the manifest of any kind of records."""

    @property
    def vocabulary_hash(self) -> str:
        """Hash of the vocabulary of the records."""

    @property
    def text_rules(self) -> TextRules:
        """The rules by which their text was converted to pieces."""


class Preset(PresetFiles):
    """A preset, opened once. What it loads is compared with `golden.json`, if there is one.

    Args:
        name: directory, or another name that `from_preset` takes.

    Raises:
        BadInputError: the directory holds no preset, or a pipe, or a link that leads out of it.
    """

    def encoder(
        self, dtype: str = "float32", *, load_weights: bool = True, **lora: Any
    ) -> keras_hub.models.Backbone:
        """Loads the encoder: a `SpanBertBackbone`, or KerasHub's `BertBackbone`.

        Args:
            dtype: dtype or policy of weights and computations.
            load_weights: whether to load the weights; they are random otherwise.
            **lora: arguments of a `SpanBertBackbone` for new adapters.

        Raises:
            BadInputError: a file is missing or damaged, or the encoder is no BERT.
            MismatchError: it has SegaBERT's positions of before 0.2.0.
        """
        options = {"dtype": dtype, "load_weights": load_weights, **lora}
        with weights_are_loaded(load_weights):
            encoder = self._load(keras_hub.models.Backbone, **options)
        self._check_model(encoder, self.tokenizer)
        return encoder

    def task(
        self, kind: type[keras_hub.models.Task], dtype: str = "float32", **options: Any
    ) -> keras_hub.models.Task:
        """Loads a task; if the preset has no trained head, `is_head_trained` is false.

        Args:
            kind: class of the task, this project's or KerasHub's.
            dtype: as for `encoder`.
            **options: further arguments of `from_preset`. Arguments such as `num_classes`, which
                add a new head, are not allowed.

        Raises:
            BadInputError: as `encoder`.
            MismatchError: as `encoder`.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NewHeadWarning)
            with weights_are_loaded(self.holds(kind)):  # a head that is missing is drawn
                task = self._load(kind, dtype=dtype, **options)
        has_tokenizer = task.preprocessor is not None
        tokenizer = task.preprocessor.tokenizer if has_tokenizer else self.tokenizer
        self._check_model(task.backbone, tokenizer)
        return task

    def trained_task(
        self, kind: type[keras_hub.models.Task], precision: str = "float32"
    ) -> keras_hub.models.Task:
        """Loads a task of this project to predict with; a head of its class must be trained.

        Args:
            kind: class of the task.
            precision: dtype of weights and computations, or `"auto"`: the one in which the devices
                of this machine are fastest.

        Raises:
            BadInputError: as `encoder`; or the preset has no trained head of that class, or no
                preprocessor.
            MismatchError: as `encoder`.
        """
        has_head = issubclass(kind, TaskPresets)
        is_task = self.holds(kind)
        if has_head and not is_task:
            raise BadInputError(
                f"{self}: has no trained head ({TASK_WEIGHTS} of a "
                f"{kind.__name__}); use the preset of such a model"
            )
        if is_task and self.arguments(TASK_CONFIG).get("preprocessor") is None:
            raise BadInputError(
                f"{self}: was saved without a preprocessor, which tells how text is read; save the "
                f"{kind.__name__} with its preprocessor"
            )
        if precision == "auto":
            precision = choose_precision(precision, self.hidden_dim).removeprefix("mixed_")
        task = self.task(kind, precision)
        if has_head and not task.is_head_trained:
            raise BadInputError(
                f"{self}: the head of its {kind.__name__} was never trained; use the preset of a "
                "training run"
            )
        self._check_preprocessor(task.preprocessor)
        task.loaded_from = self
        return task

    def _check_preprocessor(self, preprocessor: keras_hub.models.Preprocessor | None) -> None:
        """Refuses settings of a preprocessor that it would refuse with the first texts."""
        if not isinstance(preprocessor, RowPreprocessor):
            return
        try:
            preprocessor.build(None)
        except (ValueError, TypeError, LookupError) as error:
            raise BadInputError(
                f"{self}: its {type(preprocessor).__name__} cannot read texts "
                f"({_first_line(error)}); copy the preset again"
            ) from error

    def encoder_and_masked_lm_head(
        self,
    ) -> tuple[keras_hub.models.Backbone, keras_hub.layers.MaskedLMHead | None]:
        """Loads the encoder, and its trained masked-language-model head; `None` if there is none.

        Raises:
            BadInputError: as `encoder`.
            MismatchError: as `encoder`.
        """
        for kind in (SpanBertMaskedLM, keras_hub.models.BertMaskedLM):
            if self.head_class == kind.__name__:
                masked_lm = self.task(kind, preprocessor=None)
                is_stock = not isinstance(masked_lm, SpanBertTask)  # which does not say
                is_trained = is_stock or masked_lm.is_head_trained
                return masked_lm.backbone, masked_lm.masked_lm_head if is_trained else None
        return self.encoder(), None

    @functools.cached_property
    def tokenizer(self) -> keras_hub.tokenizers.Tokenizer:
        """The preset's own tokenizer; that of a task is its preprocessor's.

        Raises:
            BadInputError: its files are missing or damaged, or it returns strings.
        """
        tokenizer = self._load(keras_hub.models.Tokenizer)
        if isinstance(tokenizer, SpanBertTokenizer) and tokenizer.compute_dtype != "int32":
            raise BadInputError(
                f"{self}: its tokenizer gives strings, not ids; set dtype to int32 in "
                f"{TOKENIZER_CONFIG}"
            )
        return tokenizer

    def holds(self, kind: type[keras_hub.models.Task]) -> bool:
        """Whether the preset holds a task of exactly this class, with its head if it has one.

        Raises:
            BadInputError: there is no preset of that name, or its description is damaged.
        """
        found = self.head_class if issubclass(kind, TaskPresets) else self.class_name(TASK_CONFIG)
        return found == kind.__name__

    def _load(self, kind: Any, **options: Any) -> Any:
        """Calls `kind.from_preset`, with all checks, and with errors that name the preset."""
        is_model = not issubclass(kind, keras_hub.models.Tokenizer)
        try:
            if is_model:
                self.check_checksums()
            if issubclass(kind, LoadsPresets | TaskPresets):  # it checks the preset itself
                return kind.from_preset(self, **options)
            check_preset(self, reads_weights=is_model and options.get("load_weights", True))
            return kind.from_preset(self.name, **options)
        except MismatchError as error:  # raised by an encoder, which does not know its preset
            raise MismatchError(f"{self}: {error}") from error
        except BadInputError:
            raise
        except _DAMAGE as error:
            if not self._is_local:
                raise self.missing(error) from error
            raise BadInputError(
                f"{self}: no preset of a {kind.__name__} ({_first_line(error)})"
            ) from error

    def _check_model(
        self, backbone: keras_hub.models.Backbone, tokenizer: keras_hub.tokenizers.Tokenizer
    ) -> None:
        if not isinstance(backbone, SpanBertBackbone | keras_hub.models.BertBackbone):
            raise BadInputError(f"{self}: holds a {type(backbone).__name__}, no BERT; name another")
        check_token_ids(self, tokenizer)


def _first_line(error: Exception) -> str:
    """Returns the cause from the long message that Keras writes."""
    text = str(error).rpartition("Exception encountered: ")[2] or type(error).__name__
    return text.splitlines()[0]


def check_tokenizer(
    tokenizer: keras_hub.tokenizers.Tokenizer, preset: str, data: str, manifest: RecordsManifest
) -> None:
    """Refuses a tokenizer that does not read text as records were written.

    Args:
        tokenizer: the tokenizer of a preset.
        preset: name of the preset, for errors.
        data: directory of the records, for errors.
        manifest: manifest of the records.

    Raises:
        BadInputError: it is of another project.
        MismatchError: vocabulary or text rules (casing, accents, language) differ.
    """
    if not isinstance(tokenizer, SpanBertTokenizer):
        raise BadInputError(
            f"{preset}: its tokenizer is a {type(tokenizer).__name__}, not a SpanBertTokenizer; "
            f"{convert_keras_command(preset)}"
        )
    if tokenizer.text_rules != manifest.text_rules:
        raise MismatchError(
            f"{preset}: its text is {tokenizer.text_rules.describe()}, that of the records in "
            f"{data} {manifest.text_rules.describe()} (lowercase, strip_accents, language); "
            f"write the records again with --preset {preset}"
        )
    if vocabulary_hash(tokenizer.get_vocabulary()) != manifest.vocabulary_hash:
        raise MismatchError(
            f"{preset}: its vocabulary is not that of the records in {data} (vocabulary_hash); "
            f"write the records again with --preset {preset}"
        )
