"""Objects in Git's pack files, those of mvc and of stock Git (``git gc``), and what these borrow.

Whether a blob is a manifest shows in its first bytes, and a manifest may have 100 MB, so the start
of an object is read without the rest: of a delta, only the instructions that make those bytes, and
only the part of its base that they copy from.

An index is read whole when its pack is met, a pack is opened when something in it is read. A ``git
gc`` may replace packs at any time: what is in none of the packs known so far is looked for again,
and so is what was in one that is gone. Damage counts only if no pack has the object whole.

dulwich reads what another repository lends (``info/alternates``), and checks packs for ``fsck``. It
maps packs into memory. When it fails on a damaged one, the frames of the failed call keep views of
the map, and half-made objects keep files open; while the exception lives, none of that can be
closed. So the frames of every failure are cleared before it is raised further.
"""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from mvc import fs
from mvc.errors import CorruptionError
from mvc.history.object_formats import KINDS
from mvc.history.translate import FSCK_HINT, translate_damage
from mvc.ids import GitId, hash_git_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from dulwich.object_store import DiskObjectStore
    from dulwich.objects import ObjectID

    from mvc.history.git_pack import GitPackIndex

MAX_OBJECT_BYTES = 512 * 1024 * 1024
"""Largest object read or written, Git's own bigFileThreshold: a manifest of 8 million chunks."""
_OFFSET_DELTA, _ID_DELTA = 6, 7
_ID_BYTES = 20
_HEADER_BYTES = 64  # more than the header of any entry, or the two lengths of a delta
_BLOCK_BYTES = 4096
_MAX_BLOCK_BYTES = 1 << 20
_COPY_BYTES = 8  # at most, for an instruction that makes at least one byte
_MAX_INSERT_BYTES = 128
_MAX_CHAIN = 10_000  # Git itself stops at 4,095
_MAX_LOOKS = 10  # while a git gc replaces packs again and again
_MAX_OPEN = 16  # packs; each holds a descriptor
_MAX_BASES = 256  # kept of each open pack: the deltas of a chain share their bases
_MAX_BASE_BYTES = 1 << 16
_Result = TypeVar("_Result")


class PackedObjects:
    """The packs of an ``objects`` folder (and of its alternates)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prefix = f"{folder / 'pack'}{os.sep}"
        self._indexes: dict[str, GitPackIndex] = {}
        self._is_listed = False
        self._damage: CorruptionError | None = None
        self._lender: DiskObjectStore | None = None
        self._open = lru_cache(maxsize=_MAX_OPEN)(GitPackReader)

    def find(self, object_id: GitId) -> tuple[str, bytes] | None:
        """Return (kind, content) of an object, hashed, or None if no pack has it."""

        def read(pack: GitPackReader, offset: int) -> tuple[str, bytes]:
            kind, data = pack.read(offset)
            return kind, _hashed(object_id, kind, data)

        entry = self._first(object_id, read)
        return self._borrow(object_id) if entry is None else entry

    def has(self, object_id: GitId) -> bool:
        """Return whether a pack (or an alternate) has an object, by the indexes alone."""
        if self._first(object_id, lambda *_: True):
            return True
        store = self._find_lender()
        if store is None:
            return False
        with _translate_damage("the index of a Git pack"):
            return cast("ObjectID", object_id.encode()) in store

    def find_start(self, object_id: GitId, count: int) -> tuple[str, int, bytes] | None:
        """Return (kind, length, first ``count`` bytes) of an object, or None if no pack has it.

        Nothing is hashed.
        """
        start = self._first(object_id, lambda pack, at: pack.read_start(at, count))
        if start is not None:
            return start
        whole = self._borrow(object_id)
        return None if whole is None else (whole[0], len(whole[1]), whole[1][:count])

    def find_prefix(self, prefix: str) -> set[GitId]:
        """Return the ids of packed objects that begin with at least two hex digits."""
        self.look_again()
        ids = {name for index in self._indexes.values() for name in index.find_prefix(prefix)}
        store = self._find_lender()
        if store is not None:
            with _translate_damage("the index of a Git pack"):
                ids |= {GitId(name.decode()) for name in store.iter_prefix(prefix.encode())}
        return ids

    def find_path(self, object_id: GitId) -> Path | None:
        """Return the file of a pack that has an object; of packs made lately, None may be said."""
        if not self._is_listed:
            self.look_again()
        for name, _, _ in self._places(object_id, self._indexes):
            path = self._path(name)
            if fs.find_stat(path) is not None:
                return path
        return None

    def indexes(self) -> dict[Path, GitPackIndex]:
        """Return the files of all packs that are there now, with what they have.

        What is beyond a damaged index cannot be known: that is a CorruptionError.
        """
        self.look_again()
        if self._damage is not None:
            raise self._damage
        return {self._path(name): index for name, index in self._indexes.items()}

    def names(self) -> list[str]:
        """Return the names of the packs; one without an index does not count: it was being made."""
        with translate_damage("the folder of Git packs"):
            try:
                names = os.listdir(self._folder / "pack")
            except FileNotFoundError:
                return []
        return sorted(name.removesuffix(".idx") for name in names if name.endswith(".idx"))

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
            return [GitId(object_id.decode()) for object_id in pack]

    def close(self) -> None:
        """Close the pack files; they are opened again when they are needed."""
        self._open.cache_clear()
        if self._lender is not None:
            self._lender.close()

    def _path(self, name: str) -> Path:
        return self._folder / "pack" / f"{name}.pack"

    def _first(
        self, object_id: GitId, read: Callable[[GitPackReader, int], _Result]
    ) -> _Result | None:
        """Return what reading an object gives, from the first pack that has it whole, or None."""
        damage: CorruptionError | None = None
        for attempt in range(_MAX_LOOKS):
            before_ns = self.changed_ns() if attempt else 0
            is_sure = bool(attempt) and self.look_again()
            for name, index, offset in self._places(object_id, self._indexes):
                try:
                    with translate_damage(f"object {object_id} in a Git pack"):
                        return read(self._open_pack(name, index), offset)
                except FileNotFoundError:
                    self._indexes.pop(name, None)
                    is_sure = False
                except CorruptionError as error:
                    damage = error
            if is_sure and self.changed_ns() == before_ns:
                break
        damage = damage or self._damage
        if damage is not None:
            raise damage
        return None

    def _places(
        self, object_id: GitId, indexes: dict[str, GitPackIndex]
    ) -> Iterator[tuple[str, GitPackIndex, int]]:
        """Yield which of these packs have an object, with where it begins."""
        digest = bytes.fromhex(object_id)
        with translate_damage("the index of a Git pack"):
            for name, index in list(indexes.items()):
                offset = index.find(digest)
                if offset is not None:
                    yield name, index, offset

    def _open_pack(self, name: str, index: GitPackIndex) -> GitPackReader:
        pack = self._open(f"{self._prefix}{name}.pack", index)
        if pack.is_removed:
            raise FileNotFoundError(name)  # what only an open file holds is gone
        return pack

    def changed_ns(self) -> int:
        """Return when a pack was last added or removed; 0 if there is no folder of packs."""
        stat = fs.find_stat(self._prefix)
        return 0 if stat is None else stat.mtime_ns

    def look_again(self) -> bool:
        """Read the indexes of packs not met before; return whether none was removed meanwhile."""
        is_sure, known, names = True, self._indexes, self.names()
        self._is_listed, self._damage = True, None
        indexes = {name: known[name] for name in names if name in known}
        for name in [name for name in names if name not in known]:
            from mvc.history.git_pack import GitPackIndex  # noqa: PLC0415  there may be none

            try:
                with translate_damage(f"the index of Git pack {name}"):
                    indexes[name] = GitPackIndex.read(self._path(name).with_suffix(".idx"))
            except FileNotFoundError:
                is_sure = False
            except CorruptionError as error:
                self._damage = error
        self._indexes = indexes
        return is_sure

    def _borrow(self, object_id: GitId) -> tuple[str, bytes] | None:
        store = self._find_lender()
        if store is None:
            return None
        name = cast("ObjectID", object_id.encode())
        with _translate_damage(f"object {object_id} of another repository"):
            try:
                number, data = store.get_raw(name)
            except KeyError as error:
                if error.args != (name,):
                    raise  # the base of a delta is missing: that is damage
                return None
            return KINDS[number], _hashed(object_id, KINDS[number], data)

    def _find_lender(self) -> DiskObjectStore | None:
        if self._lender is None and (self._folder / "info" / "alternates").exists():
            from dulwich.object_store import DiskObjectStore  # noqa: PLC0415  few borrow

            with _translate_damage("the Git packs"):
                self._lender = DiskObjectStore(str(self._folder))
            # dulwich warns about a store that is dropped with open packs: close it in time.
            weakref.finalize(self, self._lender.close)
        return self._lender


class Places(Protocol):
    """Knows where the objects of a pack are."""

    def find(self, name: bytes, /) -> int | None:
        """Return where the object of an id begins, or None if the pack does not have it."""


class GitPackReader:
    """A pack that is being read; it is closed once nothing uses it.

    Args:
        path: of the pack.
        index: says where the base of a delta is, given its id.
    """

    def __init__(self, path: str, index: Places) -> None:
        with fs.open_file(path) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self._index = index
        self._bases: dict[int, tuple[str, bytes]] = {}

    @property
    def is_removed(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self._descriptor).st_nlink == 0

    def read(self, offset: int) -> tuple[str, bytes]:
        """Return (kind, content) of the object at an offset."""
        deltas: list[tuple[int, bytes]] = []
        entry = self._bases.get(offset)
        while entry is None:
            kind, size_bytes, start, base = self._parse_entry(offset)
            data = _inflate(self._descriptor, start, size_bytes)
            if len(data) < size_bytes:
                raise ValueError("its length is not the one it announces")
            if base is None:
                entry = KINDS[kind], data
                break
            deltas.append((offset, data))
            if len(deltas) > _MAX_CHAIN:
                raise ValueError("its chain of deltas does not end")
            offset = base
            entry = self._bases.get(offset)
        for place, delta in reversed(deltas):
            base_kind, base_data = entry
            if len(base_data) <= _MAX_BASE_BYTES:
                if len(self._bases) >= _MAX_BASES:
                    self._bases.clear()
                self._bases[offset] = entry
            pieces, made, _, base_bytes = _parse_delta(delta, MAX_OBJECT_BYTES)
            if base_bytes != len(base_data) or made > MAX_OBJECT_BYTES:
                raise ValueError("its delta is to another base")
            entry, offset = (base_kind, _join(pieces, base_data)), place
        return entry

    def read_start(self, offset: int, count: int) -> tuple[str, int, bytes]:
        """Return (kind, length, first bytes) of the object at an offset."""
        deltas: list[tuple[list[bytes | slice], int]] = []
        length, needed = None, count
        while True:
            kind, size_bytes, start, base = self._parse_entry(offset)
            if base is None:
                break
            limit = min(size_bytes, _HEADER_BYTES + _COPY_BYTES * needed + _MAX_INSERT_BYTES)
            pieces, made, needed, base_bytes = _parse_delta(
                _inflate(self._descriptor, start, limit), needed
            )
            length = made if length is None else length
            deltas.append((pieces, base_bytes))
            if len(deltas) > _MAX_CHAIN:
                raise ValueError("its chain of deltas does not end")
            offset = base
        data = _inflate(self._descriptor, start, min(needed, size_bytes))
        if len(data) < min(needed, size_bytes) or (deltas and deltas[-1][1] != size_bytes):
            raise ValueError("its length is not the one it announces")
        for pieces, _ in reversed(deltas):
            data = _join(pieces, data)
        return KINDS[kind], size_bytes if length is None else length, data[:count]

    def _parse_entry(self, offset: int) -> tuple[int, int, int, int | None]:
        """Return (kind, length, where the content begins, where the base of a delta begins)."""
        header = os.pread(self._descriptor, _HEADER_BYTES, offset)
        kind, size_bytes, header_bytes, base = parse_entry_header(header)
        if size_bytes > MAX_OBJECT_BYTES:
            raise ValueError(f"it announces {size_bytes:,} bytes")
        if isinstance(base, bytes):
            base = self._index.find(base)
            if base is None:
                raise ValueError("the base of its delta is missing")
        elif base is not None:
            base = offset - base
            if base < 0:
                raise ValueError("the base of its delta is not in the pack")
        return kind, size_bytes, offset + header_bytes, base


def _hashed(object_id: GitId, kind: str, data: bytes) -> bytes:
    if hash_git_object(kind, data) != object_id:
        raise ValueError("its bytes hash to another id")
    return data


def _join(pieces: Iterable[bytes | slice], base: bytes) -> bytes:
    return b"".join(base[piece] if isinstance(piece, slice) else piece for piece in pieces)


def parse_entry_header(header: bytes) -> tuple[int, int, int, int | bytes | None]:
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
        block = os.pread(descriptor, min(max(left, _BLOCK_BYTES), _MAX_BLOCK_BYTES), offset)
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
        except Exception as failure:
            # Release everything that the frames of the failure hold: see the module's text.
            import traceback  # noqa: PLC0415  only after damage

            fault: BaseException | None = failure
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # of dulwich's half-made objects
                while fault is not None:
                    traceback.clear_frames(fault.__traceback__)
                    fault = fault.__cause__ or fault.__context__
            raise
