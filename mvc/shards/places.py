"""Where shards are: a folder or a store, as a list of files and the bytes of each.

What belongs to a map: all files below the root, or those that its pattern names, but names that
begin with a dot, other maps, and what is mvc's or Git's own. No link is followed but the root itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from mvc import fs
from mvc.errors import ConflictError, UnsupportedError, UsageError, translate_os_errors
from mvc.history.ignore import parse_rules
from mvc.history.names import encode_path
from mvc.shards.shard_map import MAP_SUFFIX, find_path_fault
from mvc.sources import ByteSource, FileSource
from mvc.storage.urls import StoreOptions, has_store_scheme, parse_store_url
from mvc.workspace.content import let_tick_pass
from mvc.workspace.worktree import find_file_stat

if TYPE_CHECKING:
    from mvc.fs import FileStat
    from mvc.storage.foreign import ForeignObject, ForeignObjects, ObjectSource

PIECE_BYTES = 1 << 20
"""What is read of a file at once."""
_FILE_URL = "file://"
GONE = "is listed, but cannot be opened"
_CHANGED_HINT = "try again once nothing writes to it"


@dataclass(frozen=True, slots=True)
class FoundShard:
    """A file or object as it is now, before anything of it is read.

    Attributes:
        path: relative to the root.
        size_bytes: its length.
        tag: what a store calls this version, or None.
        stat: of a file, what tells whether it changed.
        fault: why it cannot be read, though it is listed: ``GONE``, or that it is a link.
    """

    path: str
    size_bytes: int
    tag: str | None = None
    stat: FileStat | None = None
    fault: str | None = None


class OpenShard(Protocol):
    """One shard, open: all its bytes once in order, and any range after that."""

    source: ByteSource

    def pieces(self) -> Iterator[bytes | bytearray]:
        """Yield all bytes in order; a piece is valid until the next one is asked for."""
        ...


class ShardPlace(Protocol):
    """A folder or store that holds shards; safe for many threads."""

    name: str

    def list(self, pattern: str | None) -> list[FoundShard]:
        """Return the shards that are listed, by path; with a pattern only those that fit it."""
        ...

    def find(self, path: str) -> FoundShard | None:
        """Return what is under a path, listed or not; None if nothing that can be a shard is."""
        ...

    def open(self, file: FoundShard) -> AbstractContextManager[OpenShard]:
        """Open a shard for the length of a ``with`` block; nothing may have changed since.

        Raises:
            UnsupportedError: it is a link, or no file.
            FileNotFoundError: it is not there any more.
            ConflictError: it changed.
        """
        ...


def open_place(
    root: str, base: str | os.PathLike[str], options: StoreOptions | None = None
) -> ShardPlace:
    """Return the place that the root of a map names.

    Args:
        root: a path relative to ``base``, or a URL.
        base: the folder of the map's file.
        options: how a store is reached.
    """
    if not has_store_scheme(root):
        return Folder(os.path.join(base, root), root)
    url = parse_store_url(root)
    if url.scheme == "file":
        return Folder(url.prefix, root)
    from mvc.storage.foreign import ForeignObjects  # noqa: PLC0415  brings obstore

    return Bucket(ForeignObjects(url, options), str(url))


def file_url(folder: str) -> str:
    """Return an absolute folder as a URL."""
    return _FILE_URL + quote(folder, errors="surrogateescape")


def choose(paths: list[str], pattern: str | None) -> list[str]:
    """Return the sorted paths that a map takes; UsageError if the pattern makes no sense."""
    kept = sorted(
        path
        for path in paths
        if not path.startswith(".")
        and "/." not in path
        and not path.endswith((MAP_SUFFIX, fs.TEMP_SUFFIX))
    )
    if pattern is None:
        return kept
    # A pattern is a rule of .mvcignore, so what the map has and what is no longer untracked is the same.
    rules = parse_rules(encode_path(f"/{pattern}"))
    if len(rules) != 1 or not rules[0].excludes:
        raise UsageError(f"{pattern[:200]!r} is not a pattern")
    return [path for path in kept if rules[0].matches(encode_path(path), is_dir=False)]


def escape(name: str) -> str:
    """Return the pattern that only a path itself fits."""
    return re.sub(r"([\\*?\[\]]| +\Z)", r"\\\1", name)


class Folder:
    """A folder of this machine."""

    def __init__(self, folder: str, name: str) -> None:
        self.folder = Path(os.path.realpath(folder))
        self.name = name

    def list(self, pattern: str | None) -> list[FoundShard]:
        """Return the files below the folder that belong to a map."""
        with translate_os_errors(f"look at {self.folder}"):  # a folder above it may be closed
            if not self.folder.is_dir():
                raise FileNotFoundError(self.name)
        return [self._found(path) for path in choose(list(self._walk()), pattern)]

    def find(self, path: str) -> FoundShard | None:
        """Return the file under a path, unless it is beyond a link."""
        stat = find_file_stat(self.folder, path)
        is_file = stat is not None and stat.is_regular
        return FoundShard(path, stat.size_bytes, None, stat) if stat and is_file else None

    @contextmanager
    def open(self, file: FoundShard) -> Iterator[OpenFile]:
        """Open a file; it must not change until the block ends."""
        if file.fault not in (None, GONE):
            hint = "name the folder that it leads to, or a pattern without it"
            raise UnsupportedError(f"{file.path!r} in {self.name} {file.fault}", hint=hint)
        before = file.stat
        if before is not None:
            let_tick_pass(before)
        with FileSource.open(self.folder / file.path) as source:
            if before is not None and source.stat != before:
                raise _changed(file.path)
            yield OpenFile(source)
            if find_file_stat(self.folder, file.path) != source.stat:
                raise _changed(file.path)

    def _walk(self) -> Iterator[str]:
        pending = [""]
        while pending:
            under = pending.pop()
            with translate_os_errors(f"list {self.folder}/{under}"):
                entries = list(os.scandir(self.folder / under))
            for entry in entries:
                path = f"{under}/{entry.name}" if under else entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                else:
                    yield path

    def _found(self, path: str) -> FoundShard:
        file = self.find(path)
        if file is not None:
            return file
        stat = fs.find_stat(self.folder / path)
        if stat is None:  # gone since it was listed, or listed before it is there
            return FoundShard(path, 0, fault=GONE)
        what = "is a link" if stat.is_symlink else "is neither a file nor a folder"
        return FoundShard(path, 0, fault=what)


class OpenFile:
    """An open file."""

    def __init__(self, source: FileSource) -> None:
        self.source: ByteSource = source
        self._descriptor = source.descriptor

    def pieces(self) -> Iterator[bytes | bytearray]:
        """Yield all bytes in order."""
        size_bytes = self.source.size_bytes
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        buffer = bytearray(min(PIECE_BYTES, size_bytes))
        for offset in range(0, size_bytes, PIECE_BYTES):
            if size_bytes - offset < len(buffer):
                buffer = bytearray(size_bytes - offset)
            self.source.read_into(offset, memoryview(buffer))
            yield buffer


class Bucket:
    """The objects below the prefix of a store."""

    def __init__(self, objects: ForeignObjects, name: str) -> None:
        self._objects = objects
        self.name = name

    def list(self, pattern: str | None) -> list[FoundShard]:
        """Return the objects that belong to a map."""
        listed = {entry.key: entry for entry in self._objects.list() if not entry.key.endswith("/")}
        for key in listed:
            fault = find_path_fault(key)
            if fault is not None:
                raise UnsupportedError(f"the key {key[:200]!r} in {self.name} {fault}")
        return [_as_found(listed[key]) for key in choose(list(listed), pattern)]

    def find(self, path: str) -> FoundShard | None:
        """Return the object under a key."""
        entry = self._objects.find(path)
        return None if entry is None else _as_found(entry)

    @contextmanager
    def open(self, file: FoundShard) -> Iterator[OpenObject]:
        """Open the version of an object that was listed."""
        from mvc.storage.foreign import ForeignObject  # noqa: PLC0415  brings obstore

        version = ForeignObject(file.path, file.size_bytes, file.tag)
        yield OpenObject(self._objects.open(version))


def _as_found(listed: ForeignObject) -> FoundShard:
    return FoundShard(listed.key, listed.size_bytes, listed.tag or None)


class OpenObject:
    """One version of an object."""

    def __init__(self, source: ObjectSource) -> None:
        self.source: ByteSource = source
        self._object = source

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes in order."""
        return self._object.read_ahead()


def _changed(path: str) -> ConflictError:
    return ConflictError(f"{path!r} changed while it was read", hint=_CHANGED_HINT)
