"""What is recorded at three places: a commit's tree, the index, the worktree; and are they equal.

``is_clean`` answers from the index's stat data wherever Git would, so unchanged files are not
read; a racy entry (changed in the same tick as the index was written) is compared by content.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from mvc.history.names import folders_of
from mvc.history.values import Index, IndexEntry, TreeEntry
from mvc.workspace.worktree import find_file_stat, folders_above

if TYPE_CHECKING:
    from mvc.fs import FileStat
    from mvc.ids import GitId
    from mvc.workspace.context import Context


Key = TypeVar("Key", bound="Hashable")
Name = TypeVar("Name", bound="Hashable")


def head_tree(context: Context) -> dict[str, TreeEntry]:
    """Return path → entry of HEAD's commit; empty before the first commit."""
    return tree_of(context, context.history.head().commit)


def tree_of(context: Context, commit: GitId | None) -> dict[str, TreeEntry]:
    """Return path → entry of a commit; empty for None."""
    return {} if commit is None else context.history.read_tree(commit)


def is_clean(context: Context, index: Index, entry: IndexEntry, stat: FileStat) -> bool:
    """Return whether a file of the worktree still holds what its index entry says."""
    if entry.matches(stat) and not index.is_racy(entry):
        return True
    return _content_matches(context, entry.path, stat, entry.mode, entry.blob)


def holds(context: Context, index: Index, path: str, mode: int, blob: GitId) -> bool:
    """Return whether a path of the worktree holds exactly that blob (stat data first)."""
    stat = find_file_stat(context.worktree, path)
    if stat is None:
        return False
    entry = index.entries.get(path)
    if entry is not None and (entry.blob, entry.mode) == (blob, mode):
        return is_clean(context, index, entry, stat)
    return _content_matches(context, path, stat, mode, blob)


def _content_matches(context: Context, path: str, stat: FileStat, mode: int, blob: GitId) -> bool:
    if not (stat.is_regular or stat.is_symlink):
        return False
    from mvc.workspace.content import content_matches  # noqa: PLC0415  a clean status needs none

    return content_matches(context, path, stat, mode, blob)


def drop_clashing(entries: dict[str, IndexEntry], placed: Iterable[str]) -> None:
    """Drop the entries whose place newly placed paths take: a file where a folder was, or both."""
    taken = set(placed)
    for folder in folders_of(taken) - taken:
        entries.pop(folder, None)
    replaced = folders_of(entries) & taken
    for path in [path for path in entries if replaced and path not in taken]:
        if not replaced.isdisjoint(folders_above(path)):
            del entries[path]


def merge_entries(
    index: Index, entries: Mapping[str, IndexEntry], drop: Iterable[str] = ()
) -> dict[str, IndexEntry]:
    """Return the entries of an index with others put in and some dropped."""
    merged = dict(index.entries)
    for path in drop:
        merged.pop(path, None)
    merged.update(entries)
    drop_clashing(merged, entries)
    return merged


def update_index(
    context: Context, entries: Mapping[str, IndexEntry], drop: Iterable[str] = ()
) -> None:
    """Put entries into the index as it stands now, under the repository's lock."""
    context.history.sync_objects()  # the index must not name a blob that a crash could lose
    with context.history.lock():
        current = context.history.read_index()
        drop = tuple(drop)
        decided = {*entries, *drop}
        unmerged = {one: it for one, it in current.unmerged.items() if one not in decided}
        merged = merge_entries(current, entries, drop)
        context.history.write_index(Index(merged, unmerged=unmerged, asleep=current.asleep))


def staged_tree(index: Index) -> dict[str, TreeEntry]:
    """Return path → entry of the tree that a commit of the index would have."""
    return {path: entry.version for path, entry in index.entries.items()}


def pair_renames(gone: dict[Name, Key], came: Iterable[tuple[Name, Key]]) -> dict[Name, Name]:
    """Return new name → old name for what reappears under another name, in order."""
    names: dict[Key, list[Name]] = {}
    for name, key in reversed(gone.items()):
        names.setdefault(key, []).append(name)
    renames: dict[Name, Name] = {}
    for name, key in came if names else ():
        if names.get(key):
            renames[name] = names[key].pop()
    return renames


def make_entry(path: str, mode: int, blob: GitId, stat: FileStat | None) -> IndexEntry:
    """Return the index entry of a file that was just written or read."""
    if stat is None:
        return IndexEntry(path=path, blob=blob, mode=mode)
    return IndexEntry(
        path=path,
        blob=blob,
        mode=mode,
        size_bytes=stat.size_bytes,
        mtime_ns=stat.mtime_ns,
        ctime_ns=stat.ctime_ns,
        inode=stat.inode,
        device=stat.device,
    )
