"""How far a run has come, and which batches it passes over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from mvc import FormatError


@dataclass(slots=True)
class Counters:
    """How far the run has come.

    ``batches`` were drawn, skipped ones included. ``left_out`` are batches to skip whenever they
    come: first and last of each run of them, counted from 1, in order.
    """

    step: int = 0
    tokens: int = 0
    samples: int = 0
    batches: int = 0
    left_out: list[list[int]] = field(default_factory=list)

    @classmethod
    def parse(cls, state: object) -> Counters:
        """Return stored counters."""
        names = [item.name for item in fields(cls) if item.name != "left_out"]
        if not isinstance(state, Mapping) or not all(
            type(state.get(name)) is int for name in names
        ):
            raise FormatError("the commit has no counters of a run")
        windows = state.get("left_out")
        if not isinstance(windows, list) or not all(map(_is_window, windows)):
            raise FormatError("the commit does not say which batches to skip")
        return cls(**{name: state[name] for name in names}, left_out=windows)

    def leave_out(self, windows: Iterable[Sequence[int]]) -> None:
        """Add runs of batches to skip; those that touch are joined."""
        joined: list[list[int]] = []
        for first, last in sorted([*map(tuple, self.left_out), *map(tuple, windows)]):
            if joined and first <= joined[-1][1] + 1:
                joined[-1][1] = max(joined[-1][1], last)
            else:
                joined.append([first, last])
        self.left_out = joined

    def last_left_out(self, batch: int) -> int | None:
        """Return the last batch of the run of skipped ones that this one is in, or None."""
        return next((last for first, last in self.left_out if first <= batch <= last), None)


def _is_window(value: object) -> bool:
    return (
        isinstance(value, list)
        and [type(number) for number in value] == [int, int]
        and 1 <= value[0] <= value[1]
    )
