"""The base class that mypy sees for the mixins of Keras' models; at run time it is `object`.

A mixin calls methods of the Keras class beside which it is named, such as `super().compile`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras import Model as MixinBase
else:
    MixinBase = object
