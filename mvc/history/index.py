"""The index file: Git's own binary format, so that stock ``git ls-files`` reads it.

A reader checks the checksum over the whole file, the extensions that it must know, and the paths.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mvc.errors import CorruptionError, UnsupportedError, UsageError
from mvc.fs import open_file
from mvc.history.locks import git_lock
from mvc.history.names import decode_path, encode_path, find_path_fault, folders_of
from mvc.history.translate import translate_damage
from mvc.history.values import FILE_MODES, Index, IndexEntry, TreeEntry, clean_mode, stored_size
from mvc.ids import GitId

if TYPE_CHECKING:
    from pathlib import Path


NAME = "index"
MAX_INDEX_BYTES = 1 << 30
_HINT = 'run "mvc reset": it makes the index again from HEAD and touches no file'
_SPLIT_HINT = 'run "git --git-dir=.mvc update-index --no-split-index"'
_DIGEST_BYTES = 20
_HEADER = struct.Struct(">4sLL")
_ENTRY = struct.Struct(">10L20sH")  # ctime, mtime (s, ns), device to size, id, flags
_EXTENDED = struct.Struct(">H")
_VERSIONS = (2, 3, 4)
_COMPRESSED = 4  # the version whose paths begin as the one before
_FLAG_NAME_BYTES = 0xFFF
_FLAG_STAGE = 0x3000
_STAGE_SHIFT = 12
_FLAG_EXTENDED = 0x4000
_FLAG_SKIP_WORKTREE = 0x4000  # among the extended flags
_WORD = 0xFFFFFFFF
_BILLION = 1_000_000_000
_MAX_TIME_NS = (_WORD + 1) * _BILLION - 1


def read_index_file(path: Path) -> Index:
    """Return the index; an empty one if there is no file.

    One that a stock Git wrote sparse is an UnsupportedError.
    """
    try:
        with translate_damage("the index", hint=_HINT), open_file(path) as file:
            stat = os.fstat(file.fileno())
            # A limit alone as the length would be allocated whole.
            data = file.read(min(MAX_INDEX_BYTES, stat.st_size) + 1)
    except FileNotFoundError:
        return Index()
    return parse_index(data, stat.st_mtime_ns)


def parse_index(data: bytes, timestamp_ns: int) -> Index:
    """Return what is in the bytes of an index file.

    Entries not older than ``timestamp_ns``, when the file was written, are marked racy.
    """
    entries: dict[str, IndexEntry] = {}
    stages: dict[str, list[TreeEntry | None]] = {}
    asleep: set[str] = set()
    with translate_damage("the index", hint=_HINT):
        for name, fields, extended in _parse_stored(data):
            entry = _make_entry(name, fields, extended, timestamp_ns)
            stage = (fields[-1] & _FLAG_STAGE) >> _STAGE_SHIFT
            known = stages.setdefault(entry.path, [None, None, None]) if stage else []
            if entry.path in entries or (stage and known[stage - 1] is not None):
                raise _damaged(f"path {entry.path!r} is in it twice")
            if stage:
                known[stage - 1] = entry.version
                asleep |= {entry.path} if entry.skip_worktree else set()
            else:
                entries[entry.path] = entry
    clash = _find_clash(entries) or min(entries.keys() & stages.keys(), default=None)
    if clash is not None:
        raise _damaged(f"path {clash!r} is in it as two things")
    unmerged = {path: (base, ours, theirs) for path, (base, ours, theirs) in stages.items()}
    return Index(entries, timestamp_ns, unmerged, frozenset(asleep))


def _parse_stored(data: bytes) -> list[tuple[bytes, tuple[Any, ...], int]]:
    """Return name, fields and extended flags of all entries."""
    if not _HEADER.size + _DIGEST_BYTES <= len(data) <= MAX_INDEX_BYTES:
        raise _damaged(f"{len(data):,} bytes are not an index")
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha1(body, usedforsecurity=False).digest() != digest:
        raise _damaged("its checksum does not match")
    magic, version, count = _HEADER.unpack_from(body)
    if magic != b"DIRC":
        raise _damaged(f"it begins with {magic!r}")
    if version not in _VERSIONS:
        raise UnsupportedError(f"the index has version {version}", hint="upgrade mvc")
    stored = []
    position, name = _HEADER.size, b""
    for _ in range(count):
        fields, extended, start = _parse_fields(body, position, version)
        name, end = _parse_name(body, start, fields[-1], name if version == _COMPRESSED else None)
        stored.append((name, fields, extended))
        # Up to eight NULs fill an entry, but for a compressed name, which has its own.
        position = end if version == _COMPRESSED else end + 8 - (end - position) % 8
    if position > len(body):
        raise _damaged("its last entry is cut off")
    _check_extensions(body[position:])
    return stored


def _find_clash(entries: Mapping[str, IndexEntry]) -> str | None:
    """Return a path that is a file and, for another path, a folder."""
    return min(folders_of(entries) & entries.keys(), default=None)


def _parse_fields(body: bytes, position: int, version: int) -> tuple[tuple[Any, ...], int, int]:
    """Return the fields of an entry, its extended flags and where its name begins."""
    fields = _ENTRY.unpack_from(body, position)
    position += _ENTRY.size
    if not fields[-1] & _FLAG_EXTENDED:
        return fields, 0, position
    if version == _VERSIONS[0]:
        raise _damaged("an entry has more flags than its version knows")
    return fields, _EXTENDED.unpack_from(body, position)[0], position + _EXTENDED.size


def _parse_name(body: bytes, start: int, flags: int, before: bytes | None) -> tuple[bytes, int]:
    """Return a name and where it ends; a compressed one begins as ``before``."""
    if before is None:
        size_bytes = flags & _FLAG_NAME_BYTES
        is_long = size_bytes == _FLAG_NAME_BYTES
        end = body.index(b"\0", start) if is_long else start + size_bytes
        return body[start:end], end
    dropped = body[start] & 0x7F
    while body[start] & 0x80:
        start += 1
        dropped = (dropped + 1 << 7) + (body[start] & 0x7F)
    if dropped > len(before):
        raise _damaged("a compressed path is longer than the one before")
    end = body.index(b"\0", start + 1)
    return before[: len(before) - dropped] + body[start + 1 : end], end + 1


def _make_entry(
    name: bytes, fields: tuple[Any, ...], extended: int, timestamp_ns: int
) -> IndexEntry:
    ctime_s, ctime_rest, mtime_s, mtime_rest, device, inode, bits, _, _, size, blob, _ = fields
    path = decode_path(name)
    fault = find_path_fault(path)
    if fault is not None:
        raise _damaged(f"path {path[:200]!r} {fault}")
    mode = clean_mode(bits)
    if mode is None:
        raise UnsupportedError(
            f"path {path!r} has mode {bits:o} in the index: neither a file nor a link"
        )
    mtime_ns = mtime_s * _BILLION + mtime_rest
    return IndexEntry(
        path=path,
        blob=GitId(blob.hex()),
        mode=mode,
        size_bytes=size,
        mtime_ns=mtime_ns,
        ctime_ns=ctime_s * _BILLION + ctime_rest,
        inode=inode,
        device=device,
        skip_worktree=bool(extended & _FLAG_SKIP_WORKTREE),
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
        if not name.isalpha():
            raise _damaged(f"{name!r} is not a valid extension")
        if name == b"link":
            raise UnsupportedError("the index is split, which mvc does not read", hint=_SPLIT_HINT)
        if not name[:1].isupper():
            raise UnsupportedError(
                f"the index has extension {name!r}, which mvc does not know", hint=_HINT
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
    staged = [(path, 0, entry) for path, entry in index.entries.items()]
    staged += [
        (path, number, IndexEntry(path, stage.blob, stage.mode, skip_worktree=path in index.asleep))
        for path, stages in index.unmerged.items()
        for number, stage in enumerate(stages, 1)
        if stage is not None
    ]
    named = sorted((encode_path(path), number, path, entry) for path, number, entry in staged)
    stored = [_encode_entry(name, path, entry, number) for name, number, path, entry in named]
    version = 3 if any(entry.skip_worktree for _, _, entry in staged) else 2
    data = b"".join([_HEADER.pack(b"DIRC", version, len(stored)), *stored])
    return data + hashlib.sha1(data, usedforsecurity=False).digest()


def _encode_entry(name: bytes, path: str, entry: IndexEntry, stage: int) -> bytes:
    fault = find_path_fault(path)
    if fault is not None or path != entry.path:
        raise UsageError(f"path {path!r} cannot be staged: it {fault or 'names another entry'}")
    if entry.mode not in FILE_MODES:
        raise UsageError(f"path {path!r} has mode {entry.mode:o}, which Git does not know")
    fields = _ENTRY.pack(
        *_split_time(entry.ctime_ns),
        *_split_time(entry.mtime_ns),
        entry.device & _WORD,
        entry.inode & _WORD,
        entry.mode,
        0,
        0,
        0 if entry.racy else stored_size(entry.size_bytes),
        bytes.fromhex(entry.blob),
        min(len(name), _FLAG_NAME_BYTES)
        | (_FLAG_EXTENDED if entry.skip_worktree else 0)
        | stage << _STAGE_SHIFT,
    )
    extended = _EXTENDED.pack(_FLAG_SKIP_WORKTREE) if entry.skip_worktree else b""
    size_bytes = len(fields) + len(extended) + len(name)
    return fields + extended + name + bytes(8 - size_bytes % 8)


def _split_time(time_ns: int) -> tuple[int, int]:
    # A time that 32 bits cannot hold is stored as none: such an entry never matches.
    return divmod(time_ns if 0 <= time_ns <= _MAX_TIME_NS else 0, _BILLION)


def _damaged(detail: str) -> CorruptionError:
    return CorruptionError(f"the index is damaged: {detail}", hint=_HINT)
