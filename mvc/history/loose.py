"""Git objects that are files of their own: ``objects/ab/cdef…`` is ``kind SP length NUL content``, deflated."""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from mvc import fs
from mvc.errors import CorruptionError, StorageError, UsageError, translate_os_errors
from mvc.history.object_formats import LEVEL, MAX_OBJECT_BYTES
from mvc.history.translate import FSCK_HINT, translate_damage
from mvc.ids import GitId, hash_git_object, is_git_id, is_hex_id

_MAX_HEADER = 32
_HEADER = re.compile(rb"(commit|tree|blob|tag) (0|[1-9][0-9]{0,12})\x00")
_MAX_TRIES = 10


class LooseObjects:
    """The files of an ``objects`` folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._prefix = folder, f"{folder}{os.sep}"

    def path(self, object_id: GitId) -> Path:
        """Return where an object is, or would be, a file of its own."""
        return Path(self._path_text(object_id))

    def find_stat(self, object_id: GitId) -> fs.FileStat | None:
        """Return the stat of an object's file, or None if there is none."""
        return fs.find_stat(self._path_text(object_id))

    def iterate(self) -> Iterator[GitId]:
        """Yield the ids of all objects that are files of their own."""
        with translate_os_errors(f"list {self._folder}"):
            names = sorted(os.listdir(self._folder))
        for name in names:
            if is_hex_id(name, 2):
                yield from sorted(_list_ids(self._folder / name))

    def find_prefix(self, prefix: str) -> set[GitId]:
        """Return the ids that begin with these hex digits, two at least."""
        return {name for name in _list_ids(self._folder / prefix[:2]) if name.startswith(prefix)}

    def write(self, object_id: GitId, kind: str, data: bytes) -> Path:
        """Write an object; return the folder that has to be synced for its name."""
        path = self.path(object_id)
        header = b"%s %d\x00" % (kind.encode(), len(data))
        compressor = zlib.compressobj(LEVEL)
        body = [compressor.compress(header), compressor.compress(data), compressor.flush()]
        with translate_damage(f"folder {path.parent}"), self._new_file(path.parent) as file:
            file.write(body)
            file.publish(path, read_only=True, sync_folder=False)
        return path.parent

    def read(self, object_id: GitId) -> tuple[str, bytes] | None:
        """Return (kind, content) of an object, hashed against its id; None if it is no file."""
        raw = self._read_file(object_id, MAX_OBJECT_BYTES + MAX_OBJECT_BYTES // 1024)
        if raw is None:
            return None
        with translate_damage(f"object {object_id}"):
            inflater = zlib.decompressobj()
            start = inflater.decompress(raw, _MAX_HEADER)
            kind, size_bytes, header_bytes = _parse_header(start, object_id)
            # One byte more than announced, so that a longer content is seen and not cut.
            rest = inflater.decompress(
                inflater.unconsumed_tail, max(1, size_bytes - len(start) + header_bytes + 1)
            )
        data = start[header_bytes:] + rest
        if len(data) != size_bytes or not inflater.eof or inflater.unused_data:
            raise _damaged(object_id, "its length is not the one its header announces")
        if hash_git_object(kind, data) != object_id:
            raise _damaged(object_id, "its bytes hash to another id")
        return kind, data

    def read_start(self, object_id: GitId, count: int) -> tuple[str, int, bytes] | None:
        """Return (kind, length, first ``count`` bytes), not hashed; None if it is no file."""
        raw = self._read_file(object_id, None, count + _MAX_HEADER + count // 64 + 1024)
        if raw is None:
            return None
        with translate_damage(f"object {object_id}"):
            start = zlib.decompressobj().decompress(raw, _MAX_HEADER + count)
        kind, size_bytes, header_bytes = _parse_header(start, object_id)
        prefix = start[header_bytes : header_bytes + count]
        if len(prefix) < min(count, size_bytes):
            raise _damaged(object_id, "it ends too early")
        return kind, size_bytes, prefix

    def _path_text(self, object_id: GitId) -> str:
        # Text, because a Path costs as much to make as a commit costs to read.
        if not is_git_id(object_id):
            raise UsageError(f"{object_id!r} is not an object id")
        return f"{self._prefix}{object_id[:2]}{os.sep}{object_id[2:]}"

    def _new_file(self, folder: Path) -> fs.DurableFile:
        name = f"tmp_obj_{os.urandom(6).hex()}"  # stock Git prunes files of that name
        for _ in range(_MAX_TRIES):
            fs.make_dirs(folder, durable=False)
            with contextlib.suppress(FileNotFoundError):  # a git gc removes empty folders
                return fs.DurableFile(folder, mode=0o444, name=name)
        raise StorageError(f"folder {folder} is removed again and again", hint="try again")

    def _read_file(
        self, object_id: GitId, limit_bytes: int | None, count: int = -1
    ) -> bytes | None:
        path = self._path_text(object_id)
        with translate_damage(f"object {object_id}"):
            try:
                with fs.open_file(path) as file:
                    size_bytes = os.fstat(file.fileno()).st_size
                    if limit_bytes is not None and size_bytes > limit_bytes:
                        raise _damaged(object_id, f"a Git object cannot have {size_bytes:,} bytes")
                    return file.read(count)
            except FileNotFoundError:
                return None


def _parse_header(start: bytes, object_id: GitId) -> tuple[str, int, int]:
    match = _HEADER.match(start)
    if match is None:
        raise _damaged(object_id, "not a valid Git header")
    size_bytes = int(match[2])
    if size_bytes > MAX_OBJECT_BYTES:
        raise _damaged(object_id, f"it announces {size_bytes:,} bytes")
    return match[1].decode(), size_bytes, match.end()


def _damaged(object_id: GitId, detail: str) -> CorruptionError:
    return CorruptionError(f"object {object_id} is damaged: {detail}", hint=FSCK_HINT)


def _list_ids(folder: Path) -> list[GitId]:
    with translate_os_errors(f"list {folder}"):
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
    whole = (folder.name + name for name in names)
    return [GitId(name) for name in whole if is_git_id(name)]
