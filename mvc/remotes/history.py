"""Git objects on their way to a remote and back, as packs that the root names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from mvc import fs
from mvc.history.transfer import list_missing, receive_pack, write_objects
from mvc.remotes.remote_packs import PART_BYTES, read_there
from mvc.remotes.root import history_key
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mvc.chunkstore.copies import Ids
    from mvc.history.transfer import Entry
    from mvc.ids import GitId
    from mvc.remotes.remote import Remote
    from mvc.workspace.context import Context

_TAKEN = "history.json"


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


def receive_history(context: Context, remote: Remote, packs: Mapping[str, int]) -> None:
    """Take over the Git packs of a remote that were not taken over before."""
    taken = _read_taken(remote)
    folder = remote.folder / "incoming"
    fs.make_dirs(folder)
    for name, size_bytes in packs.items():
        if name in taken:
            continue
        path = folder / f"{name}.pack"
        with fs.DurableFile(folder) as file:
            for at in range(0, size_bytes, PART_BYTES):
                length = min(PART_BYTES, size_bytes - at)
                file.write([read_there(remote.storage, history_key(name), at, length)])
            file.publish(path)
        receive_pack(context.history.objects, path, name)
        path.unlink()
        taken.add(name)
    fs.write_durable(remote.folder / _TAKEN, [msgspec.json.encode(sorted(taken))])


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
