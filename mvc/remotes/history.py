"""Git objects on their way to a remote and back, as packs that the root names."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from mvc import fs
from mvc.chunkstore.parallel import for_each
from mvc.errors import FormatError, MvcError, NotFoundError
from mvc.history.objects import ObjectStore
from mvc.history.shallow import find_ends
from mvc.history.transfer import (
    check_connected,
    join_packs,
    list_missing,
    list_tree,
    peel,
    receive_objects,
    receive_packs,
    write_objects,
)
from mvc.remotes.remote_packs import PART_BYTES, read_json, read_there
from mvc.remotes.root import history_key
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.chunkstore.copies import Ids
    from mvc.history.transfer import Entry
    from mvc.ids import GitId
    from mvc.remotes.remote import Remote
    from mvc.workspace.context import Context

N = TypeVar("N", bound=str)

_TAKEN = "history.json"
_FETCH_THREADS = 4
CROWD_PACKS = 32
_SHORT_BYTES = 16 * 2**20


def send_history(
    context: Context,
    remote: Remote,
    entries: Sequence[Entry],
    packs: Mapping[str, int],
    scratch: Path,
    *,
    patience: int = 1,
) -> tuple[dict[str, int], frozenset[str]]:
    """Upload objects as one Git pack, which may take in others of the remote (``choose_crowd``).

    Returned are name and length of the pack, and the names of those that it takes the place of.
    """
    if remote.is_hosted:
        remote.hosted.carry(context.history.objects, entries)
    if remote.is_hosted or not entries:
        return {}, frozenset()
    objects, folder = context.history.objects, scratch / "history"
    joined = choose_crowd(packs, patience=patience)
    fs.make_dirs(folder)
    try:
        paths = fetch_packs(remote, {name: packs[name] for name in joined}, folder)
        path = join_packs(objects, paths, entries, folder)
    except FormatError:  # a damaged one is for fsck to report; it stays alone
        joined = frozenset()
        path = write_objects(objects, entries, folder)
    name = path.stem.removeprefix("pack-")
    remote.storage.upload(history_key(name), path)
    return {name: path.stat().st_size}, joined


def choose_crowd(
    packs: Mapping[N, int], short_bytes: int = _SHORT_BYTES, *, patience: int = 1
) -> frozenset[N]:
    """Return which short packs of a remote to join, so that there are never many.

    Once there are ``CROWD_PACKS`` short ones, those are joined that are not twice as long as all shorter
    ones together: so a byte is written again as often as the length doubles. With patience there may be
    so many times as many.
    """
    short = sorted((size, name) for name, size in packs.items() if size < short_bytes)
    if len(short) < patience * CROWD_PACKS:
        return frozenset()
    count, total_bytes = 0, 0
    for number, (size_bytes, _) in enumerate(short, 1):
        if size_bytes < 2 * total_bytes:
            count = number
        total_bytes += size_bytes
    return frozenset(name for _, name in short[:count])


def bring_history(
    context: Context,
    remote: Remote,
    packs: Mapping[str, int],
    tips: Collection[GitId],
    known: Iterable[GitId],
) -> list[Entry]:
    """Bring all that some tips lead to; return the objects of it that what is ``known`` does not name.

    FormatError: what came is damaged or incomplete.
    """
    known = list(known)
    objects = context.history.objects
    receive_history(context, remote, packs, tips, known)
    try:
        entries = list_new(context, tips, known)
    except MvcError:
        forget_taken(remote)  # something that came before was removed since
        receive_history(context, remote, packs, tips)
        try:
            entries = list_new(context, tips, known)
        except (FormatError, NotFoundError) as error:
            raise _incomplete(error) from error
    check_connected(objects, tips, (object_id for object_id, _ in entries))
    return entries


def receive_history(
    context: Context,
    remote: Remote,
    packs: Mapping[str, int],
    tips: Iterable[GitId],
    known: Iterable[GitId] = (),
) -> None:
    """Take over the Git packs of a remote that were not taken over before.

    A Git host is asked for what the tips lead to and what is known does not.
    """
    folder = remote.folder / "history"
    fs.make_dirs(folder)
    with fs.exclusive_lock(folder / "lock"):
        if remote.is_hosted:
            remote.hosted.receive(context.history.objects, tips, known, folder)
            return
        taken = set(read_json(remote.folder / _TAKEN, list[str]) or ())
        missing = {name: size for name, size in packs.items() if name not in taken}
        new = fetch_packs(remote, missing, folder)
        try:
            receive_packs(context.history.objects, new)
            if new:
                _write_taken(remote, taken.intersection(packs) | new.keys())
        finally:
            fs.remove_file(*folder.glob("*.pack"), *folder.glob(f"*{fs.TEMP_SUFFIX}"))


def bring_part(
    context: Context,
    remote: Remote,
    packs: Mapping[str, int],
    tips: Collection[GitId],
    tags: Collection[GitId],
    depth: int,
) -> tuple[list[Entry], frozenset[GitId]]:
    """Bring the history of some tips, ``depth`` commits deep, and the tags on it.

    All packs are downloaded, for they hold everything; only what is in sight is kept. Returned are what is in
    sight of the tips, and where the history ends then.
    """
    objects = context.history.objects
    with _whole_history(remote, packs, [*tips, *tags]) as whole:

        def read(commit: GitId) -> bytes:
            return (objects if objects.has(commit) else whole).read_kind(commit, "commit")

        seen = context.history.walk(peel(objects, context.history.refs.values().values())[1])
        visible = [info.id for info in seen]
        try:
            ends = find_ends(read, peel(whole, tips)[1], depth, visible)
            with whole.cut_at(ends):
                entries = list_missing(whole, tips, ())
            in_sight = {object_id for object_id, _ in entries}
            for tag in tags:
                chain, target = peel(whole, [tag]) if whole.has(tag) else ([], [])
                if in_sight.issuperset(target):
                    entries += [(object_id, "tag") for object_id in chain]
        except MvcError as error:
            raise _incomplete(error) from error
        receive_objects(objects, whole, [object_id for object_id, _ in entries])
        _write_taken(remote, packs)
    with objects.cut_at(ends):
        check_connected(objects, tips, (object_id for object_id, _ in entries))
    return entries, ends


@contextlib.contextmanager
def _whole_history(
    remote: Remote, packs: Mapping[str, int], starts: Sequence[GitId]
) -> Iterator[ObjectStore]:
    """Download a history into a folder of its own, which is removed when the block ends."""
    folder = remote.folder / "history"
    whole = ObjectStore(folder / "whole")
    fs.make_dirs(folder)
    with fs.exclusive_lock(folder / "lock"):
        shutil.rmtree(whole.folder, ignore_errors=True)  # of a kill
        fs.make_dirs(whole.folder / "pack")
        try:
            if remote.is_hosted:
                remote.hosted.receive(whole, starts, (), folder)
            else:
                receive_packs(whole, fetch_packs(remote, packs, folder))
            whole.packs.look_again()
            yield whole
        finally:
            shutil.rmtree(whole.folder, ignore_errors=True)
            fs.remove_file(*folder.glob("*.pack"))


def _incomplete(error: MvcError) -> FormatError:
    return FormatError(
        f"the history of the remote is incomplete: {error.message}",
        hint='"mvc fsck --remote" tells what is wrong there',
    )


def _write_taken(remote: Remote, packs: Iterable[str]) -> None:
    fs.write_durable(remote.folder / _TAKEN, [msgspec.json.encode(sorted(packs))])


def fetch_packs(remote: Remote, packs: Mapping[str, int], folder: Path) -> dict[str, Path]:
    """Download some Git packs into a folder; return where each is."""
    paths = {name: folder / f"{name}.pack" for name in packs}

    def load(name: str, _: None) -> int:
        stat, size_bytes = fs.find_stat(paths[name]), packs[name]
        if stat is not None and stat.size_bytes == size_bytes:
            return 0  # it came before a kill
        with fs.DurableFile(folder) as file:
            for at in range(0, size_bytes, PART_BYTES):
                length = min(PART_BYTES, size_bytes - at)
                file.write([read_there(remote.storage, history_key(name), at, length)])
            file.publish(paths[name])
        return 0

    for_each(list(packs), lambda: None, load, threads=_FETCH_THREADS)
    return paths


def forget_taken(remote: Remote) -> None:
    """Forget which Git packs were taken over: something of them is gone."""
    (remote.folder / _TAKEN).unlink(missing_ok=True)


def list_chunks(context: Context, entries: Iterable[Entry]) -> Ids:
    """Return the ids of all chunks that the manifests among some objects name, each once."""
    ids = bytearray()
    for object_id, kind in entries:
        manifest = find_manifest(context, object_id) if kind == "blob" else None
        if manifest is not None:
            ids += b"".join(manifest.chunk_ids())
    return np.unique(np.frombuffer(bytes(ids), "S32"))


def list_files(context: Context, commits: Iterable[GitId]) -> list[Entry]:
    """Return the objects below some commits."""
    history = context.history
    trees = {history.read_commit(commit).tree for commit in commits}
    return [entry for tree in trees for entry in list_tree(history.objects, tree)]


def list_new(context: Context, tips: Iterable[GitId], known: Iterable[GitId]) -> list[Entry]:
    """Return the objects that some tips lead to and others do not."""
    return list_missing(context.history.objects, tips, known)
