"""Packs as Git hosts send them, with deltas: taken over as a pack of whole objects, all checked."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import FormatError
from mvc.history.git_pack import write_pack
from mvc.history.object_formats import KINDS
from mvc.history.packs import OpenPack
from mvc.history.transfer import parse_entries
from mvc.history.translate import translate_damage
from mvc.ids import hash_git_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from mvc.history.objects import ObjectStore
    from mvc.ids import GitId

_MAX_TOTAL_BYTES = 2**36
"""All objects of a pack, inflated: what a few deltas on a few bytes can blow up ends here."""


class _Places(dict[bytes, int]):
    def find(self, name: bytes, /) -> int | None:
        """Return where the object of an id begins, or None."""
        return self.get(name)


def receive_host_pack(objects: ObjectStore, path: Path) -> list[GitId]:
    """Take over what a pack holds and the repository lacks; return those ids.

    Raises:
        FormatError: it is not a pack, or a base of a delta is not in it.
    """
    with translate_damage("the Git pack of the host", FormatError, hint=None):
        places = _Places()
        pack = OpenPack(str(path), places)
        found = _resolve(path, pack, places)
        new = {one: at for one, at in found.items() if not objects.has(one)}
        if new:
            write_pack(objects.folder / "pack", len(new), _read(pack, new))
        return list(new)


def _resolve(path: Path, pack: OpenPack, places: _Places) -> dict[GitId, int]:
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
    found: dict[GitId, int] = {}
    left_bytes = _MAX_TOTAL_BYTES
    while pending:
        at = pending.pop()
        kind, data = pack.read(at)
        left_bytes -= len(data)
        if left_bytes < 0:
            raise FormatError("a Git pack has more in it than a history needs")
        one = hash_git_object(kind, data)
        found[one] = places[bytes.fromhex(one)] = at
        pending += waiting.pop(at, []) + waiting.pop(bytes.fromhex(one), [])
    if waiting:
        raise FormatError("a Git pack lacks what its deltas are based on")
    return found


def _read(pack: OpenPack, places: Mapping[GitId, int]) -> Iterator[tuple[GitId, str, bytes]]:
    for one, at in places.items():
        kind, data = pack.read(at)
        if hash_git_object(kind, data) != one:
            raise FormatError("a Git pack changed while it was read")
        yield one, kind, data
