"""Functions, classes and modules as a node depends on them.

One of the user's counts by its code and by what that reads: defaults, closure, globals and functions
of the user's own modules, and so on. One of a library counts by its name; the version of the library
is noted beside it. A module that is imported inside of a function counts as a whole file, because it may
not be loaded yet, and to load it could do anything.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any

from mvc_data.source import (
    digest_parts,
    list_methods,
    locate_module,
    read_class,
    read_file,
    read_function,
)
from mvc_hooks.installed import OWN_PACKAGES, is_library_class, is_library_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc_data.reading import NodeReading
    from mvc_data.source import Code

_ABSENT = object()
_PYTHONS_OWN = (
    *(FunctionType, staticmethod, classmethod, property, functools.cached_property),
    *(GetSetDescriptorType, MemberDescriptorType),
)
"""What stands in a class and is read as its code, or holds nothing itself."""


def digest_function(reading: NodeReading, function: FunctionType, path: str) -> bytes:
    """Return the digest of a function and of all that it reads from outside."""
    if _is_library_function(function):
        return _digest_wrapper(reading, function, path)
    code = read_function(function)
    reading.note_code(f"{name_module(function.__module__)}.{function.__qualname__}", code.text)
    inner = function.__qualname__.rpartition("<locals>.")[2]
    place = "" if reading.is_outermost else f"{inner}."
    parts = _digest_reads(reading, function, code, place)
    return digest_parts("function", function.__qualname__, code.digest, *parts)


def _digest_reads(
    reading: NodeReading, function: FunctionType, code: Code, place: str
) -> Iterator[bytes]:
    """Yield the digests of what a function reads: globals, defaults, imports, closure, attributes."""
    for chain in code.reads:
        name, value = _follow(function.__globals__, chain)
        if isinstance(value, ModuleType):
            yield digest_parts(name, digest_module(reading, value, name))
        elif value is not _ABSENT:
            yield reading.digest_named(name, value, f"{place}{name}")
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    given = dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))
    for name, value in sorted({**given, **(function.__kwdefaults__ or {})}.items()):
        yield reading.digest_named(name, value, f"{place}{name}")
    for name in code.imports:
        yield _digest_file(reading, name, locate_module(name), name)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    full = {name: cell.cell_contents for name, cell in cells if cell != type(cell)()}
    for name, value in (*full.items(), *sorted(vars(function).items())):
        if not name.startswith("__"):  # the class of a method, or what a decorator wraps
            yield reading.digest_named(name, value, f"{place}{name}")


def _digest_wrapper(reading: NodeReading, function: FunctionType, path: str) -> bytes:
    """Return the digest of a library's function; of one that wraps a function of the user's, with that."""
    wrapped = [getattr(function, name, None) for name in ("__wrapped__", "registry")]
    kinds = (FunctionType, MethodType, MappingProxyType)
    parts = [reading.digest(inner, path) for inner in wrapped if isinstance(inner, kinds)]
    name = _digest_name(reading, function)
    return digest_parts("wrapper", name, *parts) if parts else name


def _follow(scope: dict[str, Any], chain: tuple[str, ...]) -> tuple[str, Any]:
    """Return what a dotted name is, followed through modules of the user's, and as far as which name."""
    value, depth = scope.get(chain[0], _ABSENT), 1
    while depth < len(chain) and isinstance(value, ModuleType) and not _is_library(value):
        inner = vars(value).get(chain[depth], _ABSENT)
        if inner is _ABSENT:
            break
        value, depth = inner, depth + 1
    return ".".join(chain[:depth]), value


def _is_library(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    top = module.__name__.partition(".")[0]
    if top in sys.stdlib_module_names or top in OWN_PACKAGES:
        return True
    return file is not None and is_library_file(file)


def digest_module(reading: NodeReading, module: ModuleType, path: str) -> bytes:
    """Return the digest of a whole module; of a library's, that of its name."""
    place = getattr(module, "__file__", None), _is_library(module)
    return _digest_file(reading, module.__name__, place, path)


def _digest_file(
    reading: NodeReading, name: str, place: tuple[str | None, bool], path: str
) -> bytes:
    """Return the digest of a module by its file; ``path`` stands for what has none.

    ``place`` is its file, and whether it is a library's.
    """
    file, is_library = place
    if is_library:
        reading.note_library(name)
        return digest_parts("library", name)
    code = None if file is None else read_file(file, name.rpartition(".")[0])
    if code is None:
        return digest_parts("module", path)
    reading.note_code(f"{name_module(name)} (file)", code.text)
    return digest_parts("file", code.digest)


def digest_class(reading: NodeReading, kind: type, path: str) -> bytes:
    """Return the digest of a class: its code, its bases, and what its methods read."""
    if is_library_class(kind) or kind.__module__ == "builtins":
        return _digest_name(reading, kind)
    code = read_class(kind)
    parts = [reading.digest(base, f"a base of {kind.__name__}") for base in kind.__bases__]
    if code is not None:
        reading.note_code(f"{name_module(kind.__module__)}.{kind.__qualname__}", code.text)
        parts += [
            code.digest,
            *(_digest_file(reading, name, locate_module(name), name) for name in code.imports),
        ]
    for method in list_methods(kind):
        file, line = method.__code__.co_filename, method.__code__.co_firstlineno
        if code is not None and file == code.file and code.first <= line <= code.last:
            inside = read_function(method)
            parts += _digest_reads(reading, method, inside, f"{kind.__qualname__}.")
        elif not _is_made(kind, method):
            parts.append(reading.digest(method, f"{path}.{method.__name__}"))
    for name, value in _list_class_values(kind):
        parts.append(reading.digest_named(name, value, f"{kind.__qualname__}.{name}"))
    return digest_parts("class", kind.__qualname__, *parts)


def _list_class_values(kind: type) -> list[tuple[str, Any]]:
    """Return what a class holds besides its methods; of an enumeration, the values of its members."""
    if issubclass(kind, enum.Enum):
        return [(name, member.value) for name, member in kind.__members__.items()]
    return [
        (name, value)
        for name, value in sorted(vars(kind).items())
        if not ((name.startswith("__") and name.endswith("__")) or name == "_abc_impl")
        and not isinstance(value, _PYTHONS_OWN)
        and name not in getattr(kind, "_fields", ())
    ]


def _is_made(kind: type, method: FunctionType) -> bool:
    """Return whether a method comes from a library, or was made of the fields by one."""
    inner = inspect.unwrap(method)
    if not isinstance(inner, FunctionType):
        return False
    has_fields = any(name in vars(kind) for name in ("__dataclass_fields__", "_fields"))
    is_text = inner.__code__.co_filename.startswith("<string")
    is_fields = is_text and has_fields and inner.__name__.startswith("__")
    return is_fields or _is_library_function(inner)


def digest_method(reading: NodeReading, method: MethodType, path: str) -> bytes:
    """Return the digest of a method and of the object that it is bound to."""
    owner = reading.digest(method.__self__, f"{path}.__self__".lstrip("."))
    return digest_parts("method", reading.digest(method.__func__, path), owner)


def digest_partial(reading: NodeReading, value: functools.partial[object], path: str) -> bytes:
    """Return the digest of a partial function."""
    given = {str(index): argument for index, argument in enumerate(value.args)} | value.keywords
    parts = [
        reading.digest_named(name, argument, f"{path}.{name}".lstrip("."))
        for name, argument in sorted(given.items())
    ]
    return digest_parts("partial", reading.digest(value.func, path), *parts)


def digest_builtin(reading: NodeReading, value: BuiltinFunctionType, path: str) -> bytes:
    """Return the digest of a function in C, or of such a method with its object."""
    owner = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, (ModuleType, type)):
        return _digest_name(reading, value)
    return digest_parts("bound", value.__name__, reading.digest(owner, path))


def _digest_name(reading: NodeReading, value: Any) -> bytes:
    owner = getattr(value, "__self__", None) or getattr(value, "__objclass__", None)
    module = getattr(value, "__module__", None) or getattr(owner, "__module__", None) or "builtins"
    known = sys.modules.get(module)
    if known is not None and not _is_library(known):  # a library's, which says it is of this module
        return digest_parts("name", value.__qualname__)
    reading.note_library(module)
    return digest_parts("name", module.partition(".")[0], value.__qualname__)


def _is_library_function(function: FunctionType) -> bool:
    file, module = function.__code__.co_filename, sys.modules.get(function.__module__ or "")
    if (function.__module__ or "").partition(".")[0] in OWN_PACKAGES:
        return True
    if not file.startswith("<"):
        return is_library_file(file)
    if file.startswith("<frozen"):
        return True
    return module is not None and function.__module__ != "__main__" and _is_library(module)


def name_module(name: str | None) -> str:
    """Return the name of a module; that of a script by its file, which is what it is if imported."""
    module = sys.modules.get("__main__")
    if name != "__main__" or module is None:
        return name or "?"
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return Path(file).stem if file else name


def find_arguments(function: object) -> tuple[set[str], bool] | None:
    """Return the names that a function can be given, and whether any other; None: it does not say."""
    try:
        given = inspect.signature(function).parameters.values()  # type: ignore[arg-type]  # or TypeError
    except (TypeError, ValueError):
        return None
    named = {arg.name for arg in given if arg.kind in (arg.POSITIONAL_OR_KEYWORD, arg.KEYWORD_ONLY)}
    return named, any(arg.kind is arg.VAR_KEYWORD for arg in given)
