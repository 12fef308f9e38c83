"""What is imported when it is asked for, so that a command starts as fast as what it needs.

A place is `"package.module:attribute"`, or a module alone.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def load(place: str) -> Any:
    """The module, or its attribute, imported now.

    Raises:
        ImportError: there is no such module.
        AttributeError: it has no such attribute.
    """
    module, _, attribute = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def lazy_names(
    package: Mapping[str, Any], places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that offers names of its modules.

    Args:
        package: `globals()` of the package.
        places: name → place.
    """

    def get(name: str) -> Any:
        if name in places:
            return load(places[name])
        raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")

    return get, lambda: sorted({*package, *places})
