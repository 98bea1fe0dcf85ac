"""Many small files, beside a stock Git that syncs what it writes (``core.fsync=all``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.stopwatch import middle_ratio, middle_seconds
from benchmarks.sweep import fresh_folder
from benchmarks.tables import Table, Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from benchmarks.children import Runner

    Results = dict[str, Any]

_VERBS = {"add": ["add", "."], "commit": ["commit", "-m", "small"], "status": ["status"]}
_LIMITS = {"add": 2.0, "commit": 3.0, "status": 4.0}
_PER_FOLDER = 50


def measure_small_files(
    runner: Runner, folder: Path, mvc: Path, files: int, rounds: int
) -> Results:
    """Return, of each verb and program in turn, the rounds: seconds and what others took."""
    programs: dict[str, Path | str] = {"git": "git", "mvc": mvc}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {
        verb: {name: [] for name in programs} for verb in _VERBS
    }
    for _ in range(rounds):
        places = {name: fresh_folder(folder / f"small-{name}") for name in programs}
        for name, place in places.items():
            _write_files(place, files)
            runner.run(place, [programs[name], "init"])
        runner.run(places["git"], ["git", "config", "core.fsync", "all"])
        for verb, words in _VERBS.items():
            for name, place in places.items():
                cost = runner.measure(place, [programs[name], *words])
                found[verb][name].append((cost.seconds, cost.others_share))
        for place in places.values():
            fresh_folder(place).rmdir()
    return {"files": files, "verbs": found}


def _write_files(place: Path, files: int) -> None:
    for number in range(files):
        inner = place / f"folder{number // _PER_FOLDER}"
        inner.mkdir(exist_ok=True)
        (inner / f"file{number}.txt").write_text(f"line of file {number}\n" * (number % 100 + 1))


def list_targets(results: Results) -> Iterator[Target]:
    """Yield how many times as long each verb may take as Git's."""
    found = results.get("small_files", {"files": 2000, "verbs": {}})
    for verb, limit in _LIMITS.items():
        rounds = found["verbs"].get(verb)
        ratio = None if rounds is None else middle_ratio(rounds["mvc"], rounds["git"])
        yield Target(f"{verb}, {found['files']:,} small files, against git", limit, ratio, "times")


def small_file_table(results: Results) -> Iterator[Table]:
    """Yield what the verbs took."""
    rows = [["command", "mvc s", "git, core.fsync=all, s"]]
    for verb, rounds in results["small_files"]["verbs"].items():
        rows.append([verb, *(f"{middle_seconds(rounds[name]):.2f}" for name in ("mvc", "git"))])
    yield Table(f"{results['small_files']['files']:,} small files", rows)
