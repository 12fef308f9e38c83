"""Chooses the training step for the backend of Keras.

The modules `tensorflow`, `jax` and `plain` define the same names, and do not ask for the backend.
mypy reads the types of the first one.
"""

import keras

if keras.backend.backend() == "tensorflow":
    from spanbert_tf.models.train_step import tensorflow as backend
elif keras.backend.backend() == "jax":
    from spanbert_tf.models.train_step import jax as backend  # type: ignore[no-redef]
else:
    from spanbert_tf.models.train_step import plain as backend  # type: ignore[no-redef]

TrainStep = backend.TrainStep
takes_any_width = backend.takes_any_width
traced_once = backend.traced_once
wait_until_computed = backend.wait_until_computed
with_model = backend.with_model
