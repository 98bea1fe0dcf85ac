"""What has come from a remote, in a folder of its own, until it is trusted.

Every pack there is hashed, and every chunk of it decoded and hashed, while others are still coming: a
pack's turn is once all that its chunks are based on has come. What is sound moves among the packs of
the repository at the end. What a kill leaves is found by the next attempt, which checks it first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from mvc import fs
from mvc.chunkstore.catalog import PackCatalog, delete_packs
from mvc.chunkstore.check import check_whole_pack
from mvc.chunkstore.listing import PACKS, PackListing, index_key, pack_key
from mvc.chunkstore.reader import ChunkReader
from mvc.chunkstore.store import ChunkStore
from mvc.errors import CorruptionError
from mvc.storage.joined import JoinedStorage
from mvc.storage.local import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from mvc.chunkstore.copies import StoredCopies
    from mvc.chunkstore.transfer_plan import TransferPlan
    from mvc.chunkstore.values import StoreProblem
    from mvc.formats.pack_index import PackIndex
    from mvc.ids import PackId
    from mvc.remotes.remote_packs import RemotePacks

_LOST_BASE = "lost-base"

Checks = dict["PackId", "Future[list[StoreProblem]]"]


class Arrival:
    """Packs that have come; a context manager, alone in its folder while it is entered.

    Args:
        folder: where they land.
        store: what they become part of.
        remote: where they come from.
    """

    def __init__(self, folder: Path, store: ChunkStore, remote: RemotePacks) -> None:
        fs.make_dirs(folder)
        self.landing = LocalStorage(folder)
        self._store = store
        self._remote = remote
        self._joined = JoinedStorage([self.landing, store.storage])
        self._reader = ChunkReader(PackCatalog(self._joined))
        self._leftovers: frozenset[PackId] = frozenset()
        self._lock = threading.Lock()
        self._needs: dict[PackId, frozenset[PackId]] = {}
        self._landed: set[PackId] = set()  # those that wait for others
        self._checks: Checks = {}
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._held.enter_context(fs.exclusive_lock(self.landing.root / "lock"))
        self._crew = ThreadPoolExecutor(self._store.threads, "mvc-check")
        self._held.callback(lambda: self._crew.shutdown(cancel_futures=True))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._held.close()

    def copies(self) -> StoredCopies:
        """Return all chunks that need not come: those of the store, and what a kill left here.

        Damaged packs are removed; one that lacks what its chunks are based on stays for now.
        """
        self._store.mend_indexes()  # a kill while packs moved may have left some without
        fs.remove_file(*(self.landing.root / PACKS).glob(f"*{fs.TEMP_SUFFIX}"))
        listing = PackListing(self.landing)
        self.landing.delete(*map(index_key, listing.lost_packs))
        for pack, check in self._submit(listing.packs).items():
            problems = check.result()
            if problems:
                del self._checks[pack]
            if any(problem.kind != _LOST_BASE for problem in problems):
                delete_packs(self.landing, [pack])
        self._leftovers = frozenset(PackListing(self.landing).packs) - self._checks.keys()
        return ChunkStore(self._joined).copies()

    def order(self, plan: TransferPlan) -> list[PackIndex]:
        """Return the packs that are to come whole, each after those that it is based on."""
        indexes = {index.pack: index for index in plan.whole}
        self._needs = dict(zip(indexes, plan.needs, strict=True))
        try:
            names = list(TopologicalSorter(self._needs).static_order())
        except CycleError:
            names = list(indexes)  # those of the circle are checked at the end
        due: list[PackIndex] = []
        for name in names:
            if self.landing.find_size(index_key(name)) is None:
                due.append(indexes[name])
            else:
                self.landed(indexes[name])
        return due

    def landed(self, index: PackIndex) -> None:
        """Say that a pack has come; may be called by many threads. CorruptionError: it, or an earlier one, is damaged."""
        self._reader.catalog.add(index)
        with self._lock:
            self._landed.add(index.pack)
            while ready := [
                pack for pack in self._landed if self._needs[pack] <= self._checks.keys()
            ]:
                self._landed.difference_update(ready)
                self._submit(ready)
            done = [pack for pack, check in self._checks.items() if check.done()]
        self._accept(done)

    def _submit(self, packs: Iterable[PackId]) -> Checks:
        new = {pack: self._crew.submit(check_whole_pack, self._reader, pack) for pack in packs}
        self._checks |= new
        return new

    def _accept(self, packs: Iterable[PackId]) -> None:
        """Wait for the checks of some packs; remove those that are damaged."""
        for pack in packs:
            for problem in self._checks[pack].result():
                delete_packs(self.landing, [pack])
                self._remote.forget(pack)
                if pack in self._leftovers:
                    break  # of an earlier attempt, for something else
                raise CorruptionError(
                    f"the remote sent damaged content: pack {pack[:12]}: {problem.detail}",
                    hint="nothing of it was kept; try another remote, or run fsck on this one",
                )

    def move(self, folder: Path) -> None:
        """Check the rest, and move all among the packs of the repository, durably."""
        self._reader.catalog.refresh()
        self._leftovers -= self._needs.keys()
        self._submit(PackListing(self.landing).packs.keys() - self._checks.keys())
        self._accept(list(self._checks))
        listing = PackListing(self.landing)
        fs.make_dirs(folder / PACKS)
        for key in (pack_key, index_key):
            for pack in listing.packs:
                fs.replace_staged(self.landing.root / key(pack), folder / key(pack))
            fs.fsync_dir(folder / PACKS)
