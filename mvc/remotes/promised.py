"""Content that is not here, but on a remote that promises to give it: read when it is needed.

Such a remote is marked in the config (``remote.NAME.promisor``). Which packs it has is remembered, with
their indexes, each time it is heard of: so what is promised is known without asking, and only reading it
takes requests. What was read is in a cache for some time; nothing of it is part of the repository.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from mvc import fs
from mvc.chunkstore.listing import PACKS, index_key, pack_key
from mvc.errors import StorageError
from mvc.ids import PackId
from mvc.remotes.brought import read_brought
from mvc.remotes.remote import Remote
from mvc.remotes.remote_packs import read_sizes
from mvc.remotes.settings import list_remotes
from mvc.storage.cached import CachedStorage
from mvc.storage.joined import ReadOnlyStorage
from mvc.storage.protocol import ObjectInfo, Storage
from mvc.workspace.settings import CACHE_SIZE, parse_cache_size

if TYPE_CHECKING:
    from mvc.workspace.context import Context

_FILE_NAME = "packs.json"
_CACHE_NAME = "cache"


def open_promised(context: Context) -> list[Storage]:
    """Return what remotes promise to give, each read through a cache that all of them share."""
    limit_bytes = parse_cache_size(context.history.config.get(CACHE_SIZE))
    return [
        CachedStorage(
            PromisedPacks(Remote(context, one)), context.git_dir / _CACHE_NAME, limit_bytes
        )
        for one in list_remotes(context).values()
        if one.is_promisor and one.store is not None
    ]


def remember_packs(remote: Remote, packs: Mapping[PackId, int]) -> None:
    """Remember which packs a remote has, if it is one that promises what is not here."""
    if not remote.settings.is_promisor or remote.settings.store is None:
        return
    if packs:
        remote.packs.keep_indexes(packs)
    fs.make_dirs(remote.folder)
    fs.write_durable(remote.folder / _FILE_NAME, [msgspec.json.encode(dict(sorted(packs.items())))])


class PromisedPacks(ReadOnlyStorage):
    """The packs of a remote, as last heard of; only to be read.

    The root is read again once something that it named is gone: packs may be joined there.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._file = remote.folder / _FILE_NAME
        self._packs: dict[PackId, int] | None = None
        self._is_stale = False

    def read_into(self, key: str, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` on, with one request."""
        name = self._remote.settings.name
        try:
            self._remote.storage.read_into(key, offset, buffer)
        except FileNotFoundError:
            self._is_stale = True
            if self.find_size(key) is None:
                raise  # it is elsewhere now
            raise StorageError(
                f"remote {name!r} ({self._remote.settings.url}) lacks {key}, which it promised",
                hint=f'"mvc fsck --remote {name}" tells what is wrong there',
            ) from None
        except StorageError as error:
            raise StorageError(
                f"this content is on remote {name!r}, which cannot be read: {error.message}",
                hint=error.hint
                or f'"mvc fetch {name} --content REV" brings it while the remote is there',
            ) from error

    def read(self, key: str) -> bytes:
        """Return a whole pack index, which is known here."""
        pack = _pack_of(key)
        if key != index_key(pack) or pack not in self._known():
            raise FileNotFoundError(key)
        return self._remote.packs.read_index(pack, self._known()[pack])

    def find_size(self, key: str) -> int | None:
        """Return the length of a pack in bytes, or None if there is none."""
        pack = _pack_of(key)
        return self._known().get(pack) if key == pack_key(pack) else None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the packs, sorted by key."""
        for pack, size_bytes in sorted(self._known().items()) if prefix == PACKS else ():
            yield ObjectInfo(pack_key(pack), size_bytes, is_far=True)

    def forget(self, key: str) -> None:
        """Fetch the index of a pack again when it is next read: it may have been a lie."""
        self._remote.packs.forget(_pack_of(key))

    def _known(self) -> dict[PackId, int]:
        if self._packs is None:
            packs = read_sizes(self._file)
            if packs is None:
                self._ask()
                packs = read_sizes(self._file) or {}
            self._packs = packs | read_brought(self._remote)
        elif self._is_stale:
            self._is_stale = False
            with contextlib.suppress(StorageError):  # the read itself fails then, and says so
                self._ask()
            self._packs = (read_sizes(self._file) or {}) | read_brought(self._remote)
        return self._packs

    def _ask(self) -> None:
        try:
            root = self._remote.roots.read()
            if root is not None:
                remember_packs(self._remote, self._remote.roots.read_listing(root).packs)
        except StorageError as error:
            raise StorageError(
                f"remote {self._remote.settings.name!r} promises content, and cannot be asked for it: "
                f"{error.message}",
                hint=error.hint,
            ) from error


def _pack_of(key: str) -> PackId:
    return PackId(key.removeprefix(PACKS).partition(".")[0])
