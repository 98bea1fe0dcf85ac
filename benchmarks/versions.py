"""The five versions with and without deltas: bytes, time to record, time to restore.

One repository for each way of recording, and they grow side by side: every version is recorded by
all of them, one right after the other and in turning order, before the next version comes. So a
quotient of two ways compares runs a few seconds apart. Each round begins with fresh repositories.
The last round's repository without deltas is repacked afterwards. Every version is then brought
back from each repository and compared with the original.
"""

from __future__ import annotations

import filecmp
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchmarks.children import Cost, middle
from benchmarks.peers import MODEL
from benchmarks.sweep import folder_bytes, fresh_folder, put_model

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from benchmarks.children import Runner

    Command = list[str | Path]
    Costs = dict[str, dict[str, list[Cost]]]

REPACKED = "repacked"


@dataclass(frozen=True, slots=True)
class Way:
    """A way of recording.

    Attributes:
        name: as the tables show it.
        setting: value of ``mvc.delta``; None means the default.
        options: of ``mvc add``.
    """

    name: str
    setting: str | None = None
    options: tuple[str, ...] = ()


PLAIN = Way("deltas off", setting="never")
DEFAULT = Way("default")
INSISTING = Way("--delta", options=("--delta",))


def list_ways(abilities: Collection[str]) -> tuple[Way, ...]:
    """Return the ways that the installed mvc knows."""
    return (PLAIN, DEFAULT, INSISTING) if "delta" in abilities else (PLAIN,)


def measure_versions(
    runner: Runner,
    folder: Path,
    mvc: Path,
    versions: dict[str, Path],
    abilities: Collection[str],
    *,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, object]:
    """Return bytes that each version adds, and what recording and restoring each costs.

    Args:
        runner: starts commands.
        folder: where to work; on the file system that is measured.
        mvc: the program.
        versions: name → file, the base first.
        abilities: what the program knows.
        rounds: how often the whole series is recorded.
        say: told what is going on.
    """
    ways = list_ways(abilities)
    record: Costs = {way.name: {version: [] for version in versions} for way in ways}
    stored: dict[str, dict[str, int]] = {}
    places: dict[str, Path] = {}
    for number in range(rounds):
        places = {way.name: _prepare(runner, folder, mvc, way) for way in ways}
        stored = {way.name: {} for way in ways}
        for count, (version, path) in enumerate(versions.items()):
            say(f"round {number + 1}: {version}")
            for way in ways if (number + count) % 2 == 0 else reversed(ways):
                place = places[way.name]
                before = folder_bytes(place / ".mvc")
                put_model(path, place)
                cost = runner.measure(place, *_record(mvc, way))
                record[way.name][version].append(cost)
                stored[way.name][version] = folder_bytes(place / ".mvc") - before
    restore = {name: _restore_all(runner, mvc, place, versions) for name, place in places.items()}
    result: dict[str, object] = {
        "raw_bytes": {name: path.stat().st_size for name, path in versions.items()},
        "stored_bytes": stored,
        "record": {
            name: {version: _summary(several) for version, several in costs.items()}
            for name, costs in record.items()
        },
    }
    if "repack" in abilities:
        place = places[PLAIN.name]
        before = folder_bytes(place / ".mvc")
        result["repack"] = asdict(repack(runner, mvc, place))
        change = folder_bytes(place / ".mvc") - before
        result["repacked_bytes"] = sum(stored[PLAIN.name].values()) + change
        restore[REPACKED] = _restore_all(runner, mvc, place, versions)
    fresh_folder(folder / "versions")
    return result | {"restore": restore}


def _prepare(runner: Runner, folder: Path, mvc: Path, way: Way) -> Path:
    place = fresh_folder(folder / "versions" / way.name.strip("-").replace(" ", "-"))
    runner.run(
        place,
        [mvc, "init"],
        [mvc, "commit", "--allow-empty", "-m", "start"],
        [mvc, "branch", "empty"],
    )
    if way.setting is not None:
        runner.run(place, [mvc, "config", "mvc.delta", way.setting])
    return place


def _record(mvc: Path, way: Way) -> list[Command]:
    return [[mvc, "add", *way.options, MODEL], [mvc, "commit", "-m", "version"]]


def repack(runner: Runner, mvc: Path, place: Path) -> Cost:
    """Repack a repository that was told to make no deltas so far; return what it cost."""
    runner.run(place, [mvc, "config", "mvc.delta", "auto"])
    return runner.measure(place, [mvc, "repack"])


def _restore_all(
    runner: Runner, mvc: Path, place: Path, versions: dict[str, Path]
) -> dict[str, dict[str, float]]:
    """Bring every version back, the worktree empty before; return what each cost."""
    costs = {}
    for back, (version, path) in enumerate(reversed(versions.items())):
        runner.run(place, [mvc, "checkout", "empty"])
        costs[version] = asdict(runner.measure(place, [mvc, "checkout", f"main~{back}"]))
        if not filecmp.cmp(place / MODEL, path, shallow=False):
            raise AssertionError(f"{place.name} did not bring the same bytes of {version} back")
    runner.run(place, [mvc, "checkout", "main"])
    return {version: costs[version] for version in versions}


def _summary(costs: list[Cost]) -> dict[str, object]:
    return asdict(middle(costs)) | {"rounds": [asdict(cost) for cost in costs]}
