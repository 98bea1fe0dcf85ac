"""How loaders of data are timed: by turns, whole passes or up to the first batch."""

from __future__ import annotations

import resource
import time
from functools import partial
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


def measure_passes(
    ways: Mapping[str, Callable[[], Any]], samples: int, rounds: int
) -> dict[str, Any]:
    """Return time and processor time of whole passes, which hand out so many samples."""
    timers = {name: partial(_time_pass, make, samples) for name, make in ways.items()}
    found = take_turns(timers, rounds)
    return {
        "samples": samples,
        "times": {name: [one for one, _ in passes] for name, passes in found.items()},
        "cpu_s": {name: [cpu_s for _, cpu_s in passes] for name, passes in found.items()},
    }


def _time_pass(make: Callable[[], Any], samples: int) -> tuple[Round, float]:
    def draw() -> None:
        count = sum(len(batch) for batch in make())
        assert count == samples, f"{count} samples of {samples}"

    before_s = _used_s()  # with the workers, which end within the pass
    taken = take_time(draw, synced=False)
    return taken, _used_s() - before_s


def _used_s() -> float:
    """Return the processor time of this process and of those that it ended, to microseconds."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


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
