"""The training hooks as tables and targets."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.children import QUIET_SHARE
from benchmarks.stopwatch import middle_ratio, middle_seconds
from benchmarks.tables import MIB, Table, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Results = dict[str, Any]

_MVC = "mvc"
MEMMOVE = "memmove of the state, one thread"
_PINNED = "copy_ of the state into pinned memory"
_YARDSTICKS = (MEMMOVE, "copy_ of the state, torch's threads", _PINNED)
_PLAIN = "no saves"
_COPY_LIMIT, _PEER_LIMIT = 1.3, 0.5
_RETURN_LIMIT_S = 10.0
_GROWTH_LIMIT_MIB = 8.0


def list_targets(results: Results) -> Iterator[Target]:
    """Yield every target with its figure, None where it was not measured."""
    hooks = results.get("hooks", {})
    ways = hooks.get("stall", {}).get("ways", {})
    yield Target("stall of a commit, against one memmove of the state", _COPY_LIMIT,
                 _against(ways, MEMMOVE), "times")  # fmt: skip
    best = find_best_peer(ways)
    yield Target(f"stall of a commit, against the best peer{f' ({best})' if best else ''}",
                 _PEER_LIMIT, _against(ways, best), "times")  # fmt: skip
    if "stall_cuda" in hooks:
        ways = hooks["stall_cuda"]["ways"]
        lost = median(ways[_MVC]["lost"]) / middle_seconds(ways[_PINNED]["stall"])
        yield Target("training lost to a commit on CUDA, against one pinned copy", _COPY_LIMIT,
                     lost, "times")  # fmt: skip
    recovery = hooks.get("recovery", {})
    for name in ("from a commit", "from the ring"):
        rounds = recovery.get("rollback", {}).get(name)
        seconds = middle_seconds(rounds) if rounds else None
        yield Target(f"rollback {name}, alarm to verified state", _RETURN_LIMIT_S, seconds, "s")
    growth = hooks.get(
        "growth", {"commits": (50, 200), "resident_bytes": {"trainer": None, "writer": None}}
    )
    first, last = growth["commits"]
    for name, sizes in growth["resident_bytes"].items():
        grown = None if sizes is None else max(0.0, (sizes[1] - sizes[0]) / MIB)
        title = f"growth of the {name} between commit {first} and {last}"
        yield Target(title, _GROWTH_LIMIT_MIB, grown, "MiB")


def find_best_peer(ways: Results) -> str | None:
    """Return the peer that makes a training stand still for the shortest time."""
    peers = [name for name in ways if name != _MVC and name not in _YARDSTICKS]
    return min(peers, key=lambda name: middle_seconds(ways[name]["stall"]), default=None)


def _against(ways: Results, other: str | None) -> float | None:
    if other is None or other not in ways:
        return None
    return middle_ratio(ways[_MVC]["stall"], ways[other]["stall"])


def hook_tables(results: Results) -> Iterator[Table]:
    """Yield the tables."""
    hooks = results["hooks"]
    for key, where in (("stall", "in host memory"), ("stall_cuda", "on a CUDA device")):
        if key in hooks:
            yield _stall_table(hooks[key], where)
        else:
            rows = [["way", ""], ["all", "no CUDA device: not measured"]]
            yield Table(f"hooks, stall of one save, state {where}", rows)
    yield _loop_table(hooks["loop"])
    yield _memory_table(hooks["peak"])
    yield _growth_table(hooks["growth"])
    yield _recovery_table(hooks["recovery"])


def _size(entry: Results) -> str:
    return f"{entry['state_bytes'] / 1e6:,.1f} MB"


def _stall_table(entry: Results, where: str) -> Table:
    ways, is_cuda = entry["ways"], "CUDA" in where
    base = _PINNED if is_cuda else MEMMOVE
    head = ["way", "stall s", "of one copy", "until durable s", "MB on disk", "rounds s"]
    rows = [[*head[:2], "lost with the next step s", *head[2:]] if is_cuda else head]
    for name, way in sorted(ways.items(), key=lambda item: middle_seconds(item[1]["stall"])):
        is_copy = name in _YARDSTICKS
        lost = [f"{median(way['lost']):.3f}"] if is_cuda else []
        rows.append([
            name,
            f"{middle_seconds(way['stall']):.3f}",
            *lost,
            f"{middle_ratio(way['stall'], ways[base]['stall']):.2f}",
            "" if is_copy else f"{median(way['durable']):.2f}",
            "" if is_copy else f"{median(way['bytes']) / 1e6:.1f}",
            _rounds(way["stall"]),
        ])  # fmt: skip
    blank = [""] * (len(rows[0]) - 2)
    rows += [[name, "not installed", *blank] for name in entry["absent"]]
    return Table(f"hooks, stall of one save, state of {_size(entry)} {where}", rows)


def _rounds(rounds: Sequence[Sequence[float]]) -> str:
    """Return every round; brackets where the machine was busy with something else."""
    return " ".join(
        f"{seconds:.3f}" if others < QUIET_SHARE else f"({seconds:.3f})"
        for seconds, others in rounds
    )


def _loop_table(loop: Results) -> Table:
    rows = [["way", "steps/s", "of no saves", "lost s per save", "blocks, steps/s"]]
    steps, plain = loop["steps"], loop["ways"][_PLAIN]
    for name, seconds in loop["ways"].items():
        pairs = list(zip(seconds, plain, strict=True))
        rows.append([
            name,
            f"{steps / median(seconds):.2f}",
            f"{median(theirs / ours for ours, theirs in pairs):.3f}",
            "" if name == _PLAIN else f"{median(ours - theirs for ours, theirs in pairs):.2f}",
            " ".join(f"{steps / one:.2f}" for one in seconds),
        ])  # fmt: skip
    title = f"hooks, speed of a training that saves every {steps} steps, state of {_size(loop)}"
    return Table(title, rows)


def _memory_table(peaks: Results) -> Table:
    rows = [["way", "trainer, states", "all processes, states", "trainer MiB", "all MiB"]]
    for name, entry in peaks.items():
        sizes = (entry["own_bytes"], entry["all_bytes"])
        shares = [f"{size / entry['state_bytes']:.2f}" for size in sizes]
        rows.append([name, *shares, *(f"{size / MIB:.0f}" for size in sizes)])
    return Table("hooks, peak memory above that of the same training without saves", rows)


def _growth_table(growth: Results) -> Table:
    rows = [["process", *(f"MiB after {count} commits" for count in growth["commits"])]]
    for name, sizes in growth["resident_bytes"].items():
        rows.append([name, *(f"{size / MIB:.1f}" for size in sizes)])
    return Table(f"hooks, resident memory, state of {_size(growth)}", rows)


def _recovery_table(recovery: Results) -> Table:
    rows = [["what", "s", "checked", "rounds s"]]
    for name, rounds in recovery["rollback"].items():
        seconds = f"{middle_seconds(rounds):.2f}"
        rows.append([f"mvc, rollback {name}", seconds, "yes", _rounds(rounds)])
    for name, rounds in recovery["resume"].items():
        is_checked = "yes" if name == _MVC else "no"
        loads = name.replace(".save", ".load")
        rows.append([
            f"resume, {loads}", f"{middle_seconds(rounds):.2f}", is_checked, _rounds(rounds)
        ])  # fmt: skip
    return Table(f"hooks, a state of {_size(recovery)} back in place", rows)
