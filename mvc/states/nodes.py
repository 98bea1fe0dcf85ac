"""Tagged objects of ``state.json``, read with suspicion field by field."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Any, TypeAlias

from mvc.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

Node: TypeAlias = dict[str, Any]
"""A JSON object whose key ``$`` says what it is."""

MAX_DEPTH = 64
"""Containers within each other, far below where Python's own stack would end."""

MAX_SKEW = 16
"""Elements are at most that wide, so a storage never has to begin that many bytes later."""

FACTORIES: dict[str, Callable[[], object]] = {
    factory.__name__: factory
    for factory in (
        *(bool, int, float, complex, str, bytes, bytearray),
        *(list, tuple, dict, set, frozenset, deque, Counter, OrderedDict),
    )
}
"""What a defaultdict may make its values with."""


def get_field(node: Node, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return a field of a tagged object.

    Raises:
        FormatError: missing, or of another type.
    """
    value = node.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise FormatError(f"state.json has a {str(node.get('$'))[:40]!r} with no valid {name!r}")
    return value


def check_fields(node: Node, *names: str) -> None:
    """Check that a tagged object has no field but these.

    Raises:
        FormatError: it has.
    """
    for name in node:
        if name != "$" and name not in names:
            raise FormatError(
                f"state.json has a {str(node.get('$'))[:40]!r} with the unknown field {name[:40]!r}"
            )


def get_dims(node: Node, name: str) -> tuple[int, ...]:
    """Return a list of integers that fit 64 bits as a tuple.

    Raises:
        FormatError: anything else.
    """
    dims = get_field(node, name, list)
    if any(type(dim) is not int or not -(2**63) <= dim < 2**63 for dim in dims):
        raise FormatError(f"state.json has a {name!r} that is not a list of integers")
    return tuple(dims)
