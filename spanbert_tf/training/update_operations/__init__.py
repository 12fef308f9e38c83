"""Chooses the operations of an update for the backend of Keras.

The other modules of this folder do not ask for the backend. Both have the same functions. On
TensorFlow each replica has its own variables, which are updated in place, and its own gradients,
which must be added up. On other backends a variable is one array on all devices. mypy reads the
types of the first module.
"""

import keras

if keras.backend.backend() == "tensorflow":
    from spanbert_tf.training.update_operations import tensorflow as backend
else:
    from spanbert_tf.training.update_operations import plain as backend  # type: ignore[no-redef]

HAS_ALL_REDUCE = backend.HAS_ALL_REDUCE
apply_adam = backend.apply_adam
assign = backend.assign
multiply_no_nan = backend.multiply_no_nan
of_first_replica = backend.of_first_replica
sum_of_squares = backend.sum_of_squares
sum_over_replicas = backend.sum_over_replicas
