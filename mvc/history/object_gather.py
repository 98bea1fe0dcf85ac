"""Moves loose objects into packs, and joins short packs, so that a long history lies in few files.

The order is that of any sweep: a new pack is durable before anything goes, and only a process that is
alone under the sweep lock removes. A kill in between leaves objects twice, which is harmless: each
copy is whole. Readers that find an object gone look in the packs again.

Packs that stock Git has something to say about (``.keep``, ``.rev``, a ``multi-pack-index``) are its
own business.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Container, Iterable, Sequence
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import CorruptionError, UsageError, translate_os_errors
from mvc.history.git_pack import write_pack

if TYPE_CHECKING:
    from mvc.history.git import GitHistory
    from mvc.history.objects import ObjectStore
    from mvc.ids import GitId

GATHER_PACKS = 10
"""Packs of a class that are joined once there are that many."""
CLASSES_BYTES = ((0, 2**20), (2**20, 2**24))
"""Packs from the first length on, and shorter than the second, are of one class."""
FEW_OBJECTS = 50
"""Fewer loose objects than this are not worth a pack."""
MANY_OBJECTS = 2000
"""No more than this are moved after one commit."""
MAX_LOOSE_BYTES = 2**20
"""Longer files stay loose: they are few, and moving them would cost more than it is worth."""
_CROWD = 5  # in a folder that just got one: among 256 loose objects one commit in eleven meets it


def has_many_loose(objects: ObjectStore, newest: GitId) -> bool:
    """Tell whether many objects are loose, by the one folder that the newest lies in.

    Ids are random, so this is as good as another folder each time, and costs one look.
    """
    try:
        return len(os.listdir(objects.folder / newest[:2])) >= _CROWD
    except OSError:
        return False


def find_loose(objects: ObjectStore, starts: Iterable[GitId]) -> list[GitId]:
    """Return the loose objects of some commits and of those before them, up to what lies in packs.

    Nothing if they are few. Where there are very many, the oldest stay for a repack.
    """
    from mvc.history.reachability import read_links  # noqa: PLC0415  not for each look

    loose: list[GitId] = []
    seen: set[GitId] = set()
    pending = [(start, "") for start in starts]
    while pending and len(loose) < MANY_OBJECTS:
        object_id, kind = pending.pop()
        if object_id in seen:
            continue
        seen.add(object_id)
        if _is_short(objects, object_id):
            loose.append(object_id)
            with contextlib.suppress(CorruptionError):
                pending += read_links(objects, object_id, kind) if kind != "blob" else ()
    return loose if len(loose) >= FEW_OBJECTS else []


def _is_short(objects: ObjectStore, object_id: GitId) -> bool:
    stat = fs.find_stat(objects.loose.path(object_id))
    return stat is not None and stat.is_regular and stat.size_bytes <= MAX_LOOSE_BYTES


def find_short_packs(objects: ObjectStore) -> list[str]:
    """Return the names of packs to join now: all of a class in which there are many."""
    stats = _list_short_packs(objects)
    for low, high in CLASSES_BYTES:
        names = sorted(name for name, stat in stats.items() if low <= stat.st_size < high)
        if len(names) >= GATHER_PACKS:
            return names
    return []


def plan_gathering(
    history: GitHistory, reachable: Collection[GitId], *, older_than_s: float
) -> tuple[list[GitId], list[str]]:
    """Return the loose objects and the packs to make one pack of; nothing if they are few already.

    A pack with garbage that is still too young to go stays as it is, and so keeps its age.
    """
    from mvc.history.object_sweep import find_recent  # noqa: PLC0415  as above

    objects = history.objects
    young = find_recent(history, reachable, older_than_s=older_than_s)
    loose = [
        object_id
        for object_id in objects.loose.iterate()
        if object_id in reachable and _is_short(objects, object_id)
    ]
    packs = list[str]()
    for name in sorted(_list_short_packs(objects)):
        with contextlib.suppress(CorruptionError):
            if young.isdisjoint(objects.packs.read_ids(name)):
                packs.append(name)
    return (loose, packs) if len(loose) >= FEW_OBJECTS or len(packs) > 1 else ([], [])


def _list_short_packs(objects: ObjectStore) -> dict[str, os.stat_result]:
    """Return name → stat of short packs that have an index and no other file beside them."""
    suffixes: dict[str, set[str]] = {}
    stats: dict[str, os.stat_result] = {}
    with translate_os_errors("list the Git packs"), contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(objects.folder / "pack"):
            name, _, suffix = entry.name.partition(".")
            suffixes.setdefault(name, set()).add(suffix)
            if suffix == "pack":
                stats[name] = entry.stat(follow_symlinks=False)
    if "multi-pack-index" in suffixes:
        return {}
    short = {name: stat for name, stat in stats.items() if stat.st_size < CLASSES_BYTES[-1][1]}
    return {name: stat for name, stat in short.items() if suffixes[name] == {"pack", "idx"}}


def gather_objects(
    history: GitHistory,
    loose: Sequence[GitId],
    packs: Sequence[str],
    kept: Container[GitId] | None = None,
) -> None:
    """Move loose objects, and those of some packs, into one pack, which is as old as the youngest.

    Of the packs only what is ``kept`` goes over, if that is said. Only under ``sweep_alone()``. What
    is damaged stays as it is, for fsck to report.
    """
    if not history.is_alone:
        raise UsageError("objects are moved under the sweep lock only")
    objects = history.objects
    moved: list[GitId] = []
    for object_id in loose:
        with contextlib.suppress(CorruptionError):
            objects.loose.read(object_id)
            moved.append(object_id)
    wanted, gone = dict.fromkeys(moved), list[str]()
    for name in packs:
        with contextlib.suppress(CorruptionError):
            ids = objects.packs.read_ids(name)
            wanted |= dict.fromkeys(
                object_id for object_id in ids if kept is None or object_id in kept
            )
            gone.append(name)
    folder = objects.folder / "pack"
    if wanted:
        files = [*map(objects.loose.path, moved), *(folder / f"{name}.pack" for name in gone)]
        age_ns = max(path.stat().st_mtime_ns for path in files)
        path = write_pack(
            folder, len(wanted), ((object_id, *objects.read(object_id)) for object_id in wanted)
        )
        os.utime(path, ns=(age_ns, age_ns))  # or garbage in it would never be old enough to go
        gone = [name for name in gone if name != path.stem]
    fs.remove_file(*(folder / f"{name}.idx" for name in gone))
    fs.remove_file(*(folder / f"{name}.pack" for name in gone))
    for object_id in moved:  # those that come back after a loss of power are whole
        path = objects.loose.path(object_id)
        with translate_os_errors(f"remove {path}"):
            path.unlink(missing_ok=True)
