"""Which objects one side lacks, and Git packs that carry them.

A sender lists what is reachable from some commits or tags and not from others, and writes that as
one pack. A receiver trusts nothing: it parses the pack entry by entry within caps, hashes each
object, writes those it lacks as a pack of its own, and moves no ref before everything that the new
tips name is there. Packs of Git hosts have deltas: they are taken over as whole objects, too.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import FormatError
from mvc.history.git_pack import write_pack
from mvc.history.object_formats import KINDS, check_tree
from mvc.history.pack_reader import (
    TRAILER_BYTES,
    GitPackReader,
    inflate_entry,
    parse_entries,
)
from mvc.history.reachability import links_of, read_links
from mvc.history.translate import translate_damage
from mvc.history.walks import CLOCK_SLOP_S
from mvc.ids import GitId, hash_git_object

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.history.objects import ObjectStore


_MAX_TOTAL_BYTES = 2**36
"""All objects of a pack, inflated: what a few deltas on a few bytes can blow up ends here."""

Entry = tuple["GitId", str]
"""Id and kind of an object."""


def list_missing(
    objects: ObjectStore, wants: Iterable[GitId], haves: Iterable[GitId]
) -> list[Entry]:
    """Return what is reachable from ``wants`` and unknown to a side that has ``haves``.

    A commit that is in both is not looked behind; haves that are not here are passed over. Commits
    come first, then trees and blobs. Where clocks are wrong, something may be listed that the other side has.
    """
    tags, tips = peel(objects, wants)
    _, known = peel(objects, (object_id for object_id in haves if objects.has(object_id)))
    commits, borders = _split_commits(objects, tips, known)
    seen: set[GitId] = set()
    for border in borders:
        seen.update(
            object_id
            for object_id, _ in _walk_tree(objects, objects.read_commit(border).tree, seen)
        )
    entries: list[Entry] = [
        *((object_id, "tag") for object_id in tags),
        *((object_id, "commit") for object_id in commits),
    ]
    for commit in commits:
        entries += _walk_tree(objects, objects.read_commit(commit).tree, seen)
    return entries


def count_missing(objects: ObjectStore, tip: GitId, other: GitId) -> int:
    """Return how many commits one commit reaches and another does not."""
    return len(_split_commits(objects, [tip], [other])[0])


def peel(objects: ObjectStore, starts: Iterable[GitId]) -> tuple[list[GitId], list[GitId]]:
    """Return the tags among some objects, and the commits that all of them lead to."""
    tags: dict[GitId, None] = {}
    commits: dict[GitId, None] = {}
    for start in starts:
        object_id, kind = start, objects.read(start)[0]
        while kind == "tag":
            tags[object_id] = None
            ((object_id, kind),) = read_links(objects, object_id, "tag")
        if kind == "commit":
            commits[object_id] = None
    return list(tags), list(commits)


def _split_commits(
    objects: ObjectStore, tips: Sequence[GitId], known: Sequence[GitId]
) -> tuple[list[GitId], set[GitId]]:
    """Return the commits to send, and those known ones that they are built upon."""
    walk = _Border(objects, tips, known)
    walk.run()
    sent = [commit for commit in walk.order if not walk.is_known[commit]]
    borders = {
        parent for commit in sent for parent in walk.parents[commit] if walk.is_known[parent]
    }
    return sent, borders.union(known)


class _Border:
    """A walk, youngest first, to where what both sides know begins.

    A commit that the other side has makes its ancestors known. Behind the last commit that it may
    lack, the walk goes on for as long as clocks that differ a little may hide that it has it.
    """

    def __init__(self, objects: ObjectStore, tips: Sequence[GitId], known: Sequence[GitId]) -> None:
        self.is_known = dict.fromkeys(tips, False) | dict.fromkeys(known, True)
        self.parents: dict[GitId, tuple[GitId, ...]] = {}
        self.order: list[GitId] = []
        self._objects = objects
        self._heap: list[tuple[int, GitId]] = []
        self._undecided = {
            commit for commit, flag in self.is_known.items() if not flag
        }  # on the heap
        self._oldest_s = math.inf  # of those in ``order``
        for commit in self.is_known:
            self._push(commit)

    def run(self) -> None:
        """Walk; then ``order`` has all commits that may be unknown."""
        while self._heap and (
            self._undecided or -self._heap[0][0] >= self._oldest_s - CLOCK_SLOP_S
        ):
            time_s, commit = heapq.heappop(self._heap)
            self._undecided.discard(commit)
            is_known = self.is_known[commit]
            if not is_known:
                self.order.append(commit)
                self._oldest_s = min(self._oldest_s, -time_s)
            for parent in self.parents[commit]:
                self._see(parent, is_known=is_known)

    def _see(self, commit: GitId, *, is_known: bool) -> None:
        if commit not in self.is_known:
            self.is_known[commit] = is_known
            if not is_known:
                self._undecided.add(commit)
            self._push(commit)
        elif is_known:
            self._learn(commit)

    def _push(self, commit: GitId) -> None:
        info = self._objects.read_commit(commit)
        self.parents[commit] = info.parents
        heapq.heappush(self._heap, (-info.commit_time_s, commit))

    def _learn(self, commit: GitId) -> None:
        pending = [commit]
        while pending:
            known = pending.pop()
            self.is_known[known] = True
            self._undecided.discard(known)
            parents = self.parents.get(known, ())
            pending += [parent for parent in parents if self.is_known.get(parent) is False]


def list_tree(objects: ObjectStore, root: GitId) -> list[Entry]:
    """Return a tree and all below it."""
    return list(_walk_tree(objects, root, set()))


def _walk_tree(objects: ObjectStore, root: GitId, seen: set[GitId]) -> Iterator[Entry]:
    """Yield a tree and all below that is not in ``seen``, which grows."""
    pending = [(root, "tree")]
    while pending:
        object_id, kind = pending.pop()
        if object_id in seen:
            continue
        seen.add(object_id)
        yield object_id, kind
        if kind == "tree":
            pending.extend(read_links(objects, object_id, "tree"))


def write_objects(objects: ObjectStore, entries: Sequence[Entry], folder: Path) -> Path:
    """Write some objects as one Git pack into a folder, durably; return its path."""
    return write_pack(
        folder, len(entries), ((object_id, *objects.read(object_id)) for object_id, _ in entries)
    )


def receive_packs(objects: ObjectStore, packs: Mapping[str, Path]) -> list[GitId]:
    """Take over what Git packs from elsewhere hold and the repository lacks; return those ids.

    ``packs`` are the SHA-1 that each has to end with → its file. However many come, one is written.
    FormatError: one is not a pack of whole objects, or not the one that was named.
    """
    with _opened(packs) as places:
        new = [object_id for object_id in places if not objects.has(object_id)]
        if new:
            read = (_read_entry(*places[object_id], object_id) for object_id in new)
            write_pack(objects.folder / "pack", len(new), read)
        return new


class _Places(dict[bytes, int]):
    """Id of an object → where it begins."""

    find = dict.get


def receive_host_pack(objects: ObjectStore, path: Path) -> list[GitId]:
    """Take over what a pack holds and the repository lacks; return those ids.

    FormatError: it is not a pack, or a base of a delta is not in it.
    """
    with translate_damage("the Git pack of the host", FormatError, hint=None):
        places = _Places()
        pack = GitPackReader(str(path), places)

        def read(object_id: GitId, at: int) -> tuple[GitId, str, bytes]:
            kind, data = pack.read(at)
            if hash_git_object(kind, data) != object_id:
                raise FormatError("a Git pack changed while it was read")
            return object_id, kind, data

        places_by_id = _resolve(path, pack, places)
        new = {
            object_id: at for object_id, at in places_by_id.items() if not objects.has(object_id)
        }
        if new:
            objects_of_pack = (read(object_id, at) for object_id, at in new.items())
            write_pack(objects.folder / "pack", len(new), objects_of_pack)
        return list(new)


def _resolve(path: Path, pack: GitPackReader, places: _Places) -> dict[GitId, int]:
    """Return id → where it begins of all objects; each follows what it is based on."""
    waiting: dict[int | bytes, list[int]] = defaultdict(list)
    pending: list[int] = []
    with fs.open_file(path) as file:
        for at, entry in parse_entries(file.fileno()):
            base = at - entry.base if isinstance(entry.base, int) else entry.base
            if base is not None:
                waiting[base].append(at)
            elif entry.number in KINDS:
                pending.append(at)
            else:
                raise FormatError("a Git pack holds an object of an unknown kind")
    begins: dict[GitId, int] = {}
    left_bytes = _MAX_TOTAL_BYTES
    while pending:
        at = pending.pop()
        kind, data = pack.read(at)
        left_bytes -= len(data)
        if left_bytes < 0:
            raise FormatError("a Git pack has more in it than a history needs")
        object_id = hash_git_object(kind, data)
        begins[object_id] = places[bytes.fromhex(object_id)] = at
        pending += waiting.pop(at, []) + waiting.pop(bytes.fromhex(object_id), [])
    if waiting:
        raise FormatError("a Git pack lacks what its deltas are based on")
    return begins


def receive_objects(objects: ObjectStore, source: ObjectStore, ids: Iterable[GitId]) -> None:
    """Take over some objects of another store that the repository lacks, as one pack."""
    new = [object_id for object_id in ids if not objects.has(object_id)]
    if new:
        write_pack(
            objects.folder / "pack",
            len(new),
            ((object_id, *source.read(object_id)) for object_id in new),
        )
        objects.packs.look_again()


def join_packs(
    objects: ObjectStore, packs: Mapping[str, Path], entries: Iterable[Entry], folder: Path
) -> Path:
    """Write what Git packs hold, and some objects of a repository, as one pack; return its path."""
    with _opened(packs) as places:
        own = [object_id for object_id, _ in entries if object_id not in places]
        read = (_read_entry(*place, object_id) for object_id, place in places.items())
        mine = ((object_id, *objects.read(object_id)) for object_id in own)
        return write_pack(folder, len(places) + len(own), chain(read, mine))


def list_packed(packs: Mapping[str, Path]) -> dict[str, dict[GitId, int]]:
    """Return the objects of some Git packs, each with the bytes it takes there."""
    sizes: dict[str, dict[GitId, int]] = {}
    for name, path in packs.items():
        with fs.open_file(path) as file:
            end = fs.stat_descriptor(file.fileno()).size_bytes - TRAILER_BYTES
            places = [(at, object_id) for at, object_id, _ in _parse_pack(file.fileno(), name)]
        ends = [*(at for at, _ in places[1:]), end]
        sizes[name] = {
            object_id: stop - at for (at, object_id), stop in zip(places, ends, strict=True)
        }
    return sizes


@contextlib.contextmanager
def _opened(packs: Mapping[str, Path]) -> Iterator[dict[GitId, tuple[int, int, str]]]:
    """Yield the objects of some packs, each once: descriptor, where it begins, kind."""
    with contextlib.ExitStack() as stack:
        places: dict[GitId, tuple[int, int, str]] = {}
        for name, path in packs.items():
            descriptor = stack.enter_context(fs.open_file(path)).fileno()
            for at, object_id, kind in _parse_pack(descriptor, name):
                places.setdefault(object_id, (descriptor, at, kind))
        yield places


def _read_entry(descriptor: int, at: int, kind: str, object_id: GitId) -> tuple[GitId, str, bytes]:
    data = inflate_entry(descriptor, at).data
    if hash_git_object(kind, data) != object_id:
        raise FormatError("a Git pack changed while it was read")
    return object_id, kind, data


def _parse_pack(descriptor: int, name: str) -> Iterator[tuple[int, GitId, str]]:
    """Yield where each object of a pack begins, its id and kind; everything is checked."""
    for at, entry in parse_entries(descriptor, name):
        if entry.number not in KINDS:
            raise FormatError("a Git pack from elsewhere holds deltas")
        kind = KINDS[entry.number]
        yield at, hash_git_object(kind, entry.data), kind


def is_whole_pack(path: Path) -> bool:
    """Return whether a Git pack is sound, has the name that it should, and holds whole objects only."""
    with contextlib.suppress(FormatError, FileNotFoundError), fs.open_file(path) as file:
        for _ in _parse_pack(file.fileno(), path.stem.removeprefix("pack-")):
            pass
        return True
    return False


def check_connected(objects: ObjectStore, tips: Iterable[GitId], new: Iterable[GitId]) -> None:
    """Check that all that the tips lead to is there, given which objects have just come.

    Whatever was there before is taken to be complete, so only new objects are looked into. FormatError:
    something is missing, is not of the kind that names it, or no checkout could ever take it.
    """
    fresh = set(new)
    pending = [(object_id, "") for object_id in tips]
    seen: set[GitId] = set()
    while pending:
        object_id, wanted = pending.pop()
        if object_id in seen:
            continue
        seen.add(object_id)
        if not objects.has(object_id):
            raise FormatError(f"the remote lacks object {object_id}, which its history names")
        if object_id in fresh:
            kind, data = objects.read(object_id)
            if wanted not in ("", kind):
                raise FormatError(f"object {object_id} should be a {wanted}; it is a {kind}")
            if kind == "tree":
                check_tree(object_id, data)
            pending += [
                (target, what)
                for _, target, what in links_of(objects, object_id, kind, data)
                if what in KINDS.values()
            ]
