"""The operations of an update, as each backend of Keras has them; it is asked for here, once.

The modules have the same functions. On TensorFlow each replica has variables of its own, which are
updated in place, and gradients that are still to be added up. Elsewhere a variable is one array,
whatever the number of devices.
"""

import keras

if keras.backend.backend() == "tensorflow":
    from spanbert_tf.training.update_operations import tensorflow as backend
else:
    from spanbert_tf.training.update_operations import plain as backend

HAS_ALL_REDUCE = backend.HAS_ALL_REDUCE
apply_adam = backend.apply_adam
assign = backend.assign
multiply_no_nan = backend.multiply_no_nan
of_first_replica = backend.of_first_replica
sum_of_squares = backend.sum_of_squares
sum_over_replicas = backend.sum_over_replicas
