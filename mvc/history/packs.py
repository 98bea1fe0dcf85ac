"""Objects that stock Git moved into its own pack files (``git gc``), read through dulwich.

mvc itself writes loose objects only. dulwich's object store is imported when the first pack is
met: it costs as much as everything else that ``mvc log`` imports.

dulwich maps packs into memory. When it fails on a damaged one, the frames of the failed call keep
views of the map, and half-made objects keep files open; as long as anybody keeps the exception,
nothing of that can be closed. So the frames of every failure are cleared before it goes on.
"""

from __future__ import annotations

import contextlib
import os
import traceback
import warnings
import weakref
from typing import TYPE_CHECKING, cast

from mvc.errors import CorruptionError
from mvc.history.translate import FSCK_HINT, translate_damage
from mvc.ids import GitId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dulwich.object_store import DiskObjectStore
    from dulwich.objects import ObjectID

_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}


class PackedObjects:
    """The packs of an ``objects`` folder (and of its alternates)."""

    def __init__(self, folder: Path) -> None:
        """Take the ``objects`` folder; nothing is read yet."""
        self._folder = folder
        self._store: DiskObjectStore | None = None

    def find(self, object_id: GitId) -> tuple[str, bytes] | None:
        """Return (kind, content) of an object, or None where no pack has it.

        Raises:
            CorruptionError: the pack is damaged there. The content is not hashed here.
        """
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
        """Return the ids of a pack's objects, once its checksums were found to hold.

        Raises:
            CorruptionError: the pack or its index is damaged.
        """
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


@contextlib.contextmanager
def _translate_damage(subject: str) -> Iterator[None]:
    with translate_damage(subject):
        try:
            yield
        except Exception as fault:
            _clear_frames(fault)
            raise


def _clear_frames(fault: BaseException | None) -> None:
    """Let go of everything that the frames of a failure hold (see the module's text)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of dulwich's half-made objects
        while fault is not None:
            traceback.clear_frames(fault.__traceback__)
            fault = fault.__cause__ or fault.__context__
