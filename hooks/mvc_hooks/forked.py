"""What a forked child of the training must not keep.

Data loaders fork their workers, and a child inherits every descriptor. A worker that outlives the
run with the branch's lock, the writer's channel or a snapshot's memory would keep the branch locked,
the writer waiting and the memory taken.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Something with a descriptor."""

    def drop_in_child(self) -> None:
        """Close it in a forked child, without telling the other side."""
        ...


_held: weakref.WeakSet[Inherited] = weakref.WeakSet()


def keep_from_children(thing: Inherited) -> None:
    """Have a thing dropped in every child that is forked while it exists."""
    _held.add(thing)


def _drop_all() -> None:
    for thing in list(_held):
        thing.drop_in_child()
    _held.clear()


os.register_at_fork(after_in_child=_drop_all)
