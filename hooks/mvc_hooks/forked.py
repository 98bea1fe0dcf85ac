"""What a forked child of the training must not keep.

Data loaders fork their workers, and a child inherits every descriptor. One that keeps the branch's
lock, the writer's channel or a snapshot's memory keeps them for the run: the lock would not be
free when the run is over, and the writer would not see its end.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Something with a descriptor."""

    def drop_in_child(self) -> None:
        """Let go of it in a forked child, without a word to the other side."""
        ...


_held: weakref.WeakSet[Inherited] = weakref.WeakSet()


def keep_from_children(thing: Inherited) -> None:
    """Have a thing dropped in every child that is forked from now on, as long as it exists."""
    _held.add(thing)


def _drop_all() -> None:
    for thing in list(_held):
        thing.drop_in_child()
    _held.clear()


os.register_at_fork(after_in_child=_drop_all)
