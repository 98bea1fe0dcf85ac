"""What legally differs: buffers that each rank's batches change, state that an optimizer keeps for one rank.

The first two steps of a process are for learning. What differs at one of them is the rank's own and is not
compared from then on. What was the same at both and changed in between is shared: a later difference is an
alarm. What was the same and did not change, as while a module is frozen, stays open until it changes: then
it is a rank's own if it changed on *all* ranks and differs. A change on one rank alone is an alarm always.
Parameters are never a rank's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOKS = 2


@dataclass(slots=True)
class Learned:
    """What is known of tensors that are no parameters, alike on all ranks.

    Attributes:
        own: names of what may differ from rank to rank.
        shared: names of what must not.
    """

    own: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    _last: dict[str, bytes] = field(default_factory=dict)

    def note_same(self, name: str, mine: bytes) -> None:
        """Note that a tensor is the same on all ranks that hold it."""
        if self._last.get(name, mine) != mine and name not in self.own:
            self.shared.add(name)
        self._last[name] = mine

    def has_changed(self, name: str, mine: bytes) -> bool:
        """Return whether a tensor changed on this rank since it was last the same on all."""
        return self._last.get(name, mine) != mine

    def is_own(self, name: str, changed: Sequence[bool]) -> bool:
        """Return whether a tensor that differs is a rank's own, and learn it.

        ``changed`` says for each rank that holds it whether it changed since it was the same; that it is not
        shared is known.
        """
        if all(changed):
            self.own.add(name)
        return name in self.own

    def forget(self) -> None:
        """Forget how tensors looked last, as after they were restored."""
        self._last.clear()
