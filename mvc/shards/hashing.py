"""SHA-256 and records of many shards, on all cores, each byte read once, only what changed read at all.

What a file's stat data prove unchanged since it was last hashed is not read: they are kept, with the
hash, in ``.mvc/shards.db``. Before a file is read, the clock tick of its last change is waited for, so
every later change shows in the stat data. Of an object, size and tag say that; the map has them.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from mvc.errors import ConflictError, FormatError
from mvc.progress import current_progress
from mvc.shards.records import count_records
from mvc.shards.records.stream import ShardBytes
from mvc.shards.shard_map import Shard
from mvc.sources import read_bytes

if TYPE_CHECKING:
    from mvc.progress import ByteProgress
    from mvc.shards.places import Folder, FoundShard, ShardPlace
    from mvc.shards.records.stream import Piece
    from mvc.workspace.kept import Kept

STAT_CACHE_NAME = "shards.db"
_KIND = b"shard"
_STAT = struct.Struct("<qqqqq")  # size, mtime, ctime, inode, device
_REST = struct.Struct("<32sq")  # hash, records or -1
_WORD = 2**63 - 1
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class HashedShard:
    """A shard as it was read.

    Attributes:
        shard: what a map says of it.
        was_read: whether its bytes were read; otherwise its stat data or tag spoke for them.
        warning: why the number of records is not known though its format should tell, or None.
    """

    shard: Shard
    was_read: bool
    warning: str | None = None


def hash_shard(
    place: ShardPlace, file: FoundShard, progress: ByteProgress = None, *, counted: bool = True
) -> HashedShard:
    """Read all of a shard, once; its records are counted on the way, unless that is not wanted.

    Raises:
        FileNotFoundError: it is not there.
        ConflictError: it changed while it was read.
    """
    digest = hashlib.sha256()
    warning, records = None, None
    with place.open(file) as opened:
        size_bytes = opened.source.size_bytes

        def hash_pieces() -> Iterator[Piece]:
            for piece in opened.pieces():
                digest.update(piece)
                if progress is not None:
                    progress(len(piece))
                yield piece

        stream = ShardBytes(
            hash_pieces(), size_bytes, lambda at, size: read_bytes(opened.source, at, size)
        )
        try:
            records = count_records(stream, file.path) if counted else None
        except FormatError as error:
            warning = error.message
        stream.drain()
    if stream.position != size_bytes:
        raise ConflictError(f"{file.path!r} was not read as a whole")
    shard = Shard(file.path, size_bytes, digest.digest(), records, file.tag)
    return HashedShard(shard, was_read=True, warning=warning)


def hash_shards(
    place: ShardPlace, files: Iterable[FoundShard], *, threads: int
) -> list[HashedShard]:
    """Read many shards; return them by path. The first error ends all."""
    done = read_shards(partial(hash_shard, place), files, threads)
    return sorted(done, key=lambda hashed: hashed.shard.path)


def read_shards(
    read: Callable[[FoundShard, ByteProgress], _Answer], files: Iterable[FoundShard], threads: int
) -> list[_Answer]:
    """Have threads read many shards, the largest first; an error or Ctrl-C ends all at once."""
    ordered = sorted(files, key=lambda shard: shard.size_bytes, reverse=True)
    stopped, progress = threading.Event(), current_progress()

    def count(size_bytes: int) -> None:
        if stopped.is_set():  # the rest of a large shard is not waited for
            raise ConflictError("stopped")
        if progress is not None:
            progress(size_bytes)

    pool = ThreadPoolExecutor(max(threads, 1))
    try:
        tasks = [pool.submit(read, shard, count) for shard in ordered]
        return [task.result() for task in tasks]
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)


class StatCache:
    """What stat data tell of the files of a folder; nothing if there is no repository."""

    def __init__(self, kept: Kept | None, folder: Folder) -> None:
        self._kept = kept
        self._folder = os.fsencode(folder.folder)

    def find(self, files: Sequence[FoundShard]) -> dict[str, Shard]:
        """Return path → shard of the files that surely did not change since they were hashed."""
        if self._kept is None:
            return {}
        keys = {self._key(file): file for file in files}
        shards: dict[str, Shard] = {}
        for key, value in self._kept.get_many(_KIND, keys).items():
            file = keys[key]
            if len(value) != _STAT.size + _REST.size or value[: _STAT.size] != _pack_stat(file):
                continue
            sha256, records = _REST.unpack_from(value, _STAT.size)
            count = None if records < 0 else records
            shards[file.path] = Shard(file.path, file.size_bytes, sha256, count)
        return shards

    def keep(self, listed: Iterable[FoundShard], hashed: Iterable[HashedShard]) -> None:
        """Keep what was hashed for the next time."""
        files = {file.path: file for file in listed}
        entries = {}
        for shard in (answer.shard for answer in hashed):
            file = files[shard.path]
            records = -1 if shard.records is None else shard.records
            entries[self._key(file)] = _pack_stat(file) + _REST.pack(shard.sha256, records)
        if self._kept is not None:
            self._kept.put_many(_KIND, entries)

    def _key(self, file: FoundShard) -> bytes:
        return hashlib.sha256(self._folder + b"/" + os.fsencode(file.path)).digest()


def _pack_stat(file: FoundShard) -> bytes:
    stat = file.stat
    if stat is None:
        return b""
    numbers = (stat.size_bytes, stat.mtime_ns, stat.ctime_ns, stat.inode, stat.device)
    return _STAT.pack(*(number & _WORD for number in numbers))
