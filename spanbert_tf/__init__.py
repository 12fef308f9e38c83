"""SpanBERT and SegaBERT in TensorFlow and Keras.

Importing this package is fast: its submodules are imported on first use.
"""

import os
from typing import TYPE_CHECKING

from spanbert_tf.lazy import lazy_names
from spanbert_tf.temporary import use_private_directory

# Hides the log in which TensorFlow and XLA describe the machine on first use. To see it, set
# TF_CPP_MIN_LOG_LEVEL=0 in the environment.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Must come before TensorFlow imports code from the temporary directory that all users share.
use_private_directory()

__version__ = "0.2.0"

_SUBMODULES = (
    "config",
    "conversion",
    "data",
    "errors",
    "layers",
    "masking",
    "models",
    "presets",
    "serving",
    "tasks",
    "training",
)
if TYPE_CHECKING:
    from spanbert_tf.tasks.prediction import Predictor


def predictor(preset: str | os.PathLike, precision: str = "float32") -> "Predictor":
    """Makes a predictor, which takes raw inputs and returns predictions.

    The predictions have the form of the `transformers` pipeline of the preset's task.

    Args:
        preset: name of the preset of a fine-tuned model, or of a pre-trained one, which fills in
            masks; or the directory of an export of one.
        precision: `"float32"`, `"bfloat16"`, or `"auto"` for the fastest precision of this
            machine's devices.

    Raises:
        BadInputError: the preset cannot be used, or has no trained head.

    Example:
    ```python
    answer = spanbert_tf.predictor("runs/squad/preset")
    answer([{"question": "Who sat?", "context": "The cat sat on the mat."}])
    ```
    """
    from spanbert_tf.tasks.prediction import Predictor

    return Predictor(preset, precision)


__getattr__, __dir__ = lazy_names(globals(), {name: f"{__name__}.{name}" for name in _SUBMODULES})
