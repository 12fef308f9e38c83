"""The training step, as each backend of Keras has it; the backend is asked for here, once."""

import keras

if keras.backend.backend() == "tensorflow":
    from spanbert_tf.models.train_step import tensorflow as backend
elif keras.backend.backend() == "jax":
    from spanbert_tf.models.train_step import jax as backend
else:
    from spanbert_tf.models.train_step import plain as backend

TrainStep = backend.TrainStep
wait_until_computed = backend.wait_until_computed
