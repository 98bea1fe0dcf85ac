"""Names and modules that are imported on first use, so that start-up pays for what it needs only.

A package's ``__getattr__`` (PEP 562) comes from here. Type checkers do not run it: they see the
imports that the package, or the module that uses it, makes under ``TYPE_CHECKING``. So do the
methods of ``Repo``, each of which stands for an operation.
"""

from __future__ import annotations

import sys
from functools import update_wrapper
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


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

    own = vars(sys.modules[package])
    own["__dir__"] = lambda: sorted(
        {*own, *home_of}
    )  # so that completion offers what is not loaded
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


class HasContext(Protocol):
    """Anything that verbs may stand in."""

    _context: Any


class verb(Generic[P, R_co]):  # noqa: N801  reads as the decorators that it stands beside, property and classmethod
    """A method that calls an operation with the context of its object.

        push = verb(lambda: operations.push.push)

    The operation is looked up when the method is first asked for, so that a command imports only what
    it runs. From then on an ordinary method is in its place, with the operation's documentation and
    signature.
    """

    def __init__(self, find: Callable[[], Callable[Concatenate[Any, P], R_co]]) -> None:
        self._find = find

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], R_co]: ...
    @overload
    def __get__(self, instance: HasContext, owner: type) -> Callable[P, R_co]: ...

    def __get__(self, instance: HasContext | None, owner: type) -> Any:
        import inspect  # noqa: PLC0415  takes longer than everything else here

        operation = self._find()

        def method(self: HasContext, /, *args: P.args, **options: P.kwargs) -> R_co:
            return operation(self._context, *args, **options)

        signature = inspect.signature(operation)
        first, *others = signature.parameters.values()
        itself = first.replace(name="self", annotation=inspect.Parameter.empty)
        update_wrapper(method, operation)
        method.__name__ = self._name
        method.__qualname__ = f"{self._owner.__qualname__}.{self._name}"
        method.__module__ = self._owner.__module__
        method.__signature__ = signature.replace(parameters=[itself, *others])  # type: ignore[attr-defined]
        del method.__wrapped__  # type: ignore[attr-defined]  # else tools show the operation instead
        setattr(self._owner, self._name, method)
        # Not by name: a subclass may have its own method of this name, which calls this one.
        return method.__get__(instance, owner)
