"""What this rank finds in the folder of a map: its share of the shards, listed, measured and hashed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc_hooks.data.findings import Finding
from mvc_hooks.data.judging import Judge
from mvc_hooks.data.lazy_worker import hash_file, read_stamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mvc import Shard
    from mvc_hooks.data.lazy_worker import Stamp
    from mvc_hooks.data.shards import OpenCheck
    from mvc_hooks.data.stamps import Stamps


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of the work of several ranks that have one folder is this rank's."""

    index: int = 0
    count: int = 1

    def take(self, shards: Sequence[Shard]) -> Sequence[Shard]:
        """Return every so-manieth shard, of those in the order of their sizes."""
        ordered = sorted(shards, key=lambda one: (-one.size_bytes, one.path))
        return ordered[self.index :: self.count]


@dataclass(slots=True)
class Look:
    """What a look at a folder found.

    Attributes:
        findings: what is wrong.
        left: shards that are not hashed, since the check is lazy.
        good: shard → stamp of its file, for the others.
    """

    findings: list[Finding] = field(default_factory=list)
    left: list[Shard] = field(default_factory=list)
    good: dict[str, Stamp] = field(default_factory=dict)


def look_at(one: OpenCheck, folder: Path, share: Share, stamps: Stamps, threads: int) -> Look:
    """Return what is wrong with this rank's share of the shards in a folder."""
    judge, found = Judge(one.name, one.map), Look()
    if not folder.is_dir():
        found.findings.append(Finding(one.name, "", "missing", f"is missing: no folder {folder}"))
        return found
    if share.index == 0:
        known = {shard.path for shard in one.map.shards}
        surplus = (pair for pair in list_folder(folder) if pair[0] not in known)
        found.findings += [judge.surplus(path, size) for path, size in surplus]
    to_hash = []
    for shard in share.take(one.map.shards):
        try:
            stamp = read_stamp(os.stat(folder / shard.path))
        except FileNotFoundError:
            found.findings.append(judge.missing(shard))
            continue
        except OSError as error:
            found.findings.append(judge.unreadable(shard, _reason(error)))
            continue
        known_hash = stamps.find(str(folder / shard.path), stamp)
        if one.check.verify == "quick" and known_hash is not None:
            _add(found, shard, stamp, judge.judge(shard, stamp[0], known_hash))
        elif not judge.needs_hash(shard, stamp[0]):
            _add(found, shard, stamp, judge.judge(shard, stamp[0], None))
        elif one.check.lazy and stamp[0] == shard.size_bytes:
            found.left.append(shard)
        else:
            to_hash.append(shard)
    _hash_all(found, judge, folder, to_hash, stamps, threads)
    return found


def _hash_all(
    found: Look, judge: Judge, folder: Path, shards: Sequence[Shard], stamps: Stamps, threads: int
) -> None:
    def work(shard: Shard) -> tuple[Stamp, bytes] | OSError:
        try:
            return hash_file(str(folder / shard.path))
        except OSError as error:
            return error

    with ThreadPoolExecutor(threads) as pool:  # hashing and reading hold no interpreter lock
        for shard, result in zip(shards, pool.map(work, shards), strict=True):
            if isinstance(result, OSError):
                found.findings.append(judge.unreadable(shard, _reason(result)))
                continue
            stamp, digest = result
            stamps.note(str(folder / shard.path), stamp, digest)
            _add(found, shard, stamp, judge.judge(shard, stamp[0], digest))


def _add(found: Look, shard: Shard, stamp: Stamp, finding: Finding | None) -> None:
    if finding is None:
        found.good[shard.path] = stamp
    else:
        found.findings.append(finding)


def list_folder(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield path and size of the files below a folder that can be shards."""
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(".shards"):
                path = os.path.join(place, name)
                size = os.stat(path).st_size if os.path.exists(path) else 0
                yield os.path.relpath(path, folder), size


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
