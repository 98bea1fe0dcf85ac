"""Packs that other machines have sent to a remote, for commits that were made here.

In a sharded run over machines that share no folder, each sends its own packs, and the commit is pushed from
one of them. Until a push from there has named them, they are only known by what is noted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from mvc import fs
from mvc.chunkstore.listing import pack_key
from mvc.chunkstore.parallel import for_each
from mvc.remotes.remote_packs import read_sizes
from mvc.remotes.root import Listing, Root, object_name

if TYPE_CHECKING:
    from mvc.ids import PackId
    from mvc.remotes.remote import Remote

_FILE_NAME = "brought.json"
_LOCK_NAME = "brought.lock"
_THREADS = 16


def read_brought(remote: Remote) -> dict[PackId, int]:
    """Return the packs that were sent for commits here and are not named yet, with lengths."""
    return read_sizes(remote.folder / _FILE_NAME) or {}


def note_brought(remote: Remote, packs: Mapping[PackId, int]) -> None:
    """Note, durably, that others have sent some packs."""
    _change(remote, packs, ())


def forget_brought(remote: Remote, packs: Iterable[PackId]) -> None:
    """Forget about some packs: they are named, or nothing needs them."""
    _change(remote, {}, packs)


def _change(remote: Remote, new: Mapping[PackId, int], gone: Iterable[PackId]) -> None:
    fs.make_dirs(remote.folder)
    with fs.exclusive_lock(remote.folder / _LOCK_NAME):
        known, left = read_brought(remote), frozenset(gone)
        packs = {pack: size for pack, size in (known | dict(new)).items() if pack not in left}
        if packs != known:
            data = msgspec.json.encode(dict(sorted(packs.items())))
            fs.write_durable(remote.folder / _FILE_NAME, [data])


def find_brought(
    remote: Remote, noted: Mapping[PackId, int], root: Root, listing: Listing
) -> dict[PackId, int]:
    """Return those of the packs noted that are there, whole, and that a root does not name yet.

    The root was read before, so a sweep that takes one of them meanwhile is noticed when it is replaced.
    """
    waiting = {
        pack: size
        for pack, size in noted.items()
        if pack not in listing.packs and object_name(pack_key(pack)) not in root.deleting
    }
    there: dict[PackId, int] = {}

    def look(pack: PackId, _: None) -> int:
        if remote.storage.find_size(pack_key(pack)) == waiting[pack]:
            there[pack] = waiting[pack]
        return 0

    for_each(list(waiting), lambda: None, look, threads=_THREADS)
    return there
