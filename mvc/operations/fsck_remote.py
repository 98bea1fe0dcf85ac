"""fsck of a remote: is everything there that its root names, and all that its refs need?"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.catalog import PackCatalog
from mvc.chunkstore.check import check_whole_pack
from mvc.chunkstore.listing import pack_key
from mvc.chunkstore.parallel import for_each
from mvc.chunkstore.reader import ChunkReader
from mvc.chunkstore.values import StoreProblem
from mvc.errors import ConflictError, FormatError, MvcError, StorageError, UsageError
from mvc.history.check import check
from mvc.history.names import HEADS
from mvc.operations.fsck import FsckReport, Problem, Reachable, fsck, store_problem
from mvc.progress import announce, report
from mvc.remotes.content import receive_content
from mvc.remotes.history import forget_taken, receive_history
from mvc.remotes.mirror import (
    fill_history,
    fill_index,
    find_misfits,
    list_sizes,
    make_mirror,
)
from mvc.remotes.remote import Remote, open_remote
from mvc.remotes.root import Listing, Root, object_name
from mvc.upkeep.broken_objects import set_broken_aside
from mvc.upkeep.sweep import upkeep_lock
from mvc.workspace.staging import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.chunkstore.copies import Ids
    from mvc.ids import PackId
    from mvc.remotes.mirror import Mirror
    from mvc.workspace.context import Context

_INDEX_THREADS = 16
_PACK_THREADS = 2
_KEPT_BYTES = 2**30
"""Checked packs stay for as long as they are no more than this: others are based on them."""
_LOOKS = 3
_HINT = 'push again from a repository that has it; "mvc fsck" checks that one'


def fsck_any(
    context: Context,
    *,
    data: bool = False,
    repair: bool = False,
    sources: Sequence[str] = (),
    remote: str | None = None,
) -> FsckReport:
    """Check the repository, or a remote; what is wrong is in the report, not raised.

    Args:
        data: read, decode and hash every byte.
        repair: first rebuild pack indexes that are missing or damaged.
        sources: names or URLs of remotes; with ``repair`` all is read, and chunks and Git
            objects that are damaged or missing come from there, in this order.
        remote: check this one in place of the repository; nothing changes, there or here.

    Raises:
        UsageError: these arguments do not go together.
        NotFoundError: there is no such remote, or nothing was pushed to it.
        ConflictError: ``repair`` while a gc, prune or repack is running.
        StorageError: the machine failed, or the remote cannot be reached.
    """
    if sources and not repair:
        raise UsageError("remotes to bring content from are for a repair", hint="give `repair` too")
    if remote is not None and repair:
        raise UsageError("a remote cannot be repaired from here", hint="push what it lacks to it")
    if remote is not None:
        return fsck_remote(context, remote, data=data)
    if sources:
        return repair_from(context, sources)
    return fsck(context, data=data, repair=repair)


def fsck_remote(context: Context, name: str, *, data: bool = False) -> FsckReport:
    """Check a remote; nothing changes, there or here."""
    there = open_remote(context, name)
    for _ in range(_LOOKS):
        try:
            root = there.read_root()
        except FormatError as error:
            return _report([Problem("bad-root", error.message)], data=data)
        with scratch_folder(context) as folder:
            report = _check(folder, there, root, data=data)
        # What is missing may have been joined into another pack since the root was read.
        if report.ok or there.roots.read() == root:
            return report
    raise ConflictError(f"{there.settings.url} changed while it was checked, {_LOOKS} times")


def _check(folder: Path, there: Remote, root: Root, *, data: bool) -> FsckReport:
    try:
        listing = there.roots.read_listing(root)
    except FormatError as error:
        return _report([Problem("bad-list", error.message)], data=data)
    sizes = list_sizes(there.storage)
    misfits = list(find_misfits(listing, sizes))
    problems = [Problem(kind, fact, pack=pack, hint=_HINT) for kind, pack, fact in misfits]
    sound = listing.without(pack for _, pack, _ in misfits)
    mirror = make_mirror(folder, there, root)
    found = _check_packs(mirror, sound, data=data)
    problems += [store_problem(item) for item in found]
    try:
        fill_history(mirror, there, root, sound.history)
    except StorageError:
        raise
    except MvcError as error:
        return _report([*problems, Problem("bad-history", error.message, hint=_HINT)], data=data)
    problems += [
        Problem(fault.kind, f"{fault.what}: {fault.detail}") for fault in check(mirror.history)
    ]
    problems += _check_branches(mirror, root)
    walk = Reachable(mirror, found)
    problems += walk.check()
    return FsckReport(
        tuple(problems),
        walk.commits,
        walk.files,
        len(walk.chunks),
        data,
        notices=_describe_rest(listing, sizes),
        released=walk.released,
    )


def _check_branches(mirror: Mirror, root: Root) -> Iterator[Problem]:
    """Yield the branches and channels that name something else than a commit."""
    tips = {name: tip for name, tip in root.refs.items() if name.startswith(HEADS)}
    tips |= {f"channel {name}": channel.commit for name, channel in root.channels.items()}
    for name, tip in tips.items():
        header = mirror.history.objects.find_header(tip)
        if header is not None and header[0] != "commit":
            yield Problem("bad-ref", f"{name} names {tip}, which is a {header[0]}, not a commit")


def _report(problems: list[Problem], *, data: bool) -> FsckReport:
    return FsckReport(tuple(problems), 0, 0, 0, data)


def _check_packs(mirror: Mirror, listing: Listing, *, data: bool) -> list[StoreProblem]:
    problems: list[StoreProblem] = []
    packs = list(listing.packs.items())

    def load(item: tuple[PackId, int], _: None) -> int:
        fault = fill_index(mirror, *item)
        if fault is not None:
            problems.append(StoreProblem("bad-index", item[0], None, None, fault))
        return 0

    for_each(packs, lambda: None, load, threads=_INDEX_THREADS)
    return problems + (_read_packs(mirror) if data else [])


def _read_packs(mirror: Mirror) -> list[StoreProblem]:
    """Bring every pack in turn, hash it and all chunks in it; return what is wrong."""
    announce(sum(mirror.packs.packs.values()))
    problems: list[StoreProblem] = []
    reader = ChunkReader(PackCatalog(mirror.packs))
    kept: deque[PackId] = deque()
    lock = threading.Lock()

    def read(pack: PackId, _: None) -> int:
        (index,) = mirror.indexes.indexes({pack: mirror.packs.packs[pack]})
        try:
            mirror.indexes.fetch(index, mirror.landing)
        except FormatError as error:
            problems.append(StoreProblem("bad-pack", pack, None, None, error.message))
            return index.pack_size_bytes
        problems.extend(check_whole_pack(reader, pack))
        with lock:
            kept.append(pack)
            while sum(mirror.packs.packs[pack] for pack in kept) > _KEPT_BYTES:
                mirror.landing.delete(pack_key(kept.popleft()))
        return index.pack_size_bytes

    order = sorted(mirror.packs.packs)
    for_each(order, lambda: None, read, threads=_PACK_THREADS, progress=report)
    return problems


def _describe_rest(listing: Listing, sizes: dict[str, int]) -> tuple[str, ...]:
    """Return what is there and not named: garbage, or what is being pushed right now."""
    named = listing.names()
    rest = [size for key, size in sizes.items() if object_name(key) not in named]
    if not rest:
        return ()
    return (f"{len(rest):,} objects ({sum(rest):,} bytes) that the root does not name",)


def repair_from(context: Context, sources: Sequence[str]) -> FsckReport:
    """Repair a repository with what remotes have."""
    remotes = [open_remote(context, source) for source in sources]
    before = fsck(context, data=True, repair=True)
    if before.ok:
        return before
    with upkeep_lock(context), context.history.no_sweep():
        messages = list(set_broken_aside(context))
    with context.history.no_sweep():
        reached = ask_remotes(remotes, messages)
        for there, root, listing in reached:
            messages += _take_history(context, there, root, listing)
        for there, _, listing in reached:
            messages += _take_content(context, there, listing)
    after = fsck(context, data=True)
    return replace(
        after,
        notices=(*before.notices, *messages, *after.notices),
        repaired=before.repaired,
    )


def ask_remotes(
    remotes: Sequence[Remote], messages: list[str]
) -> list[tuple[Remote, Root, Listing]]:
    """Return what each remote has; of those that cannot say it, tell why."""
    reached: list[tuple[Remote, Root, Listing]] = []
    for there in remotes:
        try:
            root = there.roots.read()
            if root is None:
                messages.append(f"nothing was pushed to {there.settings.url} yet")
            else:
                reached.append((there, root, there.roots.read_listing(root)))
        except MvcError as error:
            messages.append(f"{there.settings.url}: {error.message}")
    return reached


def _take_history(context: Context, there: Remote, root: Root, listing: Listing) -> list[str]:
    """Bring the Git objects that are lost here; return what was done, in words."""
    lost = _count_lost_objects(context)
    if not lost:
        return []
    forget_taken(there)
    messages: list[str] = []
    try:
        receive_history(context, there, listing.history, root.tips())
    except MvcError as error:
        messages.append(f"{there.settings.url}: {error.message}")
        for name, size_bytes in listing.history.items():  # what is damaged there is left out
            with contextlib.suppress(MvcError):
                receive_history(context, there, {name: size_bytes}, root.tips())
        forget_taken(there)
    back = lost - _count_lost_objects(context)
    if not back:
        return messages
    return [*messages, f"{back:,} of {lost:,} lost Git objects came from {there.settings.url}"]


def _count_lost_objects(context: Context) -> int:
    problems = check(context.history)
    return len({problem.what for problem in problems if problem.kind.startswith("object-")})


def _take_content(context: Context, there: Remote, listing: Listing) -> list[str]:
    """Bring the chunks that are lost here; return what was done, in words."""
    url = there.settings.url
    lost = _find_lost(context)
    if not len(lost):
        return []
    try:
        messages = receive_lost(there, listing, lost)
    except MvcError as error:
        return [f"{url}: {error.message}"]
    back = len(lost) - len(_find_lost(context))
    return [*messages, f"{back:,} of {len(lost):,} lost chunks came from {url}"]


def _find_lost(context: Context) -> Ids:
    """Return the chunks that reachable files need and cannot be read."""
    context.here.refresh()
    walk = Reachable(context, [])
    for _ in walk.check():
        pass
    roots = {loss.root for loss in walk.health.lost.values() if loss.root is not None}
    return np.unique(np.array(sorted({*walk.health.lost, *roots}), "S32"))


def receive_lost(there: Remote, listing: Listing, wanted: Ids) -> list[str]:
    """Bring chunks that are not here; what is damaged there is left out, by halves, and told."""
    try:
        receive_content(there, listing.packs, wanted)
    except FormatError as error:
        if len(wanted) == 1:
            return [f"{there.settings.url}: {error.message}"]
        middle = len(wanted) // 2
        halves = wanted[:middle], wanted[middle:]
        return [line for half in halves for line in receive_lost(there, listing, half)]
    return []
