"""What a state may not hold, said with the path of the offender and a way out."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.errors import UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodWrapperType,
    functools.partial,
)
_PLAIN_BASES = (
    OrderedDict,
    dict,
    list,
    tuple,
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    set,
    frozenset,
    deque,
)
_PLAIN_DATA = "turn it into numbers, strings, lists, dicts or arrays"


class Attribute(str):
    """A step of a path that is an attribute, not a key."""

    __slots__ = ()


def format_path(steps: Sequence[object]) -> str:
    """Return a path as one would type it: ``state["optimizer"]["param_groups"][0]``."""
    parts = ["state"]
    for step in steps:
        if isinstance(step, Attribute):
            parts.append(f".{step}")
        elif type(step) is str:
            parts.append(f"[{json.dumps(step)}]")
        else:
            parts.append(f"[{step!r}]")
    return "".join(parts)


def refusal(value: object, steps: Sequence[object]) -> UnsupportedError:
    """Return the error for a value that cannot be stored."""
    what, hint = _describe(value)
    return UnsupportedError(f"{format_path(steps)} is {what}; mvc stores only data", hint=hint)


def _describe(value: object) -> tuple[str, str]:
    if isinstance(value, _FUNCTIONS):
        return "a function", "leave it out and set it again after loading"
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__}", "leave it out"
    if isinstance(value, type):
        return f"the class {_name(value)}", "store its name as a string"
    name = _name(type(value))
    if isinstance(value, (np.ndarray, np.generic)):
        return _describe_numpy(value, name)
    return _describe_declared(value, name) or _describe_object(value, name)


def _describe_declared(value: object, name: str) -> tuple[str, str] | None:
    if isinstance(value, enum.Enum):
        return f"an enum member of type {name}", "store its .value or .name"
    if isinstance(value, tuple) and hasattr(type(value), "_fields"):
        return f"a named tuple of type {name}", "store it as value._asdict() or tuple(value)"
    if dataclasses.is_dataclass(value):
        return f"a dataclass of type {name}", "store dataclasses.asdict(value)"
    if isinstance(value, Iterator):
        return f"an iterator of type {name}", "store a list, or the position it has reached"
    return None


def _describe_numpy(value: NDArray[Any] | np.generic, name: str) -> tuple[str, str]:
    if type(value) not in (np.ndarray, value.dtype.type):
        return f"an array of the subclass {name}", "pass numpy.asarray(value)"
    if value.dtype.names is not None:
        return "a structured array", "store each field as a separate array"
    return f"an array of dtype {value.dtype}", _PLAIN_DATA


def _describe_object(value: object, name: str) -> tuple[str, str]:
    what = f"an object of type {name}"
    for base in _PLAIN_BASES:
        if isinstance(value, base):
            return f"{what}, a subclass of {base.__name__}", f"pass {base.__name__}(value)"
    if callable(getattr(type(value), "state_dict", None)):
        return what, "pass its state_dict()"
    if name.startswith("numpy.random."):
        return what, "pass generator.bit_generator.state or RandomState.get_state()"
    if callable(getattr(type(value), "get_state", None)):
        return what, "pass its get_state()"
    return what, _PLAIN_DATA


def _name(cls: type) -> str:
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
