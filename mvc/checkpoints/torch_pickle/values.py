"""What a pickle's bytes can turn into here: values that hold other values and can do nothing.

Besides these, a decoded pickle holds only None, bool, int, float, str, bytes, tuple and list.
Sets become lists, and mappings become ``Pairs``: no key from a file is ever hashed or compared,
so keys chosen to collide cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or function; never looked up.

    Attributes:
        path: module and name joined by a dot.
    """

    path: str


class Pairs(list[object]):
    """A mapping as a flat list: key, value, key, value; a key may come twice."""

    __slots__ = ()

    def items_in_order(self) -> Iterator[tuple[object, object]]:
        """Yield (key, value) as the pickle set them."""
        values = iter(self)
        return zip(values, values, strict=False)


@dataclass(slots=True, eq=False)
class Opaque:
    """An object that nobody builds: what it would be made of, kept so that it can be searched.

    Attributes:
        maker: what was to be called: a Global, or whatever the pickle put there.
        args: the arguments of the call.
        states: what was to be its attributes, one value per BUILD.
        members: what was appended to it.
        pairs: what was set by key in it.
    """

    maker: object
    args: object = None
    states: list[object] | None = None
    members: list[object] | None = None
    pairs: Pairs | None = None


class Omitted:
    """Stands for a string, bytes or number too long to matter for naming; see ``OMITTED``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "OMITTED"


OMITTED = Omitted()
