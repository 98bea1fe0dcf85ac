"""The index file: Git's own binary format, so that stock ``git ls-files`` reads it.

dulwich writes and reads the entries; what it does not check is checked here first: the checksum
over the whole file, the extensions that a reader must know, and the paths. dulwich's index module
imports all of its object store, so this module is imported only when an index is touched.
"""

from __future__ import annotations

import hashlib
import io
import os
from typing import TYPE_CHECKING

from dulwich.index import SerializedIndexEntry, read_index, write_index
from dulwich.objects import ObjectID

from mvc.errors import CorruptionError, UnsupportedError, UsageError
from mvc.fs import open_file
from mvc.history.locks import git_lock
from mvc.history.paths import decode_path, encode_path, find_path_fault, folders_of
from mvc.history.translate import translate_damage
from mvc.history.values import FILE_MODES, Index, IndexEntry, clean_mode, stored_size
from mvc.ids import GitId

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAME = "index"
MAX_INDEX_BYTES = 1 << 30
_HINT = 'run "mvc reset": it makes the index again from HEAD and touches no file'
_DIGEST_BYTES = 20
_HEADER_BYTES = 12
_VERSIONS = (2, 3, 4)
_FLAG_STAGE = 0x3000
_FLAG_EXTENDED = 0x4000
_FLAG_SKIP_WORKTREE = 0x4000  # among the extended flags
_WORD = 0xFFFFFFFF
_BILLION = 1_000_000_000
_MAX_TIME_NS = (_WORD + 1) * _BILLION - 1


def read_index_file(path: Path) -> Index:
    """Return the index; an empty one if there is no file.

    One that a stock Git wrote split, sparse or unmerged is an UnsupportedError.
    """
    with translate_damage("the index", hint=_HINT):
        try:
            with open_file(path) as file:
                found = os.fstat(file.fileno())
                timestamp_ns = found.st_mtime_ns
                # A limit alone as the length would be allocated whole.
                data = file.read(min(MAX_INDEX_BYTES, found.st_size) + 1)
        except FileNotFoundError:
            return Index()
    return Index(parse_index(data, timestamp_ns), timestamp_ns)


def parse_index(data: bytes, timestamp_ns: int) -> dict[str, IndexEntry]:
    """Return the entries in the bytes of an index file.

    Entries not older than ``timestamp_ns``, when the file was written, are marked racy.
    """
    if not _HEADER_BYTES + _DIGEST_BYTES <= len(data) <= MAX_INDEX_BYTES:
        raise _damaged(f"{len(data):,} bytes are not an index")
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha1(body, usedforsecurity=False).digest() != digest:
        raise _damaged("its checksum does not match")
    version = int.from_bytes(body[4:8], "big")
    if body[:4] == b"DIRC" and version not in _VERSIONS:
        raise UnsupportedError(f"the index has version {version}", hint="upgrade mvc")
    entries: dict[str, IndexEntry] = {}
    with translate_damage("the index", hint=_HINT):
        stream = io.BytesIO(body)
        for stored in read_index(stream):
            entry = _from_stored(stored, timestamp_ns)
            if entry.path in entries:
                raise _damaged(f"path {entry.path!r} is in it twice")
            entries[entry.path] = entry
        _check_extensions(body[stream.tell() :])
    clash = _find_clash(entries)
    if clash is not None:
        raise _damaged(f"path {clash!r} is a file and a folder")
    return entries


def _find_clash(entries: Mapping[str, IndexEntry]) -> str | None:
    """Return a path that is a file and, for another path, a folder."""
    return min(folders_of(entries) & entries.keys(), default=None)


def _from_stored(stored: SerializedIndexEntry, timestamp_ns: int) -> IndexEntry:
    path = decode_path(stored.name)
    fault = find_path_fault(path)
    if fault is not None:
        raise _damaged(f"path {path[:200]!r} {fault}")
    if stored.flags & _FLAG_STAGE:
        raise UnsupportedError(
            f"path {path!r} is unmerged in the index", hint="finish or abort the merge with git"
        )
    mode = clean_mode(stored.mode)
    if mode is None:
        raise UnsupportedError(
            f"path {path!r} has mode {stored.mode:o} in the index: neither a file nor a link"
        )
    mtime_ns = _join_time(stored.mtime)
    return IndexEntry(
        path=path,
        blob=GitId(stored.sha.decode("ascii")),
        mode=mode,
        size_bytes=stored.size,
        mtime_ns=mtime_ns,
        ctime_ns=_join_time(stored.ctime),
        inode=stored.ino,
        device=stored.dev,
        skip_worktree=bool(stored.extended_flags & _FLAG_SKIP_WORKTREE),
        racy=mtime_ns >= timestamp_ns > 0,
    )


def _check_extensions(rest: bytes) -> None:
    """Refuse extensions that change what the entries mean: Git gives those a small first letter."""
    position = 0
    while position < len(rest):
        name = rest[position : position + 4]
        size_bytes = int.from_bytes(rest[position + 4 : position + 8], "big")
        if len(rest) - position < 8 or size_bytes > len(rest) - position - 8:  # noqa: PLR2004
            raise _damaged("its last extension is cut off")
        if not name[:1].isupper():
            raise UnsupportedError(
                f"the index has extension {name!r}, which mvc does not know",
                hint='turn it off with "git update-index --no-split-index"',
            )
        position += 8 + size_bytes


def write_index_file(path: Path, index: Index) -> None:
    """Replace the index file durably, under Git's lock on it."""
    data = encode_index(index)
    with git_lock(path) as file:
        file.write([data])
        file.publish(path)


def encode_index(index: Index) -> bytes:
    """Return the bytes of an index file."""
    clash = _find_clash(index.entries)
    if clash is not None:
        raise UsageError(f"path {clash!r} cannot be staged as a file and as a folder")
    stored = [_to_stored(path, entry) for path, entry in index.entries.items()]
    stored.sort(key=lambda entry: entry.name)
    version = 3 if any(entry.extended_flags for entry in stored) else 2
    buffer = io.BytesIO()
    write_index(buffer, stored, version)
    data = buffer.getvalue()
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


def _to_stored(path: str, entry: IndexEntry) -> SerializedIndexEntry:
    fault = find_path_fault(path)
    if fault is not None or path != entry.path:
        raise UsageError(f"path {path!r} cannot be staged: it {fault or 'names another entry'}")
    if entry.mode not in FILE_MODES:
        raise UsageError(f"path {path!r} has mode {entry.mode:o}, which Git does not know")
    return SerializedIndexEntry(
        name=encode_path(path),
        ctime=_split_time(entry.ctime_ns),
        mtime=_split_time(entry.mtime_ns),
        dev=entry.device & _WORD,
        ino=entry.inode & _WORD,
        mode=entry.mode,
        uid=0,
        gid=0,
        size=0 if entry.racy else stored_size(entry.size_bytes),
        sha=ObjectID(entry.blob.encode()),
        flags=_FLAG_EXTENDED if entry.skip_worktree else 0,
        extended_flags=_FLAG_SKIP_WORKTREE if entry.skip_worktree else 0,
    )


def _join_time(time: int | float | tuple[int, int]) -> int:  # noqa: PYI041  dulwich's own type
    seconds, nanoseconds = time if isinstance(time, tuple) else (int(time), 0)
    return seconds * _BILLION + nanoseconds


def _split_time(time_ns: int) -> tuple[int, int]:
    # A time that 32 bits cannot hold is stored as none: such an entry never matches.
    return divmod(time_ns if 0 <= time_ns <= _MAX_TIME_NS else 0, _BILLION)


def _damaged(detail: str) -> CorruptionError:
    return CorruptionError(f"the index is damaged: {detail}", hint=_HINT)
