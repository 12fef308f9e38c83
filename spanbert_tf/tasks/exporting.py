"""`spanbert-tf export` of whatever model a preset holds."""

from spanbert_tf.serving.exporting import export_model
from spanbert_tf.serving.masked_lm import export_masked_lm
from spanbert_tf.tasks.task import task_of_preset


def export_preset(preset: str, output: str, *, top_k: int = 5, **options: object) -> str:
    """Writes `output/version/`, a SavedModel that TF Serving loads.

    Args:
        preset: preset of a fine-tuned model, or of a masked-language model with a trained head.
        output: the model's directory for TF Serving; its name is the model's.
        top_k: predictions of each input, where the task has several.
        **options: `version`, `precision`, `overwrite`; as for `export_model`.

    Returns:
        The path of the SavedModel.

    Raises:
        BadInputError: the preset cannot be used, the version exists, or it cannot be written.
    """
    task = task_of_preset(preset)
    if task is None:
        return export_masked_lm(preset, output, top_k=top_k, **options)
    return export_model(
        task.model_class,
        preset,
        output,
        lambda model: task.served(model, top_k),
        task.sample_logits,
        **options,
    )
