"""What a remote holds, seen as a repository: to be checked, with nothing taken for granted.

Its history is brought into a scratch folder, its packs are looked at where they are. Only what the root
names exists in it, and nothing comes from the caches or the chunks of the repository that asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from mvc import fs
from mvc.chunkstore.listing import PACKS, index_key, pack_key
from mvc.errors import FormatError
from mvc.history.git import GitHistory
from mvc.history.names import TAGS
from mvc.remotes.history import bring_history
from mvc.remotes.remote import Remote
from mvc.remotes.remote_packs import RemotePacks
from mvc.remotes.root import Listing, Root, history_key
from mvc.storage.joined import JoinedStorage
from mvc.storage.local import LocalStorage
from mvc.storage.protocol import ObjectInfo, SharedStorage, Storage
from mvc.workspace.context import RELEASED_REF, Context

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.ids import PackId


class NamedPacks(JoinedStorage):
    """Packs and indexes that a root names, in a folder once they came, on the store until then."""

    def __init__(self, landing: LocalStorage, there: SharedStorage) -> None:
        super().__init__([landing, there])
        self.packs: dict[PackId, int] = {}
        self._landing = landing

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the named packs and their indexes, sorted by key."""
        indexes = {info.key: info for info in self._landing.list(prefix) if ".idx" in info.key}
        packs = {
            pack_key(pack): ObjectInfo(pack_key(pack), size) for pack, size in self.packs.items()
        }
        yield from (info for _, info in sorted({**indexes, **packs}.items()))


@dataclass
class Mirror(Context):
    """A repository in a scratch folder whose chunks are those of a remote."""

    packs: NamedPacks = field(kw_only=True)
    indexes: RemotePacks = field(kw_only=True)

    def _storage(self) -> Storage:
        return self.packs

    @cached_property
    def landing(self) -> LocalStorage:
        """Where packs are while they are checked."""
        return LocalStorage(self.worktree / "landing")


def make_mirror(folder: Path, remote: Remote, root: Root) -> Mirror:
    """Return an empty mirror in a scratch folder, with all that the root's refs name as its refs."""
    lines = [f"{tip} {TAGS}{tip}\n" for tip in sorted(set(root.tips()))]
    if RELEASED_REF in root.refs:
        lines.insert(0, f"{root.refs[RELEASED_REF]} {RELEASED_REF}\n")
    GitHistory.init(folder / ".mvc", branch="main")
    fs.write_durable(folder / ".mvc/packed-refs", ["".join(lines).encode()])
    landing = LocalStorage(folder / "landing")
    return Mirror(
        folder,
        GitHistory.open(folder / ".mvc"),
        packs=NamedPacks(landing, remote.storage),
        indexes=RemotePacks(remote.storage, folder / "landing", landing),
    )


def list_sizes(storage: Storage) -> dict[str, int]:
    """Return key → length of all that a store holds below the folders that a root speaks of."""
    return {info.key: info.size_bytes for at in (PACKS, "history/") for info in storage.list(at)}


def find_misfits(listing: Listing, sizes: Mapping[str, int]) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, name of a pack, fact) of all that is missing, or has another length."""
    wanted: list[tuple[str, str, str, int]] = [
        ("pack", pack, pack_key(pack), size) for pack, size in listing.packs.items()
    ]
    wanted += [("history", name, history_key(name), size) for name, size in listing.history.items()]
    for what, name, key, size_bytes in wanted:
        actual_bytes = sizes.get(key)
        if actual_bytes is None:
            yield f"missing-{what}", name, f"the remote lacks {key}, which its root names"
        elif actual_bytes != size_bytes:
            fact = f"{key} has {actual_bytes:,} bytes, {size_bytes:,} by the root"
            yield f"bad-{what}", name, fact
    for pack in listing.packs:
        if index_key(pack) not in sizes:
            yield "missing-index", pack, f"the remote lacks {index_key(pack)}"


def fill_history(mirror: Mirror, remote: Remote, root: Root, history: Mapping[str, int]) -> None:
    """Bring the history that refs and channels lead to into a mirror; FormatError if it is incomplete."""
    there = Remote(mirror, remote.settings)
    bring_history(mirror, there, history, root.tips(), ())


def fill_index(mirror: Mirror, pack: PackId, size_bytes: int) -> str | None:
    """Bring the index of one pack into a mirror; return what is wrong with it, if anything."""
    try:
        mirror.indexes.indexes({pack: size_bytes})
    except FormatError as error:
        return error.message
    mirror.packs.packs[pack] = size_bytes
    return None
