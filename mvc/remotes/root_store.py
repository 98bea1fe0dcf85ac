"""Reads and replaces the root of a remote: the only thing on a store that ever changes.

A put whose answer got lost may have been done, and then a client that asks again hears that another
version is there; some stores answer a lost race with an internal error. So after any failure the root
is read back: the nonce says whose it is.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, FormatError, StorageError
from mvc.ids import hash_chunk
from mvc.remotes.root import (
    LIST_ENTRIES,
    MAX_LISTED,
    NONCE_BYTES,
    ROOT_KEY,
    Listing,
    Root,
    encode_list,
    encode_root,
    list_key,
    parse_list,
    parse_root,
)

if TYPE_CHECKING:
    from mvc.storage.protocol import SharedStorage

_PATIENCE_S = 60.0
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0


class RootStore:
    """The root of one remote.

    Args:
        storage: of the remote.
        patience_s: how long to try while others, or the store, are in the way.
        is_hosted: whether the history is on a Git host, and the store has the content only.
    """

    def __init__(
        self,
        storage: SharedStorage,
        *,
        patience_s: float = _PATIENCE_S,
        is_hosted: bool = False,
    ) -> None:
        self.storage = storage
        self._is_hosted = is_hosted
        self._patience_s = patience_s
        self._lists: dict[str, Listing] = {}
        self._seen: tuple[Root | None, str | None] | None = None

    def read(self) -> Root | None:
        """Return the root as it is now, or None if the store has none: one request."""
        self._seen = self._read()
        return self._seen[0]

    def has_moved(self) -> bool:
        """Return whether the root may be another than ``read`` returned last: one tiny request."""
        tag = None if self._seen is None else self._seen[1]
        return tag is None or not self.storage.is_current(ROOT_KEY, tag)

    def _read(self) -> tuple[Root | None, str | None]:
        tagged = self.storage.read_tagged(ROOT_KEY)
        if tagged is None:
            return None, None
        root = parse_root(tagged.data)
        if self._is_hosted and (root.refs or root.channels):
            raise ConflictError(
                "the store has a history of its own",
                hint="name another prefix for the content of the Git host",
            )
        if root.hosts and not self._is_hosted:
            raise ConflictError(
                f"the store has just the content for a Git host, {', '.join(root.hosts)}",
                hint='name the Git host, and this store with it: "mvc clone URL --content STORE"',
            )
        return root, tagged.tag

    def read_listing(self, root: Root) -> Listing:
        """Return all packs that a root names; lists are read once."""
        packs, history = dict(root.listed.packs), dict(root.listed.history)
        count = len(root.listed)
        for name in root.lists:
            listing = self._lists.setdefault(name, self._lists.get(name) or self._read_list(name))
            count += len(listing) + 1
            if count > MAX_LISTED:
                raise FormatError(f"the remote names more than {MAX_LISTED:,} packs and lists")
            packs |= listing.packs
            history |= listing.history
        return Listing(packs, history)

    def _read_list(self, name: str) -> Listing:
        try:
            data = self.storage.read(list_key(name))
        except FileNotFoundError:
            raise FormatError(f"list {name[:12]} of the remote is missing") from None
        if hash_chunk(data).hex() != name:
            raise FormatError(f"list {name[:12]} of the remote does not match its name")
        return parse_list(data)

    def update(self, change: Callable[[Root], Root], *, since_read: bool = False) -> Root:
        """Replace the root by what ``change`` makes of it, and return that.

        ``change`` is called again with the newer root whenever another writer was first, and raises
        what makes it give up. A store without a root begins with an empty one. With ``since_read``
        the root that ``read`` returned last is tried first, which saves a request.

        Raises:
            ConflictError: others were first for a whole minute.
            StorageError: the store did not answer, and it is not known what it did.
        """
        give_up_s = time.monotonic() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        old, tag = (self._seen if since_read else None) or self._read()
        self._seen = None
        while True:
            new = replace(self._compact(change(old or Root())), nonce=os.urandom(NONCE_BYTES).hex())
            try:
                self.storage.replace(ROOT_KEY, encode_root(new), tag)
            except (ConflictError, StorageError) as error:
                failure = error
            else:
                return new
            current, current_tag = self._read()
            if current is not None and current.nonce == new.nonce:
                return new
            if time.monotonic() > give_up_s:
                raise failure
            old, tag = current, current_tag
            time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311  spreads clients
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _compact(self, root: Root) -> Root:
        """Return the root; if it lists much, with that moved to a list of its own."""
        if len(root.listed) < LIST_ENTRIES:
            return root
        data = encode_list(root.listed)
        name = hash_chunk(data).hex()
        if list_key(name) in root.deleting:
            return root
        with self.storage.create("lists/") as file:
            file.write([data])
            file.publish(list_key(name))
        self._lists[name] = root.listed
        removed = {gone: at for gone, at in root.removed.items() if gone != list_key(name)}
        return replace(root, listed=Listing(), lists=(*root.lists, name), removed=removed)

    def drop_packs(self, root: Root, names: Iterable[str]) -> Root:
        """Return a root that does not name some packs any more, in whichever list they were."""
        gone = set(names)
        kept, listed = [], root.listed.without(gone)
        for name in root.lists:
            whole = self._lists.get(name) or self._read_list(name)
            rest = whole.without(gone)
            if len(rest) == len(whole):
                kept.append(name)
            else:
                listed = listed | rest
        return replace(root, listed=listed, lists=tuple(kept))
