"""A step of fine-tuning as `spanbert-tf finetune` runs it, to be timed."""

from collections.abc import Callable


def fine_tuning_step(model: "keras.Model", config_name: str) -> Callable[[tuple], float]:  # noqa: F821
    """Trains on a batch, arrays of `x`, `y` and `sample_weight`; returns the loss.

    Args:
        model: a task's model.
        config_name: shipped configuration that the optimizer is of.
    """
    import tensorflow as tf

    from spanbert_tf.tasks.table import load_task_config
    from spanbert_tf.training.configured_optimizer import finetuning_optimizer

    config = load_task_config(config_name)
    optimizer = finetuning_optimizer(model, config.optimizer, num_steps=1000)
    model.compile(optimizer, auto_scale_loss=False, metrics=None)
    model.optimizer.build(model.trainable_variables)
    train = tf.function(lambda *batch: model.train_step(batch)["loss"], reduce_retracing=True)
    return lambda batch: float(train(*tf.nest.map_structure(tf.constant, batch)))
