"""Objects that stock Git moved into its own pack files (``git gc``), read through dulwich.

mvc itself writes loose objects only. dulwich's object store is imported when the first pack is
met: it costs as much as everything else that ``mvc log`` imports.

dulwich only knows whole objects. Whether a blob is a manifest shows in its first bytes, and a
manifest may have 100 MB, so the start of an object is read here: of a delta, only the instructions
that make those bytes, and only the part of its base that they copy from.

dulwich maps packs into memory. When it fails on a damaged one, the frames of the failed call keep
views of the map, and half-made objects keep files open; while the exception lives, none of that
can be closed. So the frames of every failure are cleared before it is raised further.
"""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
import zlib
from typing import TYPE_CHECKING, cast

from mvc.errors import CorruptionError
from mvc.history.translate import FSCK_HINT, translate_damage
from mvc.ids import GitId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dulwich.object_store import DiskObjectStore
    from dulwich.objects import ObjectID
    from dulwich.pack import FilePackIndex, PackIndex

_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}
_OFFSET_DELTA, _ID_DELTA = 6, 7
_ID_BYTES = 20
_HEADER_BYTES = 64  # more than the header of any entry, or the two lengths of a delta
_BLOCK_BYTES = 4096
_COPY_BYTES = 8  # at most, for an instruction that makes at least one byte
_MAX_INSERT_BYTES = 128
_MAX_CHAIN = 10_000  # Git itself stops at 4,095


class PackedObjects:
    """The packs of an ``objects`` folder (and of its alternates)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store: DiskObjectStore | None = None

    def find(self, object_id: GitId) -> tuple[str, bytes] | None:
        """Return (kind, content) of an object, or None if no pack has it; nothing is hashed."""
        store = self._find_store()
        if store is None:
            return None
        name = cast("ObjectID", object_id.encode())
        with _translate_damage(f"object {object_id} in a Git pack"):
            try:
                number, data = store.get_raw(name)
            except KeyError as error:
                if error.args != (name,):
                    raise  # the base of a delta is missing: that is damage
                return None
            return _KINDS[number], data

    def has(self, object_id: GitId) -> bool:
        """Return whether a pack (or an alternate) has an object, by the indexes alone."""
        store = self._find_store()
        if store is None:
            return False
        with _translate_damage("the index of a Git pack"):
            return cast("ObjectID", object_id.encode()) in store

    def find_start(self, object_id: GitId, count: int) -> tuple[str, int, bytes] | None:
        """Return (kind, length, first ``count`` bytes) of an object, or None if no pack has it.

        Nothing is hashed.
        """
        store = self._find_store()
        if store is None:
            return None
        from dulwich.pack import PackFileDisappeared  # noqa: PLC0415  see the module's text

        name = cast("ObjectID", object_id.encode())
        with _translate_damage(f"object {object_id} in a Git pack"):
            for pack in store.packs:
                # A git gc may replace packs at any time: ``find`` looks again then.
                with contextlib.suppress(KeyError, PackFileDisappeared, FileNotFoundError):
                    offset = pack.index.object_offset(name)
                    path = os.fsdecode(cast("FilePackIndex", pack.index).path)
                    with open(path.removesuffix(".idx") + ".pack", "rb") as file:
                        return _read_start(file.fileno(), pack.index, offset, count)
        whole = self.find(object_id) if self.has(object_id) else None
        return None if whole is None else (whole[0], len(whole[1]), whole[1][:count])

    def find_prefix(self, prefix: str) -> set[GitId]:
        """Return the ids of packed objects that begin with at least two hex digits."""
        store = self._find_store()
        if store is None:
            return set()
        with _translate_damage("the index of a Git pack"):
            return {GitId(found.decode()) for found in store.iter_prefix(prefix.encode())}

    def names(self) -> list[str]:
        """Return the names of the packs, without ``.pack``."""
        with translate_damage("the folder of Git packs"):
            try:
                names = os.listdir(self._folder / "pack")
            except FileNotFoundError:
                return []
        return sorted(name.removesuffix(".pack") for name in names if name.endswith(".pack"))

    def read_ids(self, name: str) -> list[GitId]:
        """Return the ids of a pack's objects, once its checksums were found to hold."""
        from dulwich.object_format import DEFAULT_OBJECT_FORMAT  # noqa: PLC0415  see the module
        from dulwich.pack import Pack, PackFileDisappeared  # noqa: PLC0415

        path = str(self._folder / "pack" / name)
        with _translate_damage(f"Git pack {name}"), contextlib.ExitStack() as stack:
            pack = Pack(path, object_format=DEFAULT_OBJECT_FORMAT)
            stack.callback(pack.close)
            try:
                pack.index.check()
                pack.data.check()
            except PackFileDisappeared as error:
                raise CorruptionError(f"Git pack {name} lacks a file", hint=FSCK_HINT) from error
            return [GitId(found.decode()) for found in pack]

    def close(self) -> None:
        """Close the pack files; they are opened again when they are needed."""
        if self._store is not None:
            self._store.close()

    def _find_store(self) -> DiskObjectStore | None:
        if self._store is None and self._exists():
            from dulwich.object_store import DiskObjectStore  # noqa: PLC0415  see the module's text

            with _translate_damage("the Git packs"):
                self._store = DiskObjectStore(str(self._folder))
            # dulwich warns about a store that is dropped with open packs: close it in time.
            weakref.finalize(self, self._store.close)
        return self._store

    def _exists(self) -> bool:
        return bool(self.names()) or (self._folder / "info" / "alternates").exists()


def _read_start(
    descriptor: int, index: PackIndex, offset: int, count: int
) -> tuple[str, int, bytes]:
    """Return (kind, length, first bytes) of the object at an offset of a pack."""
    deltas: list[tuple[list[bytes | slice], int]] = []
    length, needed = None, count
    while True:
        kind, size_bytes, start, base = _parse_entry(os.pread(descriptor, _HEADER_BYTES, offset))
        if base is None:
            break
        limit = min(size_bytes, _HEADER_BYTES + _COPY_BYTES * needed + _MAX_INSERT_BYTES)
        pieces, made, needed, base_bytes = _parse_delta(
            _inflate(descriptor, offset + start, limit), needed
        )
        length = made if length is None else length
        deltas.append((pieces, base_bytes))
        if len(deltas) > _MAX_CHAIN:
            raise ValueError("its chain of deltas does not end")
        offset = offset - base if isinstance(base, int) else _offset_of(index, base)
        if offset < 0:
            raise ValueError("the base of its delta is not in the pack")
    data = _inflate(descriptor, offset + start, min(needed, size_bytes))
    if len(data) < min(needed, size_bytes) or (deltas and deltas[-1][1] != size_bytes):
        raise ValueError("its length is not the one it announces")
    for pieces, _ in reversed(deltas):
        data = b"".join(data[piece] if isinstance(piece, slice) else piece for piece in pieces)
    return _KINDS[kind], size_bytes if length is None else length, data[:count]


def _offset_of(index: PackIndex, base: bytes) -> int:
    try:
        return index.object_offset(cast("ObjectID", base))
    except KeyError as error:
        raise ValueError("the base of its delta is missing") from error


def _parse_entry(header: bytes) -> tuple[int, int, int, int | bytes | None]:
    """Return (kind, length, where the content begins, base) of an entry of a pack.

    The base of a delta is the distance to an earlier entry, or an id.
    """
    kind, size_bytes, shift, at = header[0] >> 4 & 7, header[0] & 15, 4, 1
    while header[at - 1] & 0x80:
        size_bytes |= (header[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    if kind == _ID_DELTA:
        return kind, size_bytes, at + _ID_BYTES, header[at : at + _ID_BYTES]
    if kind != _OFFSET_DELTA:
        return kind, size_bytes, at, None
    distance, at = header[at] & 0x7F, at + 1
    while header[at - 1] & 0x80:
        distance, at = (distance + 1 << 7) | (header[at] & 0x7F), at + 1
    if not distance:
        raise ValueError("its delta is based on itself")
    return kind, size_bytes, at, distance


def _parse_delta(delta: bytes, count: int) -> tuple[list[bytes | slice], int, int, int]:
    """Return what makes the first ``count`` bytes of the result: (pieces, its length, …).

    A piece is bytes, or a slice of the base. Then: how many bytes of the base they need, and the
    length that the base must have.
    """
    base_bytes, at = _parse_length(delta, 0)
    made_bytes, at = _parse_length(delta, at)
    pieces: list[bytes | slice] = []
    done = reach = 0
    while done < min(count, made_bytes):
        code, at = delta[at], at + 1
        if code & 0x80:
            fields = []
            for bit in range(7):
                fields.append(delta[at] if code & 1 << bit else 0)
                at += bool(code & 1 << bit)
            start = int.from_bytes(fields[:4], "little")
            size_bytes = int.from_bytes(fields[4:], "little") or 0x10000
            if start + size_bytes > base_bytes:
                raise ValueError("its delta copies from beyond its base")
            size_bytes = min(size_bytes, count - done)
            pieces.append(slice(start, start + size_bytes))
            reach = max(reach, start + size_bytes)
        else:
            size_bytes = code
            pieces.append(delta[at : at + size_bytes])
            at += size_bytes
            if not size_bytes or at > len(delta):
                raise ValueError("its delta is cut off")
        done += size_bytes
    return pieces, made_bytes, reach, base_bytes


def _parse_length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at


def _inflate(descriptor: int, offset: int, count: int) -> bytes:
    """Return the first ``count`` bytes (or all) of a deflated stream in a file."""
    inflater, parts, left = zlib.decompressobj(), [], count
    while left and not inflater.eof:
        block = os.pread(descriptor, _BLOCK_BYTES, offset)
        if not block:
            break
        offset += len(block)
        parts.append(inflater.decompress(block, left))
        left -= len(parts[-1])
    return b"".join(parts)


@contextlib.contextmanager
def _translate_damage(subject: str) -> Iterator[None]:
    with translate_damage(subject):
        try:
            yield
        except Exception as fault:
            _clear_frames(fault)
            raise


def _clear_frames(fault: BaseException | None) -> None:
    """Release everything that the frames of a failure hold (see the module's text)."""
    import traceback  # noqa: PLC0415  only after damage

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of dulwich's half-made objects
        while fault is not None:
            traceback.clear_frames(fault.__traceback__)
            fault = fault.__cause__ or fault.__context__
