"""How loaders of data are timed: by turns, whole passes or up to the first batch."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.stopwatch import Round, take_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BATCH = 64
OURS, PLAIN = "mvc", "torch's DataLoader"

T = TypeVar("T")


def take_turns(timers: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Return what each timer says in each round; every second round goes backwards."""
    found: dict[str, list[T]] = {name: [] for name in timers}
    for number in range(rounds):
        for name in list(timers)[:: -1 if number % 2 else 1]:
            found[name].append(timers[name]())
    return found


def time_pass(make: Callable[[], Any], samples: int) -> Round:
    """Make a loader and draw all that it has, which are so many samples."""

    def draw() -> None:
        count = sum(len(batch) for batch in make())
        assert count == samples, f"{count} samples of {samples}"

    return take_time(draw, synced=False)


def time_first(
    make: Callable[[], Any], *, state: Any = None, drop: int = 0, expected: Any = None
) -> float:
    """Return the seconds from making a loader until a batch is there; ending its workers is not timed.

    Args:
        make: makes the loader.
        state: what it is to load before.
        drop: batches to draw and drop before.
        expected: what the batch must be equal to, or None.
    """
    began = time.perf_counter()
    loader = make()
    if state is not None:
        loader.load_state_dict(state)
    batches = iter(loader)
    batch = next(islice(batches, drop, None))
    seconds = time.perf_counter() - began
    assert expected is None or batch.equal(expected), "another batch than without a break"
    return seconds
