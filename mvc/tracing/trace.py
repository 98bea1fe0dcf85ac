"""A trace of one rank as far as it counts: its steps, computation, collectives, and what mvc itself did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc.tracing.spans import Cover, Spans


@dataclass(frozen=True, slots=True)
class Collective:
    """Something that all ranks did together; ``size_bytes`` is None if the trace does not say it."""

    name: str
    start_s: float
    end_s: float
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """A step: a name and a part of the time."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank did; times are in seconds from the first event.

    Attributes:
        rank: None if the trace does not say it, as ``ranks``, how many there were.
        device: ``gpu`` or ``cpu``.
        own: the ranges of mvc by name, in the thread that trains.
        copies: DistributedDataParallel copying sums back into gradients.
        searches: DistributedDataParallel looking for parameters that got no gradient.
    """

    path: str
    rank: int | None
    ranks: int | None
    device: str
    steps: tuple[Window, ...]
    compute: Cover
    collectives: tuple[Collective, ...]
    own: Mapping[str, Spans]
    copies: Cover
    searches: Cover
