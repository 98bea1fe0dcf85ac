"""``node``: a step of the data pipeline that has a version.

A node stays what it wraps. A function becomes a callable that passes the node's parameters on, so what
is recorded is what runs; any other object stays itself, with a mark. What a node depends on is read
when a run begins, not when it is made: at that moment the functions below it are not yet defined.

A version is a hash of the node's own part (code and parameters), of the libraries that it uses, and of
the versions before it: a change shows in the node that was changed and in all after it.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from mvc import UsageError
from mvc_data.functions import find_arguments
from mvc_data.reading import File, NodeReading
from mvc_data.source import digest_parts
from mvc_data.values import KINDS, MARK, digest_file, list_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_Target = TypeVar("_Target")
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, functools.partial)
_PLAIN = (str, bytes, int, float, type(None))
_MOST_NAME = 200
_DIGITS = 16
_marked: dict[int, tuple[object, Node]] = {}


@dataclass(frozen=True, slots=True)
class Node:
    """That something is a node: its name, its inputs, and what was said about it."""

    name: str
    # What it takes, in order: nodes themselves, as they were passed.
    inputs: tuple[object, ...] = ()
    params: Mapping[str, object] | None = None  # parameters, by name
    version: str | None = None  # what counts instead of code and content, if it was given by hand

    def __reduce__(self) -> Any:
        """Leave the inputs behind: a worker needs none."""
        return Node, (self.name, (), self.params, self.version)

    def __deepcopy__(self, _: object) -> Node:
        """Return itself: it does not change."""
        return self


class FunctionNode:
    """A function that is a node; it is called, pickled and bound to objects as the function is."""

    def __init__(self, function: Callable[..., Any], made: Node) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", made.name)
        self._function, self._node = function, made
        self._params = dict(made.params or {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, with the node's parameters where the call gives none."""
        if self._params:
            kwargs = {**self._params, **kwargs}
        return self._function(*args, **kwargs)

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        """Return the method that it is, if it stands in a class."""
        return self if owner is None else MethodType(self, owner)

    def __reduce__(self) -> Any:
        """Be pickled by name if that is what the name stands for, as a function is."""
        name = getattr(self, "__qualname__", "")
        known: object = sys.modules.get(self.__module__)
        for part in name.split("."):
            known = getattr(known, part, None)
        return name if known is self else (FunctionNode, (self._function, self._node))

    def __repr__(self) -> str:
        """Return what it is a node of."""
        return f"<node {self._node.name!r} of {self._function!r}>"


@overload
def node(
    target: None = None,
    *inputs: object,
    name: str | None = None,
    version: str | None = None,
    **params: object,
) -> Callable[[Callable[..., Any]], FunctionNode]: ...
@overload
def node(
    target: _Target,
    *inputs: object,
    name: str | None = None,
    version: str | None = None,
    **params: object,
) -> _Target: ...


def node(
    target: Any = None,
    *inputs: object,
    name: str | None = None,
    version: str | None = None,
    **params: object,
) -> Any:
    """Make a step of the data pipeline a node, whose version the commits of a run record.

    It decorates a function, ``@node`` or ``@node(lang="en")``, or wraps anything else: a tokenizer, a
    dataset, a node of torchdata, a data module. What it returns is used as what it wraps.

    Args:
        target: what to wrap.
        *inputs: what comes before it; whatever is not a node yet becomes one. Nodes that the target
            uses by itself (calls, holds in an attribute) are its inputs anyway.
        name: how commits name it; defaults to the name of the function or class.
        version: counts instead of code and content, for what cannot be read.
        **params: parameters. A function gets them at each call; of an object they are recorded.

    Raises:
        UsageError: a function that does not take such a parameter, a class instead of an object, or
            a name that cannot be one.
    """
    if target is None and not inputs:
        return functools.partial(node, name=name, version=version, **params)
    _check_target(target)
    chosen = _name(target) if name is None else name
    _check_text("name", chosen, "tokenize")
    if version is not None:
        _check_text("version", version, "3")
    taken = tuple(before if is_node(before) else node(before) for before in inputs)
    made = Node(chosen, taken, params or None, version)
    if _is_function(target):
        _check_params(target, params)
        return FunctionNode(target, made)
    held = getattr(target, "__dict__", None)
    if isinstance(held, dict):
        held[MARK] = made  # past a __setattr__ that means something else
    else:
        _marked[id(target)] = (target, made)
    return target


def file(path: str | os.PathLike[str]) -> str:
    """Return a path as a string, which counts by the content of its file, wherever that lies.

    Raises:
        UsageError: there is no such file, or it cannot be read.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise UsageError(f"{path!r} is not the path of a file")
    with_content = File(text)
    if not os.path.isfile(text):
        digest_file(text)  # says what is wrong
    return with_content


def find_node(value: object) -> Node | None:
    """Return what makes a value a node, or None."""
    if type(value) is FunctionNode:
        return value._node  # noqa: SLF001  the same module
    if isinstance(value, MethodType):
        return None
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict) and isinstance(held.get(MARK), Node):
        return held[MARK]  # type: ignore[no-any-return]  # it was looked at
    known = _marked.get(id(value))
    return known[1] if known is not None and known[0] is value else None


def is_node(value: object) -> bool:
    """Return whether a value is a node."""
    return find_node(value) is not None


def get_function(value: object) -> object:
    """Return the function that a node calls; of anything else, itself."""
    return value._function if type(value) is FunctionNode else value  # noqa: SLF001  the same module


def _check_target(target: object) -> None:
    if isinstance(target, type):
        raise UsageError(
            f"{target.__name__} is a class, not a step of a pipeline",
            hint=f"wrap an object of it: node({target.__name__}(...))",
        )
    if isinstance(target, _PLAIN):
        hint = f"@node(name={target!r}) names a node" if isinstance(target, str) else None
        raise UsageError(f"{target!r} is not a step of a pipeline", hint=hint)
    if isinstance(target, GeneratorType):
        raise UsageError(
            f"{target.__name__} is a generator that has begun, and cannot begin again",
            hint="wrap the function that makes it",
        )


def _check_text(what: str, text: object, example: str) -> None:
    is_text = isinstance(text, str) and 0 < len(text) <= _MOST_NAME and text.isprintable()
    if not is_text or text.strip() != text:  # type: ignore[attr-defined]  # a string
        raise UsageError(
            f"{what} of a node is {text!r:.80}, not a short text", hint=f'{what}="{example}"'
        )


def _check_params(function: object, params: Mapping[str, object]) -> None:
    known, takes_any = (find_arguments(function) if params else None) or (set[str](), True)
    for name in () if takes_any else params:
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise UsageError(
                f"{_name(function)}() takes no parameter {name!r}",
                hint=f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}",
            )


def _is_function(target: object) -> bool:
    """Return whether something is called by a name; a mark on it would be seen by all who use it."""
    if isinstance(target, (*_FUNCTIONS, FunctionNode)):
        return True
    return callable(target) and isinstance(getattr(target, "__name__", None), str)


def _name(target: Any) -> str:
    """Return the name of a function without what surrounds it, or that of an object's class."""
    while isinstance(target, functools.partial):
        target = target.func
    if _is_function(target):
        return str(getattr(target, "__name__", "function")).strip("<>")
    return type(target).__name__


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node as a commit records it.

    Attributes:
        version: changes with anything that the node depends on.
        own: the version of its own part alone.
        inputs: names of the nodes before it.
        params: parameters, and values that its code reads: name → short text.
        code: name → source of functions and classes.
        libraries: name → version.
        is_declared: whether it is a node, not just something that a loader uses.
    """

    version: str
    own: str
    inputs: list[str] = field(default_factory=list)
    params: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    is_declared: bool = True


class Records:
    """The nodes that were read, by name, each after its inputs."""

    def __init__(self) -> None:
        self.found: dict[str, NodeRecord] = {}
        self._targets: dict[str, object] = {}
        self._above: list[str] = []

    def visit(self, target: Any) -> str:
        """Read a node and all before it; return its name."""
        made = find_node(target)
        name = made.name  # type: ignore[union-attr]  # it is a node
        if name in self._above:
            circle = " -> ".join([*self._above[self._above.index(name) :], name])
            raise UsageError(f"node {name!r} comes before itself: {circle}")
        known = self._targets.get(name)
        if known is target:
            return name
        self._above.append(name)
        record = self._read(made, target)
        self._above.pop()
        if known is not None and self.found[name].version != record.version:
            raise UsageError(
                f"two nodes have the name {name!r}", hint=f'node(..., name="{name}-2") names one'
            )
        self._targets[name], self.found[name] = target, record
        return name

    def _read(self, made: Any, target: Any) -> NodeRecord:
        reading = NodeReading(made.name, KINDS, find_node)
        params = (made.params or {}).items()
        given = {name: reading.show(value, name) for name, value in params}
        parts = [reading.digest_named(name, value, name) for name, value in params]
        inner = get_function(target)
        if made.version is not None:
            given["version"] = made.version
            parts.append(digest_parts("by hand", made.version))
        elif inner is not target and is_node(inner):
            parts.append(reading.digest(inner))
        else:
            digest = reading.read(inner)
            parts.append(digest)
            is_special = any(fits(inner) for fits, _ in KINDS[:-1])
            if inner is target and is_special:  # which is shown as a whole
                given = {"content": f"{type(inner).__name__} ({digest.hex()[:12]})"} | given
            elif inner is target:
                held = (list_attributes(inner) or {}).items()
                given = {name: reading.show(value, name) for name, value in held} | given
        return self._join(reading, digest_parts(*sorted(parts)), given, made.inputs)

    def read_used(self, name: str, find_parts: Callable[[NodeReading], Iterator[bytes]]) -> None:
        """Read what is not a node, by its code, if any of that is the user's own."""
        reading = NodeReading(name, KINDS, find_node, by_code=True)
        parts = list(find_parts(reading))
        if reading.code:
            own = digest_parts(*parts)
            self.found[name] = self._join(reading, own, {}, (), is_declared=False)

    def _join(
        self,
        reading: NodeReading,
        own: bytes,
        given: Mapping[str, str],
        inputs: Iterable[object],
        *,
        is_declared: bool = True,
    ) -> NodeRecord:
        names = [self.visit(before) for before in inputs]
        names += sorted({self.visit(before) for before in reading.inputs} - set(names))
        params = {**reading.values, **given}
        own = digest_parts(own, *names)
        versions = (self.found[name].version for name in names)
        libraries = dict(sorted(reading.libraries.items()))
        version = digest_parts(own, *map(":".join, libraries.items()), *versions)
        return NodeRecord(
            version.hex()[:_DIGITS],
            own.hex()[:_DIGITS],
            names,
            dict(sorted(params.items())),
            dict(sorted(reading.code.items())),
            libraries,
            is_declared,
        )
