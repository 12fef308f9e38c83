"""Chooses the fastest implementation of operations for the backend of Keras.

The operations are those of a transformer layer, the logits and losses of a vocabulary, and zeros
for weights that will be loaded. The modules `tensorflow`, `jax` and `plain` have the same
functions, which `plain` documents; they do not ask for the backend. mypy reads the types of the
first module.
"""

import keras

if keras.backend.backend() == "tensorflow":
    from spanbert_tf.layers.operations import tensorflow as backend
elif keras.backend.backend() == "jax":
    from spanbert_tf.layers.operations import jax as backend  # type: ignore[no-redef]
else:
    from spanbert_tf.layers.operations import plain as backend  # type: ignore[no-redef]

apply_dropout = backend.apply_dropout
attention = backend.attention
call_in_training = backend.call_in_training
dense_gelu = backend.dense_gelu
fused_projection = backend.fused_projection
kernel_seed = backend.kernel_seed
placeholder_zeros = backend.placeholder_zeros
project_and_normalize = backend.project_and_normalize
tied_logits = backend.tied_logits
vocabulary_crossentropy = backend.vocabulary_crossentropy
