"""Objects in Git's pack files, those of mvc and of stock Git (``git gc``), and what these borrow.

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
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar, cast

from mvc import fs
from mvc.errors import CorruptionError
from mvc.history.object_formats import KINDS
from mvc.history.translate import FSCK_HINT, translate_damage
from mvc.ids import GitId, hash_git_object

if TYPE_CHECKING:
    from pathlib import Path

    from dulwich.object_store import DiskObjectStore
    from dulwich.objects import ObjectID

    from mvc.history.git_pack import GitPackIndex
    from mvc.history.pack_reader import GitPackReader

_MAX_LOOKS = 10  # while a git gc replaces packs again and again
_MAX_OPEN = 16  # packs; each holds a descriptor
_Result = TypeVar("_Result")


def _open_reader(path: str, index: GitPackIndex) -> GitPackReader:
    from mvc.history.pack_reader import GitPackReader  # noqa: PLC0415  many commands read no pack

    return GitPackReader(path, index)


class PackedObjects:
    """The packs of an ``objects`` folder (and of its alternates)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prefix = f"{folder / 'pack'}{os.sep}"
        self._indexes: dict[str, GitPackIndex] = {}
        self._is_listed = False
        self._damage: CorruptionError | None = None
        self._lender: DiskObjectStore | None = None
        self._open = lru_cache(maxsize=_MAX_OPEN)(_open_reader)

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


def _hashed(object_id: GitId, kind: str, data: bytes) -> bytes:
    if hash_git_object(kind, data) != object_id:
        raise ValueError("its bytes hash to another id")
    return data


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
