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


def lazy_names(
    package: str, homes: Mapping[str, str], *, needs: str | None = None
) -> tuple[Callable[[str], object], list[str]]:
    """Return the ``__getattr__`` and ``__all__`` of a package whose names are imported on first use.

    ``homes`` are module → the names it defines, separated by spaces; ``needs`` is the extra, and the
    library of the same name, without which the package cannot be used.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def find(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(home_of[name])
        except ModuleNotFoundError as error:
            if needs is None or error.name != needs:
                raise
            install = f"pip install 'mvc-models[{needs}]'"
            raise ImportError(f"{package} needs {needs}: {install}") from error
        value: object = getattr(module, name)
        setattr(sys.modules[package], name, value)  # from now on found without this detour
        return value

    return find, sorted(home_of)


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


def lazy_class(base: type, home: str, names: str) -> type:
    """Return a subclass whose methods are imported from another of that base, ``home``, on first use.

    ``home`` is ``package.module.Class``, ``names`` its methods, separated by spaces.
    """
    return type(home, (base,), {name: _LazyMethod(home) for name in names.split()})


class _LazyMethod:
    """Takes the place of a method, on the class that it is in, until it is asked for."""

    def __init__(self, home: str) -> None:
        self._home = home

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, owner: type) -> object:
        module, _, kind = self._home.rpartition(".")
        method = vars(getattr(import_module(module), kind))[self._name]
        setattr(self._owner, self._name, method)
        bound: object = method.__get__(instance, owner)  # not by name: that may be a subclass's own
        return bound
