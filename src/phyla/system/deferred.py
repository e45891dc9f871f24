"""Lazy imports: names of a package that are imported at first use, so that unused modules cost no time."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def deferred(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names are in these modules (PEP 562).

    Args:
        package: its name.
        modules: modules, and the names that each has, separated by blanks.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return get
