"""Git objects on their way to a remote and back, as packs that the root names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from mvc import fs
from mvc.chunkstore.parallel import for_each
from mvc.errors import MvcError
from mvc.history.transfer import check_connected, list_missing, receive_packs, write_objects
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

_TAKEN = "history.json"
_FETCH_THREADS = 4


def send_history(
    context: Context, remote: Remote, entries: Sequence[Entry], scratch: Path
) -> dict[str, int]:
    """Upload objects as one Git pack; return its name and length."""
    if not entries:
        return {}
    path = write_objects(context.history.objects, entries, scratch / "history")
    name = path.stem.removeprefix("pack-")
    remote.storage.upload(history_key(name), path)
    return {name: path.stat().st_size}


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
    receive_history(context, remote, packs)
    try:
        entries = list_new(context, tips, known)
    except MvcError:
        forget_taken(remote)  # something that came before was removed since
        receive_history(context, remote, packs)
        entries = list_new(context, tips, known)
    check_connected(objects, tips, (one for one, _ in entries))
    return entries


def receive_history(context: Context, remote: Remote, packs: Mapping[str, int]) -> None:
    """Take over the Git packs of a remote that were not taken over before."""
    folder = remote.folder / "history"
    fs.make_dirs(folder)
    with fs.exclusive_lock(folder / "lock"):
        taken = _read_taken(remote)
        new = {name: folder / f"{name}.pack" for name in packs if name not in taken}

        def load(name: str, _: None) -> int:
            _fetch_pack(remote, name, packs[name], new[name])
            return 0

        for_each(list(new), lambda: None, load, threads=_FETCH_THREADS)
        try:
            receive_packs(context.history.objects, new)
            if new:
                told = msgspec.json.encode(sorted(taken.intersection(packs) | new.keys()))
                fs.write_durable(remote.folder / _TAKEN, [told])
        finally:
            fs.remove_file(*(path for path in folder.glob("*.pack")))


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


def list_new(context: Context, tips: Iterable[GitId], known: Iterable[GitId]) -> list[Entry]:
    """Return the objects that some tips lead to and others do not."""
    return list_missing(context.history.objects, tips, known)
