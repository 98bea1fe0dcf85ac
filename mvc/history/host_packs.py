"""Packs as Git hosts send them, with deltas: taken over as a pack of whole objects, all checked."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import FormatError
from mvc.history.git_pack import write_pack
from mvc.history.object_formats import KINDS
from mvc.history.packs import GitPackReader
from mvc.history.transfer import parse_entries
from mvc.history.translate import translate_damage
from mvc.ids import hash_git_object

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.history.objects import ObjectStore
    from mvc.ids import GitId

_MAX_TOTAL_BYTES = 2**36
"""All objects of a pack, inflated: what a few deltas on a few bytes can blow up ends here."""


class _Places(dict[bytes, int]):
    """Id of an object → where it begins."""

    find = dict.get


def receive_host_pack(objects: ObjectStore, path: Path) -> list[GitId]:
    """Take over what a pack holds and the repository lacks; return those ids.

    Raises:
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
