"""Git objects that nothing reaches: listing what may go, and removing it.

Loose objects are removed, and packs that nothing needs any more, once they are too old to be still in
the making. What is needed and what is not may share a pack: it stays.

Objects go in the reverse of the order in which they were written, each kind durably gone before
the next: commits and tags, trees, blobs. So a crash leaves no commit without its tree, and a
process that writes the same commit again never builds on a part of it.

An object younger than the grace period stays, with all that it leads to, as in Git: a branch that
was deleted by mistake can be restored whole.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import FormatError, UsageError, translate_os_errors
from mvc.history.git_pack import KEEP_TEXT, GitPackIndex
from mvc.history.reachability import read_links
from mvc.ids import GitId, is_hex_id

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.history.git import GitHistory
    from mvc.history.objects import ObjectStore

DAMAGED = "damaged"
TEMPORARY = "temporary"
PACK = "pack"
_ORDER = (("commit", "tag", DAMAGED, TEMPORARY), (PACK,), ("tree",), ("blob",))
_RANKS = {kind: rank for rank, kinds in enumerate(_ORDER) for kind in kinds}
_FOLDER_DIGITS = 2


@dataclass(frozen=True, slots=True)
class GarbageObject:
    """A file below ``objects`` that nothing needs."""

    # ``commit``, ``tag``, ``tree``, ``blob``, ``damaged`` (an object that cannot be read) or
    # ``temporary`` (left of one by a process that died) or ``pack``
    kind: str
    name: str  # its file, relative to ``objects``
    size_bytes: int
    mtime_ns: int  # when it was last written or touched
    count: int = 1  # objects in it

    @property
    def id(self) -> GitId | None:
        """The object's id; None for a temporary file or a pack."""
        return None if self.kind in (TEMPORARY, PACK) else GitId(self.name.replace("/", ""))


def find_recent(
    history: GitHistory, reachable: Collection[GitId], *, older_than_s: float
) -> set[GitId]:
    """Return what nothing reaches but is too young to go, with all that it leads to.

    Only as far as it can be read: garbage may be damaged, or have lost a part.
    """
    objects, limit_ns = history.objects, _limit_ns(older_than_s)
    young = [[object_id] for object_id, stat in _stat_loose(objects) if stat.mtime_ns > limit_ns]
    young += [list(index) for _, index, stat in _stat_packs(objects) if stat.mtime_ns > limit_ns]
    pending = [object_id for ids in young for object_id in ids if object_id not in reachable]
    recent: set[GitId] = set()
    while pending:
        object_id = pending.pop()
        if object_id in recent or object_id in reachable:
            continue
        recent.add(object_id)
        try:
            header = objects.find_header(object_id)
            if header is not None and header[0] != "blob":
                pending.extend(target for target, _ in read_links(objects, object_id, ""))
        except FormatError:
            continue
    return recent


def list_garbage(
    history: GitHistory, reachable: Collection[GitId], *, older_than_s: float
) -> list[GarbageObject]:
    """Return loose objects, packs and stray temporary files that may go, in the order of removal.

    What objects younger than ``older_than_s`` lead to stays as well.
    """
    objects, limit_ns = history.objects, _limit_ns(older_than_s)
    recent = find_recent(history, reachable, older_than_s=older_than_s)
    garbage = []
    for object_id, stat in _stat_loose(objects):
        if object_id in reachable or object_id in recent:
            continue
        try:
            header = objects.find_header(object_id)
        except FormatError:
            header = None
        kind = DAMAGED if header is None else header[0]
        name = f"{object_id[:_FOLDER_DIGITS]}/{object_id[_FOLDER_DIGITS:]}"
        garbage.append(GarbageObject(kind, name, stat.size_bytes, stat.mtime_ns))
    garbage += [
        GarbageObject(PACK, f"pack/{path.name}", stat.size_bytes, stat.mtime_ns, len(ids))
        for path, index, stat in _stat_packs(objects)
        if stat.mtime_ns <= limit_ns and not path.with_suffix(".keep").exists()
        for ids in [list(index)]
        if not any(object_id in reachable or object_id in recent for object_id in ids)
    ]
    garbage += [
        GarbageObject(TEMPORARY, name, stat.size_bytes, stat.mtime_ns)
        for name, stat in _stat_temporary(objects.folder)
        if stat.mtime_ns <= limit_ns
    ]
    return sorted(garbage, key=lambda item: (_RANKS[item.kind], item.kind, item.name))


def remove_objects(history: GitHistory, garbage: Iterable[GarbageObject]) -> int:
    """Remove what ``list_garbage`` listed, durably; return the bytes that frees.

    Only under ``sweep_alone()``, and after the roots were looked at again under it. What is gone
    already, or was written again since, is skipped.
    """
    if not history.is_alone:
        raise UsageError("objects are removed under the sweep lock only")
    listed = list(garbage)
    return sum(
        _remove_all(history.objects, [item for item in listed if item.kind in kinds])
        for kinds in _ORDER
    )


def _remove_all(objects: ObjectStore, garbage: Sequence[GarbageObject]) -> int:
    objects.forget(item.id for item in garbage if item.id is not None)
    folders: set[Path] = set()
    freed_bytes = 0
    for item in garbage:
        path = objects.folder / item.name
        stat = fs.find_stat(path)
        if stat is None or stat.mtime_ns != item.mtime_ns:
            continue
        if item.kind == PACK:  # first what leads to it, and all that goes with it
            for beside in sorted(path.parent.glob(f"{path.stem}.*")):
                if beside != path:
                    fs.remove_file(beside)
        with translate_os_errors(f"remove {path}"):
            path.unlink(missing_ok=True)
        folders.add(path.parent)
        freed_bytes += stat.size_bytes
    for folder in sorted(folders):
        with contextlib.suppress(FileNotFoundError):  # a git gc removes empty ones
            fs.fsync_dir(folder)
    return freed_bytes


def _limit_ns(older_than_s: float) -> int:
    return int((time.time() - older_than_s) * 1e9)


def _stat_loose(objects: ObjectStore) -> Iterator[tuple[GitId, fs.FileStat]]:
    for object_id in objects.loose.iterate():
        stat = fs.find_stat(objects.loose.path(object_id))
        if stat is not None and stat.is_regular:
            yield object_id, stat


def _stat_packs(objects: ObjectStore) -> Iterator[tuple[Path, GitPackIndex, fs.FileStat]]:
    for path, index in objects.packs.indexes().items():
        stat = fs.find_stat(path)
        if stat is not None:
            yield path, index, stat


def _stat_temporary(folder: Path) -> Iterator[tuple[str, fs.FileStat]]:
    """Yield what dead processes left: ``tmp_obj_*``, ``tmp_*`` of packs, packs without an index."""
    with translate_os_errors(f"list {folder}"):
        inner = sorted(name for name in os.listdir(folder) if is_hex_id(name, _FOLDER_DIGITS))
    for place, prefix in [
        ("", "tmp_obj_"),
        ("pack", "tmp_"),
        *((name, "tmp_obj_") for name in inner),
    ]:
        with translate_os_errors(f"list {folder / place}"):
            try:
                names = sorted(os.listdir(folder / place))
            except (FileNotFoundError, NotADirectoryError):
                continue
        for name in names:
            is_left = name.startswith(prefix)
            if name.endswith(".pack"):
                is_left = f"{name.removesuffix('.pack')}.idx" not in names
            stat = fs.find_stat(folder / place / name)
            if name.endswith(".keep") and stat is not None and stat.size_bytes == len(KEEP_TEXT):
                is_left = stat.is_regular and (folder / place / name).read_bytes() == KEEP_TEXT
            stat = stat if is_left else None
            if stat is not None and stat.is_regular:
                yield f"{place}/{name}".removeprefix("/"), stat
