"""What a report is made of: tables and targets."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table; the first row holds the column names."""

    title: str
    rows: list[list[str]]


@dataclass(frozen=True, slots=True)
class Target:
    """One promise about speed or size, and what was measured."""

    name: str
    limit: float
    measured: float | None
    unit: str = ""

    @property
    def verdict(self) -> str:
        """Whether it is kept."""
        if self.measured is None:
            return "not measured"
        return "met" if self.measured <= self.limit else "MISSED"
