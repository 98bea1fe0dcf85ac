"""The root of a remote whose history is on a Git host, and its content, if there is any, on a store.

The host has commits, trees, manifests and refs, and decides where these may move. The root on the store
names packs and the host that needs them, and no ref: so there is one truth about refs, and stock Git
may push to the host as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc import fs
from mvc.history.hosts import GitHost, Haves
from mvc.history.transfer import Entry, receive_host_pack
from mvc.remotes.root import Listing, Root, with_packs

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.history.host_urls import GitUrl
    from mvc.history.objects import ObjectStore
    from mvc.ids import GitId
    from mvc.remotes.root_store import RootStore


class HostedRoots:
    """The refs of a Git host with the packs of a store, as one root.

    Args:
        url: of the host.
        content: the root of the store; None if there is no store.
        timeout_s: after how many seconds without an answer the host is given up.
    """

    def __init__(self, url: GitUrl, content: RootStore | None, *, timeout_s: int) -> None:
        self._url = url
        self._content = content
        self._host = GitHost(url, timeout_s=timeout_s)
        self._seen: Root | None = None
        self._cargo: tuple[ObjectStore, Sequence[Entry]] | None = None

    def read(self) -> Root | None:
        """Return the root as it is now, or None if there is nothing."""
        # The store first: what refs need was there before they moved.
        root = self._content.read() if self._content is not None else None
        host_refs = self._host.read_refs()
        if root is None and not host_refs.refs:
            return None
        self._seen = replace(root or Root(), refs=host_refs.refs, head=host_refs.head)
        return self._seen

    def read_listing(self, root: Root) -> Listing:
        """Return all packs that a root names."""
        return Listing() if self._content is None else self._content.read_listing(root)

    def drop_packs(self, root: Root, names: Iterable[str]) -> Root:
        """Return a root that does not name some packs any more."""
        return root if self._content is None else self._content.drop_packs(root, names)

    def carry(self, objects: ObjectStore, entries: Sequence[Entry]) -> None:
        """Let the next update send some objects to the host."""
        self._cargo = objects, entries

    def update(self, change: Callable[[Root], Root], *, since_read: bool = False) -> Root:
        """Name packs on the store, then move refs on the host; see ``RootStore.update``.

        ``change`` sees the refs as they were read. They move only if they still are that, or ConflictError.
        """
        seen = (self._seen if since_read else None) or self.read() or Root()
        self._seen = None
        new = change(seen)
        identity = self._url.identity

        def name(old: Root) -> Root:
            named = change(replace(old, refs=seen.refs, head=seen.head))
            hosts = tuple(sorted({*old.hosts, identity}))
            return replace(named, refs={}, head=old.head, hosts=hosts)

        is_same = (new.listed, new.lists) == (seen.listed, seen.lists)
        is_named = is_same and identity in seen.hosts
        if self._content is not None and not (is_named or not len(self.read_listing(new))):
            self._content.update(name, since_read=since_read)
        names = dict.fromkeys([*seen.refs, *new.refs])
        moves = {
            name_of_ref: (seen.refs.get(name_of_ref), new.refs.get(name_of_ref))
            for name_of_ref in names
        }
        moves = {name_of_ref: (old, now) for name_of_ref, (old, now) in moves.items() if old != now}
        if moves:
            assert self._cargo is not None
            self._host.push(moves, *self._cargo)
            self._confirm(new)
        return new

    def _confirm(self, new: Root) -> None:
        """Name packs again that a sweep stopped naming before the refs moved that need them.

        Its second step, which removes them, is a grace period away, and looks once more.
        """
        wanted = self.read_listing(new)
        if self._content is None or not len(wanted):
            return

        def lacks(root: Root) -> Listing:
            assert self._content is not None
            now = self._content.read_listing(root)
            return wanted.without([*now.packs, *now.history])

        def name(root: Root) -> Root:
            lost = lacks(root)
            return with_packs(root, lost.packs, lost.history)

        if len(lacks(self._content.read() or Root())):
            self._content.update(name)

    def receive(
        self, objects: ObjectStore, tips: Iterable[GitId], known: Iterable[GitId], folder: Path
    ) -> None:
        """Bring what some commits or tags lead to and what is known does not, verified; ``folder`` is for the pack on its way.

        Raises:
            FormatError: what came is damaged.
            StorageError: the host cannot be reached, or refuses.
        """
        known = list(known)
        wants = [tip for tip in dict.fromkeys(tips) if not (known and objects.has(tip))]
        if not wants:
            return
        path = folder / "host.pack"
        common = [] if self._seen is None else list(self._seen.refs.values())
        try:
            self._host.fetch(wants, Haves(objects, [*common, *known] if known else ()), path)
            receive_host_pack(objects, path)
        finally:
            fs.remove_file(path)
