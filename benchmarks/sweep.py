"""Five versions through every tool: time to record, time to restore, bytes stored.

Rounds are interleaved: every tool once, then every tool again, in the opposite order, each time
in a fresh folder, so that a slow minute of the machine hits all of them. Only the base is
repeated; the other versions are recorded once, after the base of the first round.
"""

from __future__ import annotations

import filecmp
import shutil
import subprocess
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.children import Cost, middle
from benchmarks.peers import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benchmarks.children import Runner
    from benchmarks.peers import Peer


def measure_sweep(
    runner: Runner,
    folder: Path,
    peers: Sequence[Peer],
    versions: dict[str, Path],
    *,
    rounds: int,
    extra_rounds: int = 0,
    say: Callable[[str], None],
) -> dict[str, object]:
    """Return record and restore costs of the base, and stored bytes after every version.

    Args:
        runner: starts commands.
        folder: where to work; on the file system that is measured.
        peers: the tools.
        versions: name → file, the base first.
        rounds: how often the base is recorded and restored.
        extra_rounds: how often more, for tools that did not have the machine for themselves.
        say: told what is going on.
    """
    records: dict[str, list[Cost]] = {peer.name: [] for peer in peers}
    restores: dict[str, list[Cost]] = {peer.name: [] for peer in peers}
    stored: dict[str, dict[str, int]] = {}
    later: dict[str, dict[str, Cost]] = {}
    base = next(iter(versions.values()))
    for number in range(rounds + extra_rounds):
        for peer in list(peers) if number % 2 == 0 else list(reversed(peers)):
            if _is_enough(records[peer.name], rounds) and _is_enough(restores[peer.name], rounds):
                continue
            say(f"round {number + 1}: {peer.name}")
            place = fresh_folder(folder / "sweep")
            peer.prepare(place)
            before = stored_bytes(place, peer)
            put_model(base, place)
            records[peer.name].append(runner.measure(place, *peer.record()))
            size = stored_bytes(place, peer) - before
            restores[peer.name].append(_restore(runner, peer, place, base))
            if number == 0 and peer.keeps_history:
                rest = dict(list(versions.items())[1:])
                stored[peer.name], later[peer.name] = _record_all(runner, peer, place, rest, size)
    fresh_folder(folder / "sweep")
    return {
        "raw_bytes": {name: path.stat().st_size for name, path in versions.items()},
        "record": _summary(records),
        "restore": _summary(restores),
        "stored_bytes": stored,
        "later_versions": {
            name: {version: asdict(cost) for version, cost in costs.items()}
            for name, costs in later.items()
        },
    }


def _is_enough(costs: Sequence[Cost], rounds: int) -> bool:
    return len(costs) >= rounds and sum(cost.is_quiet for cost in costs) >= min(rounds, 3)


def _restore(runner: Runner, peer: Peer, place: Path, base: Path) -> Cost:
    peer.leave(place)
    if (place / MODEL).exists():
        raise AssertionError(f"{peer.name} left the model in the worktree")
    cost = runner.measure(place, *peer.restore())
    if not filecmp.cmp(place / MODEL, base, shallow=False):
        raise AssertionError(f"{peer.name} did not bring the same bytes back")
    return cost


def _record_all(
    runner: Runner, peer: Peer, place: Path, versions: dict[str, Path], base_bytes: int
) -> tuple[dict[str, int], dict[str, Cost]]:
    """Record the versions after the base; return bytes added by each, and what it cost."""
    added = {"base": base_bytes}
    costs: dict[str, Cost] = {}
    for name, path in versions.items():
        before = stored_bytes(place, peer)
        put_model(path, place)
        costs[name] = runner.measure(place, *peer.record())
        added[name] = stored_bytes(place, peer) - before
    return added, costs


def _summary(costs: dict[str, list[Cost]]) -> dict[str, object]:
    return {
        name: asdict(middle(several)) | {"rounds": [asdict(cost) for cost in several]}
        for name, several in costs.items()
    }


def fresh_folder(path: Path) -> Path:
    """Return an empty folder, whatever was there before (some tools write read-only files)."""
    if path.exists():
        subprocess.run(["chmod", "-R", "u+w", str(path)], check=True)
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return path


def put_model(source: Path, folder: Path) -> None:
    """Put a file into a worktree as a training run would: a new file, its bytes in memory."""
    target = folder / MODEL
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)


def stored_bytes(folder: Path, peer: Peer) -> int:
    """Return the lengths of all files that hold the tool's history."""
    return sum(folder_bytes(folder / name) for name in peer.storage)


def folder_bytes(path: Path, *, without: str | None = None) -> int:
    """Return the lengths of all files below a path, ``without`` one folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(
        file.lstat().st_size
        for file in path.rglob("*")
        if not file.is_dir() and (without is None or without not in file.relative_to(path).parts)
    )
