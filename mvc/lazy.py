"""Names and modules that are imported on first use, so that start-up pays for what it needs only.

A package's ``__getattr__`` (PEP 562) comes from here. Type checkers do not run it: they see the
imports that the package, or the module that uses it, makes under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a ``__getattr__`` that imports a package's public names on first use.

    ``homes`` are module → the names it defines, separated by spaces.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)  # from now on found without this detour
        return value

    return find


def lazy_modules(package: str) -> Callable[[str], object]:
    """Return a ``__getattr__`` that imports a package's modules on first use."""

    def find(name: str) -> object:
        module = f"{package}.{name}"
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return find
