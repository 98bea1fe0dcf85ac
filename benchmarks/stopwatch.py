"""Time of work inside a process, and how undisturbed it was."""

from __future__ import annotations

import os
import time
from statistics import median
from typing import TYPE_CHECKING

from benchmarks import launch
from benchmarks.children import QUIET_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Round = tuple[float, float]
"""Seconds, and the share of the cores that went elsewhere meanwhile."""


def take_time(action: Callable[[], object], *, patience_s: float = 0, synced: bool = True) -> Round:
    """Run an action and return what it took.

    Args:
        action: what is measured.
        patience_s: how long to wait before for the machine to be idle.
        synced: write dirty pages to the disk first, so that only the command's own bytes count.
    """
    if synced:
        os.sync()
    launch.wait_until_quiet(patience_s)
    busy, total = launch.read_processor()
    own, began = launch.own_seconds(), time.perf_counter()
    action()
    seconds, own = time.perf_counter() - began, launch.own_seconds() - own
    busy_after, total_after = launch.read_processor()
    return seconds, (busy_after - busy - own) / max(total_after - total, 0.01)


def middle_seconds(rounds: Sequence[Sequence[float]]) -> float:
    """Return the median of the undisturbed rounds, or of all where every one was disturbed."""
    quiet = [seconds for seconds, others in rounds if others < QUIET_SHARE]
    return median(quiet or [seconds for seconds, _ in rounds])


def middle_ratio(rounds: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> float:
    """Return the median of the quotients of rounds that ran side by side.

    Pairs of which one was disturbed are left out, unless none would be left.
    """
    pairs = list(zip(rounds, base, strict=True))
    quiet = [pair for pair in pairs if all(others < QUIET_SHARE for _, others in pair)]
    return median(ours[0] / theirs[0] for ours, theirs in quiet or pairs)
