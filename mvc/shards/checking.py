"""Compares what a place holds with a map, and names everything that differs.

Three levels: ``quick`` reads no content: listing, sizes, stat data and tags tell. ``normal`` also reads
what these leave open. ``full`` reads every byte. The bytes of a shard that only its size speaks for
are counted as ``unproven``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mvc.errors import ConflictError, MvcError
from mvc.shards.hashing import HashedShard, StatCache, hash_shard, read_shards
from mvc.shards.places import GONE, FoundShard, ShardPlace

if TYPE_CHECKING:
    from mvc.progress import ByteProgress
    from mvc.shards.shard_map import Shard, ShardMap

Level = Literal["quick", "normal", "full"]
FaultKind = Literal["missing", "changed", "swapped", "stale", "extra", "unreadable"]


@dataclass(frozen=True, slots=True)
class ShardFault:
    """One shard that is not as the map says.

    Attributes:
        kind: ``missing``; ``changed``, its size or content; ``swapped``, it holds what another
            shard should, whose content is wrong, too; ``stale``, listing and store disagree
            about whether it is there; ``extra``, the map does not have it; ``unreadable``,
            the map's own file is not a map.
        path: relative to the root; empty for the root itself.
        detail: what was found.
    """

    kind: FaultKind
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class MapReport:
    """What a check found.

    Attributes:
        root: of the map: a relative path or URL.
        faults: by path.
        read: how many shards were read and hashed.
        read_bytes: how many bytes that were.
        proven: paths of the shards that stat data or tag speak for.
        left: paths of those that only their size speaks for.
    """

    root: str
    faults: tuple[ShardFault, ...]
    read: int = 0
    read_bytes: int = 0
    proven: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def known(self) -> int:
        """How many shards stat data or tag speak for."""
        return len(self.proven)

    @property
    def unproven(self) -> int:
        """How many only their size speaks for."""
        return len(self.left)

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.faults

    def counts(self) -> Mapping[str, int]:
        """Return how many faults there are of each kind."""
        return Counter(fault.kind for fault in self.faults)


def check_shards(
    shard_map: ShardMap,
    place: ShardPlace,
    *,
    level: Level = "normal",
    cache: StatCache | None = None,
    threads: int = 1,
    share: tuple[int, int] = (0, 1),
) -> MapReport:
    """Compare a map with the place of its shards.

    Args:
        shard_map: what should be there.
        place: the folder or store of its root (``open_place``).
        level: how much is read.
        cache: what is known of files by their stat data.
        threads: how many shards are read at once.
        share: index and count, if several processes divide the shards; the first names what is extra.

    Raises:
        StorageError: the place cannot be listed.
    """
    try:
        listed = {file.path: file for file in place.list(shard_map.pattern)}
    except (FileNotFoundError, NotADirectoryError):
        fault = ShardFault("missing", "", "the folder does not exist")
        return MapReport(shard_map.root, (fault,))
    check = _Check(shard_map, place, level)
    known = cache.find(list(listed.values())) if cache is not None and level != "full" else {}
    index, count = share
    # Each of several processes takes nearly as many bytes as the others.
    ordered = sorted(shard_map.shards, key=lambda shard: shard.size_bytes, reverse=True)
    for shard in ordered[index::count]:
        check.look(shard, listed.get(shard.path), known.get(shard.path))
    hashed = check.read(threads)
    check.find_swapped()
    if index == 0:
        extra = (path for path in listed if not shard_map.find(path))
        check.faults += [ShardFault("extra", path, "is not in the map") for path in extra]
    if cache is not None:
        cache.keep([listed[answer.shard.path] for answer in hashed], hashed)
    return MapReport(
        shard_map.root,
        tuple(sorted(check.faults, key=lambda fault: fault.path)),
        len(hashed),
        sum(answer.shard.size_bytes for answer in hashed),
        tuple(check.proven),
        tuple(check.left),
    )


class _Check:
    """A check under way: what is right, what is wrong, what has to be read."""

    def __init__(self, shard_map: ShardMap, place: ShardPlace, level: Level) -> None:
        self._place = place
        self._level = level
        self._sizes = {shard.size_bytes for shard in shard_map.shards}
        self._owners: dict[bytes, list[str]] = {}  # hash → the shards that should have it
        for shard in shard_map.shards:
            self._owners.setdefault(shard.sha256, []).append(shard.path)
        self.faults: list[ShardFault] = []
        self._unread: list[tuple[Shard, FoundShard]] = []
        self._wrong: dict[str, bytes] = {}  # path → hash of what is there instead
        self.proven: list[str] = []
        self.left: list[str] = []

    def look(self, shard: Shard, file: FoundShard | None, known: Shard | None) -> None:
        """Compare a shard with what is listed and known of it."""
        if file is None:
            is_there = self._place.find(shard.path) is not None
            kind: FaultKind = "stale" if is_there else "missing"
            self._fail(kind, shard, "is there, but not listed" if is_there else "does not exist")
        elif file.fault is not None:
            self._fail("stale" if file.fault == GONE else "changed", shard, file.fault)
        elif known is not None:
            self.proven.append(shard.path)
            self._compare(shard, known)
        elif file.size_bytes != shard.size_bytes:
            if self._level != "quick" and file.size_bytes in self._sizes:
                self._unread.append((shard, file))  # it may be another one's content
            else:
                self._fail("changed", shard, _other_size(shard, file.size_bytes))
        elif self._level != "full" and file.tag is not None and file.tag == shard.tag:
            self.proven.append(shard.path)
        elif self._level != "quick":
            self._unread.append((shard, file))
        elif file.tag is not None and shard.tag is not None:
            self._fail("changed", shard, "was written again: its tag is another one")
        else:
            self.left.append(shard.path)

    def read(self, threads: int) -> list[HashedShard]:
        """Read what has to be read; return those that are as the map says."""
        right: list[HashedShard] = []
        shards = {shard.path: shard for shard, _ in self._unread}
        unread = (file for _, file in self._unread)
        for answer in read_shards(self._read_one, unread, threads):
            if isinstance(answer, ShardFault):
                self.faults.append(answer)
            elif self._compare(shards[answer.shard.path], answer.shard):
                right.append(HashedShard(shards[answer.shard.path], was_read=True))
        return right

    def _read_one(self, file: FoundShard, progress: ByteProgress) -> HashedShard | ShardFault:
        try:
            return hash_shard(self._place, file, progress, counted=False)
        except FileNotFoundError:
            return ShardFault("stale", file.path, GONE)
        except ConflictError:
            return ShardFault("changed", file.path, "changed while it was read")
        except MvcError as error:
            return ShardFault("stale", file.path, f"is listed, but: {error.message}")

    def _compare(self, shard: Shard, actual: Shard) -> bool:
        if (actual.size_bytes, actual.sha256) == (shard.size_bytes, shard.sha256):
            return True
        self._wrong[shard.path] = actual.sha256
        if actual.sha256 not in self._owners:
            is_same = actual.size_bytes == shard.size_bytes
            other = "has another content" if is_same else _other_size(shard, actual.size_bytes)
            self._fail("changed", shard, other)
        return False

    def _fail(self, kind: FaultKind, shard: Shard, detail: str) -> None:
        self.faults.append(ShardFault(kind, shard.path, detail))

    def find_swapped(self) -> None:
        """Name the shards that hold what others should; swapped if these are wrong, too."""
        for path, sha256 in self._wrong.items():
            others = self._owners.get(sha256, [])
            wrong = [other for other in others if other in self._wrong]
            if others:
                kind: FaultKind = "swapped" if wrong else "changed"
                detail = f"holds what {[*wrong, *others][0]!r} should hold"
                self.faults.append(ShardFault(kind, path, detail))


def _other_size(shard: Shard, size_bytes: int) -> str:
    return f"has {size_bytes:,} bytes, not {shard.size_bytes:,}"
