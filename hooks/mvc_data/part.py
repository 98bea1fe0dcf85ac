"""A ConsistentDataLoader as a part of a run: one position, the same on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.tree import Difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mvc_hooks.parts.tree import Steps


class OrderPart(DataPart):
    """Its position is computed: nothing is drawn again, and it can always go back."""

    is_shared = True
    skips_unread = True

    def __init__(self, name: str, loader: Any) -> None:
        self.name, self.loader = name, loader
        self._drawing_from: Any = None

    def next_batch(self) -> Any:
        """Return the next batch, going on to the next epoch when one is over."""
        for _ in range(2):
            if self._drawing_from is None:
                self._drawing_from = iter(self.loader)
            try:
                return next(self._drawing_from)
            except StopIteration:
                self._drawing_from = None
                if not self.is_endless:
                    raise
        raise self.empty_error()

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """Passes that are complete."""
        return int(self.loader.epoch)

    @property
    def batches_drawn(self) -> int:  # type: ignore[override]
        """Global batches that were handed out whole, whatever iterates the loader."""
        return int(self.loader.batches_drawn)

    @property
    def iterator(self) -> object:
        """The iterator of the loader that is at work, or None."""
        return self.loader.iterator

    @property
    def position(self) -> str:
        """How the position comes back."""
        return "exact"

    @property
    def can_rewind(self) -> bool:
        """Whether the run can go back: always, a live iterator goes along."""
        return True

    def leave_out(self, first: int, last: int, reason: str) -> None:
        """Leave out batches, counted from 1, that are yet to come."""
        after = first - 1 - self.batches_drawn
        self.loader.skip_batches(last - first + 1, reason=reason, after=after)

    def describe(self) -> dict[str, dict[str, object]]:
        """Return what its batches depend on besides the plan."""
        return {self.name: {"num_workers": self.loader.num_workers}}

    def generators(self) -> Mapping[str, object]:  # type: ignore[override]
        """Return none: those of samples are seeded for each."""
        return {}

    def remove(self) -> None:
        """Do nothing: nothing is watched."""

    def check_known(self) -> None:
        """Do nothing: the loader knows its position."""

    def check_drawn(self) -> None:
        """Do nothing: the loader counts what it hands out."""

    def capture(self) -> dict[str, object]:
        """Return the loader's state."""
        state: dict[str, object] = self.loader.state_dict()
        return state

    def restore(self, stored: Any) -> None:
        """Go to a stored position."""
        self.loader.load_state_dict(stored)

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare the plans, field by field."""
        plan = stored.get("plan") if isinstance(stored, dict) else None
        if not isinstance(plan, dict):
            yield Difference(path, "a ConsistentDataLoader", "another loader")
            return
        for name, value in live["plan"].items():
            if plan.get(name) != value:
                yield Difference((*path, "plan", name), repr(value), repr(plan.get(name)))
