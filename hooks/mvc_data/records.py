"""Records of nodes: what each is made of, and its version.

A version is a hash of the node's own part (code and parameters), of the libraries that it uses, and of
the versions before it: a change shows in the node that was changed and in all after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mvc import UsageError
from mvc_data.kinds import KINDS
from mvc_data.nodes import find_node, get_function, is_node
from mvc_data.objects import list_attributes
from mvc_data.reading import Reading
from mvc_data.spelling import digest_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_DIGITS = 16


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
        reading = Reading(made.name, KINDS, find_node)
        given = {name: reading.show(one, name) for name, one in (made.params or {}).items()}
        parts = [reading.digest_named(name, one, name) for name, one in (made.params or {}).items()]
        inner = get_function(target)
        if made.version is not None:
            given["version"] = made.version
            parts.append(digest_parts("by hand", made.version))
        elif inner is not target and is_node(inner):
            parts.append(reading.digest(inner))
        else:
            found = reading.read(inner)
            parts.append(found)
            if inner is target:
                given = _show_object(reading, inner, found) | given
        return self._join(reading, digest_parts(*sorted(parts)), given, made.inputs)

    def read_used(self, name: str, find_parts: Callable[[Reading], Iterator[bytes]]) -> None:
        """Read what is not a node, by its code, if any of that is the user's own."""
        reading = Reading(name, KINDS, find_node, by_code=True)
        parts = list(find_parts(reading))
        if reading.code:
            own = digest_parts(*parts)
            self.found[name] = self._join(reading, own, {}, (), is_declared=False)

    def _join(
        self,
        reading: Reading,
        own: bytes,
        given: Mapping[str, str],
        inputs: Iterable[object],
        *,
        is_declared: bool = True,
    ) -> NodeRecord:
        names = [self.visit(one) for one in inputs]
        names += sorted({self.visit(one) for one in reading.inputs} - set(names))
        params = {**reading.values, **given}
        own = digest_parts(own, *names)
        before = (self.found[name].version for name in names)
        libraries = dict(sorted(reading.libraries.items()))
        version = digest_parts(own, *map(":".join, libraries.items()), *before)
        return NodeRecord(
            version.hex()[:_DIGITS],
            own.hex()[:_DIGITS],
            names,
            dict(sorted(params.items())),
            dict(sorted(reading.code.items())),
            libraries,
            is_declared,
        )


def _show_object(reading: Reading, value: Any, found: bytes) -> dict[str, str]:
    """Return the attributes of an object as texts; of one that has a kind of its own, a digest."""
    kind = next(number for number, (fits, _) in enumerate(KINDS) if fits(value))
    if kind < len(KINDS) - 1:
        return {"content": f"{type(value).__name__} ({found.hex()[:12]})"}
    return {name: reading.show(one, name) for name, one in (list_attributes(value) or {}).items()}
