"""How objects leave a store that others write at the same time, without a lock.

A sweep takes names out of the root, which notes when (``removed``). An object that no root names and none
has named for a grace period is announced in the root (``deleting``), which counts up ``sweeps``, and is
deleted only then; last, the announcement goes.

So a writer that builds upon a root knows by its own put what was deleted under it: if the newer root has as
many ``sweeps``, all that was there after the first one was read is there still, unless one of the two
announces it. No clock and no age of an upload is needed for that, only for how long garbage is kept, and
for when a sweep may end what another one has announced and, maybe, was killed in.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from mvc.chunkstore.listing import PACKS
from mvc.errors import ConflictError, StorageError
from mvc.remotes.root import Listing, Root, is_object_name, list_key, object_name

if TYPE_CHECKING:
    from mvc.remotes.hosted import HostedRoots
    from mvc.remotes.root_store import RootStore
    from mvc.storage.protocol import Storage

V = TypeVar("V")

_FOLDERS = (PACKS, "history/", "lists/")
LEASE_S = 3600
"""After this long a sweep may end what another one announced: its last request is over by then."""
_SLOW_S = LEASE_S / 2
_AT_ONCE = 250
_MAX_ROUNDS = 5


class MovedError(Exception):
    """What was built upon is not named any more, or was deleted, or others told what was released."""


@dataclass(frozen=True, slots=True)
class Unnamed:
    """What is on a store and not named by its root."""

    name: str  # the folder and the name, without what follows it
    keys: tuple[str, ...]
    size_bytes: int  # of all of them
    # when it was last written or named, as far as is known; None: it may have been just now
    since_s: float | None


def plan_until_it_holds(
    attempt: Callable[[], V], trouble: str = "the remote is being swept again and again"
) -> V:
    """Return what an attempt returns that reads the root, plans and writes; ``MovedError`` starts another.

    ConflictError: there were several, and no plan held.
    """
    for _ in range(_MAX_ROUNDS):
        with contextlib.suppress(MovedError):
            return attempt()
    raise ConflictError(f"{trouble}; try later")


def check_base(
    roots: RootStore | HostedRoots,
    base: Root,
    now: Root,
    sent: Listing,
    built_upon: Iterable[str] | None = None,
) -> None:
    """Check that what a writer built upon is still there; MovedError if it needs a new plan.

    ``base`` is the root before the writer looked at what the store has, ``now`` the one to be replaced, and
    ``sent`` are the packs it adds: ConflictError if one is being deleted. ``built_upon`` are names of the objects
    that must be named still; all that the base names by default.
    """
    is_named = base.nonce == now.nonce  # most often: the same root
    if not is_named:
        needed = roots.read_listing(base).names() if built_upon is None else set(built_upon)
        is_named = needed <= roots.read_listing(now).names()
    going = sent.names().intersection(now.deleting)
    if going:
        raise ConflictError(
            f"the remote is deleting {min(going)[:22]}, which is needed again",
            hint="try again once the gc there is done; what a killed one left, "
            "another one ends an hour later",
        )
    if not is_named or base.sweeps != now.sweeps or sent.names().intersection(base.deleting):
        raise MovedError


def without_packs(roots: RootStore, root: Root, names: Sequence[str], now_s: int) -> Root:
    """Return a root that does not name some packs any more, and says since when."""
    gone = {name.partition("/")[2] for name in names}
    dropped = roots.drop_packs(root, gone)
    return replace(dropped, removed={**dropped.removed, **dict.fromkeys(names, now_s)})


def list_unnamed(storage: Storage, root: Root, listing: Listing) -> list[Unnamed]:
    """Return what a store holds and the root does not name, by name."""
    named = listing.names().union(map(list_key, root.lists))
    marked = root.removed.keys() | root.deleting.keys()
    by_name: dict[str, list[tuple[str, int, float]]] = {name: [] for name in marked - named}
    for folder in _FOLDERS:
        for info in storage.list(folder):
            name = object_name(info.key)
            if name not in named and is_object_name(name):
                by_name.setdefault(name, []).append((info.key, info.size_bytes, info.made_s))
    return [
        Unnamed(
            name,
            tuple(key for key, _, _ in objects),
            sum(size_bytes for _, size_bytes, _ in objects),
            _find_since(name, root, max((made_s for _, _, made_s in objects), default=0.0)),
        )
        for name, objects in sorted(by_name.items())
    ]


def _find_since(name: str, root: Root, made_s: float) -> float | None:
    """Return since when something is garbage; pushes that join packs take them out without a note."""
    if name in root.deleting:
        return 0.0
    removed_s = root.removed.get(name)
    return None if removed_s is None else max(made_s, removed_s)


def note_unnamed(roots: RootStore, unnamed: Iterable[Unnamed], now_s: int) -> None:
    """Note the time in the root for what is unnamed since an unknown time."""
    fresh = {item.name for item in unnamed if item.since_s is None}

    def note(old: Root) -> Root:
        unnamed = sorted(fresh - _list_named(roots, old))
        return replace(old, removed={**dict.fromkeys(unnamed, now_s), **old.removed})

    if fresh:
        roots.update(note)


def _list_named(roots: RootStore, root: Root) -> set[str]:
    return roots.read_listing(root).names().union(map(list_key, root.lists))


def delete_unnamed(
    roots: RootStore, unnamed: Sequence[Unnamed], *, before_s: float
) -> Iterator[Unnamed]:
    """Delete what has been unnamed since before a moment; yield it, durably gone.

    What is named by now, or was taken out again later, stays. What another sweep has announced stays
    for an hour. StorageError: the store, or this machine, was too slow; the next sweep goes on.
    """
    for start in range(0, len(unnamed), _AT_ONCE):
        part = {item.name: item for item in unnamed[start : start + _AT_ONCE]}
        gone = _delete_part(roots, part, before_s)
        yield from (part[name] for name in sorted(gone))


def _delete_part(roots: RootStore, part: Mapping[str, Unnamed], before_s: float) -> frozenset[str]:
    """Announce what of a part may go, delete it, and forget it; return its names."""
    chosen: list[str] = []
    began_s = time.monotonic()

    def announce(old: Root) -> Root:
        now_s = time.time()
        chosen.clear()
        for name in part.keys() - _list_named(roots, old):
            if name in old.deleting:
                is_due = old.deleting[name] <= now_s - LEASE_S
            else:
                is_due = old.removed.get(name, 0) <= before_s
            if is_due:
                chosen.append(name)
        going = {**old.deleting, **dict.fromkeys(chosen, int(now_s))}
        return replace(old, deleting=going, sweeps=old.sweeps + 1)

    roots.update(announce)
    if time.monotonic() - began_s > _SLOW_S:
        raise StorageError("it took too long to announce what is deleted", hint="run gc again")
    roots.storage.delete(*(key for name in chosen for key in part[name].keys))
    gone = frozenset(chosen)

    def forget(old: Root) -> Root:
        return replace(
            old,
            removed={name: at for name, at in old.removed.items() if name not in gone},
            deleting={name: at for name, at in old.deleting.items() if name not in gone},
        )

    roots.update(forget)
    return gone
