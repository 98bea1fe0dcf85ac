"""Git objects on their way to a remote and back, as packs that the root names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from mvc import fs
from mvc.chunkstore.parallel import for_each
from mvc.errors import FormatError, MvcError, NotFoundError
from mvc.history.transfer import (
    check_connected,
    join_packs,
    list_missing,
    list_tree,
    receive_packs,
    write_objects,
)
from mvc.remotes.remote_packs import PART_BYTES, read_there
from mvc.remotes.root import history_key
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
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
) -> tuple[dict[str, int], frozenset[str]]:
    """Upload objects as one Git pack, which may take in others of the remote.

    Returns:
        Name and length of the pack, and the names of those that it takes the place of.
    """
    if remote.is_hosted:
        remote.hosted.carry(context.history.objects, entries)
    if remote.is_hosted or not entries:
        return {}, frozenset()
    objects, folder, joined = context.history.objects, scratch / "history", choose_crowd(packs)
    fs.make_dirs(folder)
    try:
        found = fetch_packs(remote, {name: packs[name] for name in joined}, folder)
        path = join_packs(objects, found, entries, folder)
    except FormatError:  # a damaged one is for fsck to report; it stays alone
        joined = frozenset()
        path = write_objects(objects, entries, folder)
    name = path.stem.removeprefix("pack-")
    remote.storage.upload(history_key(name), path)
    return {name: path.stat().st_size}, joined


def choose_crowd(packs: Mapping[N, int], short_bytes: int = _SHORT_BYTES) -> frozenset[N]:
    """Return which short packs of a remote to join, so that there are never many.

    Once there are ``CROWD_PACKS`` short ones, those are joined that are not twice as long as all shorter
    ones together: so a byte is written again as often as the length doubles.
    """
    short = sorted((size, name) for name, size in packs.items() if size < short_bytes)
    if len(short) < CROWD_PACKS:
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
    """Bring all that some tips lead to; return the objects of it that what is known does not name.

    Args:
        context: of the repository.
        remote: where they are.
        packs: its Git packs, with lengths.
        tips: commits and tags.
        known: those that all is here of.

    Raises:
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
            raise FormatError(
                f"the history of the remote is incomplete: {error.message}",
                hint='"mvc fsck --remote" tells what is wrong there',
            ) from error
    check_connected(objects, tips, (one for one, _ in entries))
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
        taken = _read_taken(remote)
        missing = {name: size for name, size in packs.items() if name not in taken}
        new = fetch_packs(remote, missing, folder)
        try:
            receive_packs(context.history.objects, new)
            if new:
                told = msgspec.json.encode(sorted(taken.intersection(packs) | new.keys()))
                fs.write_durable(remote.folder / _TAKEN, [told])
        finally:
            fs.remove_file(*folder.glob("*.pack"), *folder.glob(f"*{fs.TEMP_SUFFIX}"))


def fetch_packs(remote: Remote, packs: Mapping[str, int], folder: Path) -> dict[str, Path]:
    """Download some Git packs into a folder; return where each is."""
    paths = {name: folder / f"{name}.pack" for name in packs}

    def load(name: str, _: None) -> int:
        _fetch_pack(remote, name, packs[name], paths[name])
        return 0

    for_each(list(packs), lambda: None, load, threads=_FETCH_THREADS)
    return paths


def _fetch_pack(remote: Remote, name: str, size_bytes: int, path: Path) -> None:
    found = fs.find_stat(path)
    if found is not None and found.size_bytes == size_bytes:
        return  # it came before a kill
    with fs.DurableFile(path.parent) as file:
        for at in range(0, size_bytes, PART_BYTES):
            length = min(PART_BYTES, size_bytes - at)
            file.write([read_there(remote.storage, history_key(name), at, length)])
        file.publish(path)


def forget_taken(remote: Remote) -> None:
    """Forget which Git packs were taken over: something of them is gone."""
    (remote.folder / _TAKEN).unlink(missing_ok=True)


def _read_taken(remote: Remote) -> set[str]:
    try:
        with fs.open_file(remote.folder / _TAKEN) as file:
            return set(msgspec.json.decode(file.read(), type=list[str]))
    except (FileNotFoundError, msgspec.MsgspecError):
        return set()


def list_chunks(context: Context, entries: Iterable[Entry]) -> Ids:
    """Return the ids of all chunks that the manifests among some objects name, each once."""
    found = bytearray()
    for one, kind in entries:
        manifest = find_manifest(context, one) if kind == "blob" else None
        if manifest is not None:
            found += b"".join(manifest.chunk_ids())
    return np.unique(np.frombuffer(bytes(found), "S32"))


def list_files(context: Context, commits: Iterable[GitId]) -> list[Entry]:
    """Return the objects below some commits."""
    history = context.history
    trees = {history.read_commit(one).tree for one in commits}
    return [entry for tree in trees for entry in list_tree(history.objects, tree)]


def list_new(context: Context, tips: Iterable[GitId], known: Iterable[GitId]) -> list[Entry]:
    """Return the objects that some tips lead to and others do not."""
    return list_missing(context.history.objects, tips, known)
