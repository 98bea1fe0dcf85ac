"""Git objects that nothing reaches: finding what is in use, listing the rest, removing it.

Only loose objects are removed; those in packs of a stock ``git gc`` are that program's business.

Objects go in the reverse of the order in which they were written, each kind durably gone before
the next: commits and tags, trees, blobs. So a crash leaves no commit without its tree, and whoever
writes the same commit again finds nothing of it half there.

An object younger than the grace period stays, and so does all that it leads to, as in Git: a
branch that was deleted by mistake can be made again whole.
"""

from __future__ import annotations

import os
import stat as stat_bits
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import CorruptionError, FormatError, translate_os_errors
from mvc.history.commits import parse_commit, parse_tag
from mvc.history.translate import FSCK_HINT
from mvc.history.trees import parse_tree_object
from mvc.ids import GitId, is_hex_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from mvc.history.commitstore import CommitStore

DAMAGED = "damaged"
TEMPORARY = "temporary"
_ORDER = (("commit", "tag", DAMAGED, TEMPORARY), ("tree",), ("blob",))
_RANKS = {kind: rank for rank, kinds in enumerate(_ORDER) for kind in kinds}
_GITLINK = 0o160000
_FOLDER_DIGITS = 2


@dataclass(frozen=True, slots=True)
class GarbageObject:
    """A file below ``objects`` that nothing needs.

    Attributes:
        kind: ``commit``, ``tag``, ``tree``, ``blob``, ``damaged`` (an object that cannot be
            read) or ``temporary`` (what a process that died left of one).
        name: its file, relative to ``objects``.
        size_bytes: length of that file.
        mtime_ns: when it was written, or last written again.
    """

    kind: str
    name: str
    size_bytes: int
    mtime_ns: int

    @property
    def id(self) -> GitId | None:
        """The object's id; None for a temporary file."""
        return None if self.kind == TEMPORARY else GitId(self.name.replace("/", ""))


def reachable_objects(
    objects: CommitStore, roots: Iterable[GitId], blobs: Iterable[GitId] = ()
) -> set[GitId]:
    """Return every commit, tag, tree and blob that some roots lead to, them included.

    Commits and trees are read and hashed, each once; blobs only have to be there.

    Args:
        objects: where to read.
        roots: commits, tags or other objects.
        blobs: blobs to begin at as well: those of the index.

    Raises:
        CorruptionError: an object is missing, damaged, or of another kind than it is taken for.
    """
    loose = set(objects.iterate_loose())
    seen: set[GitId] = set()
    pending = [(one, "") for one in roots] + [(one, "blob") for one in blobs]
    while pending:
        object_id, wanted = pending.pop()
        if object_id in seen:
            continue
        seen.add(object_id)
        if wanted != "blob":
            pending.extend(_read_links(objects, object_id, wanted))
        elif object_id not in loose and not objects.has(object_id):
            raise CorruptionError(f"object {object_id} is missing", hint=FSCK_HINT)
    return seen


def _read_links(objects: CommitStore, object_id: GitId, wanted: str) -> list[tuple[GitId, str]]:
    """Return (id, kind) of what an object points to."""
    kind, data = objects.read(object_id)
    if wanted not in ("", kind):
        raise CorruptionError(
            f"object {object_id} is taken for a {wanted}; it is a {kind}", hint=FSCK_HINT
        )
    if kind == "commit":
        commit = parse_commit(object_id, data)
        return [(commit.tree, "tree"), *((parent, "commit") for parent in commit.parents)]
    if kind == "tag":
        target_kind, target = parse_tag(object_id, data)
        return [(target, target_kind)]
    if kind == "tree":
        return [
            (target, "tree" if stat_bits.S_ISDIR(mode) else "blob")
            for _, mode, target in parse_tree_object(object_id, data)
            if stat_bits.S_IFMT(mode) != _GITLINK
        ]
    return []


def find_recent(
    objects: CommitStore,
    reachable: Collection[GitId],
    *,
    older_than_s: float,
    now_s: float | None = None,
) -> set[GitId]:
    """Return what nothing reaches but is too young to go, with all that it leads to.

    As far as that is there: garbage may be damaged, or have lost a part.

    Args:
        objects: where to look.
        reachable: what ``reachable_objects`` found.
        older_than_s: age in seconds that a loose object needs to be garbage.
        now_s: the time that ages are counted to; now where None.
    """
    limit_ns = _limit_ns(older_than_s, now_s)
    pending = [
        object_id
        for object_id, stat in _stat_loose(objects)
        if object_id not in reachable and stat.mtime_ns > limit_ns
    ]
    found: set[GitId] = set()
    while pending:
        object_id = pending.pop()
        if object_id in found or object_id in reachable:
            continue
        found.add(object_id)
        try:
            header = objects.find_header(object_id)
            if header is not None and header[0] != "blob":
                pending.extend(target for target, _ in _read_links(objects, object_id, ""))
        except FormatError:
            continue
    return found


def list_garbage(
    objects: CommitStore,
    reachable: Collection[GitId],
    *,
    older_than_s: float,
    now_s: float | None = None,
) -> list[GarbageObject]:
    """Return the loose objects and left temporary files that may go, in the order to remove them.

    Args:
        objects: where to look.
        reachable: what ``reachable_objects`` found.
        older_than_s: age in seconds that they need; what younger ones lead to stays as well.
        now_s: the time that ages are counted to; now where None.
    """
    recent = find_recent(objects, reachable, older_than_s=older_than_s, now_s=now_s)
    limit_ns = _limit_ns(older_than_s, now_s)
    found = [
        GarbageObject(_find_kind(objects, object_id), name, stat.size_bytes, stat.mtime_ns)
        for object_id, stat in _stat_loose(objects)
        if object_id not in reachable and object_id not in recent
        for name in [f"{object_id[:_FOLDER_DIGITS]}/{object_id[_FOLDER_DIGITS:]}"]
    ]
    found += [
        GarbageObject(TEMPORARY, name, stat.size_bytes, stat.mtime_ns)
        for name, stat in _stat_temporary(objects.folder)
        if stat.mtime_ns <= limit_ns
    ]
    return sorted(found, key=lambda item: (_RANKS[item.kind], item.kind, item.name))


def remove_objects(objects: CommitStore, garbage: Iterable[GarbageObject]) -> int:
    """Remove listed files durably, kind after kind; return how many bytes they took.

    What is gone already, or was written again since it was listed, is passed over. The caller
    holds the sweep lock alone and has found out under it that they are garbage.

    Raises:
        StorageError: the machine refused; all that was removed by then was in the right order.
    """
    listed = list(garbage)
    freed_bytes = 0
    for kinds in _ORDER:
        freed_bytes += _remove_all(objects, [item for item in listed if item.kind in kinds])
    return freed_bytes


def _remove_all(objects: CommitStore, garbage: Sequence[GarbageObject]) -> int:
    objects.forget(item.id for item in garbage if item.id is not None)
    folders: set[Path] = set()
    freed_bytes = 0
    for item in garbage:
        path = objects.folder / item.name
        stat = fs.find_stat(path)
        if stat is None or stat.mtime_ns != item.mtime_ns:
            continue
        with translate_os_errors(f"remove {path}"):
            path.unlink(missing_ok=True)
        folders.add(path.parent)
        freed_bytes += stat.size_bytes
    for folder in sorted(folders):
        fs.fsync_dir(folder)
    return freed_bytes


def _limit_ns(older_than_s: float, now_s: float | None) -> int:
    return int(((time.time() if now_s is None else now_s) - older_than_s) * 1e9)


def _stat_loose(objects: CommitStore) -> Iterator[tuple[GitId, fs.FileStat]]:
    for object_id in objects.iterate_loose():
        stat = fs.find_stat(
            objects.folder / object_id[:_FOLDER_DIGITS] / object_id[_FOLDER_DIGITS:]
        )
        if stat is not None and stat.is_regular:
            yield object_id, stat


def _stat_temporary(folder: Path) -> Iterator[tuple[str, fs.FileStat]]:
    """Yield what programs that died left: ``tmp_obj_*`` of mvc and Git, ``tmp_*`` of its packs."""
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
            stat = fs.find_stat(folder / place / name) if name.startswith(prefix) else None
            if stat is not None and stat.is_regular:
                yield f"{place}/{name}".removeprefix("/"), stat


def _find_kind(objects: CommitStore, object_id: GitId) -> str:
    try:
        header = objects.find_header(object_id)
    except FormatError:
        return DAMAGED
    return DAMAGED if header is None else header[0]
