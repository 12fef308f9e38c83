"""The configuration class of each task of this package, and how a configuration is loaded."""

from collections.abc import Mapping, Sequence

from spanbert_tf.config.coreference import CoreferenceConfig
from spanbert_tf.config.finetuning import FinetuningConfig
from spanbert_tf.config.loading import build_config, load_settings
from spanbert_tf.config.named_entities import NamedEntitiesConfig
from spanbert_tf.config.question_answering import QuestionAnsweringConfig
from spanbert_tf.config.relation_extraction import RelationExtractionConfig
from spanbert_tf.config.text_classification import TextClassificationConfig
from spanbert_tf.config.yaml_files import Setting
from spanbert_tf.errors import ConfigurationError

DEFAULT_TASK = "question_answering"  # of files from before there were other tasks

TASK_CONFIGS: Mapping[str, type[FinetuningConfig]] = {
    "question_answering": QuestionAnsweringConfig,
    "text_classification": TextClassificationConfig,
    "coreference": CoreferenceConfig,
    "relation_extraction": RelationExtractionConfig,
    "named_entities": NamedEntitiesConfig,
}


def load_finetuning_config(
    name_or_path: str,
    overrides: Sequence[str] = (),
    tasks: Mapping[str, type[FinetuningConfig]] = TASK_CONFIGS,
) -> FinetuningConfig:
    """Loads, overrides and checks a configuration.

    Args:
        name_or_path: a shipped name (`squad_v1`), or the path of a YAML file.
        overrides: texts `section.key=value`, the values in YAML.
        tasks: the configuration class of each task's name.

    Returns:
        The configuration, of the task's class.

    Raises:
        ConfigurationError: a file, a key, a type or a value is wrong.
    """
    settings = load_settings("finetune", name_or_path, overrides)
    task = settings.get("task", Setting(DEFAULT_TASK, name_or_path))
    if not isinstance(task.value, str) or task.value not in tasks:
        raise ConfigurationError(
            f"{task.place}: task must be {' or '.join(tasks)}, not {task.value!r}"
        )
    return build_config(tasks[task.value], settings, name_or_path)
