"""Git notes: text attached to a commit without changing its id.

A notes ref is like a branch. The tree of its newest commit has one blob per noted commit, and the
blob's path is that commit's id, cut by slashes after any pairs of its digits so that no folder
gets long: ``12/34567…`` is the note of ``1234567…``. Stock Git reads and writes the same:
``git notes --ref=released show COMMIT``.
"""

from __future__ import annotations

import stat as stat_bits
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from mvc.errors import UsageError
from mvc.history.names import NOTES, check_ref_name
from mvc.history.object_formats import MODE_TREE, encode_folder
from mvc.history.values import MODE_FILE, Stamp, TreeEntry
from mvc.ids import GitId, is_git_id

if TYPE_CHECKING:
    from mvc.history.git import GitHistory
    from mvc.history.objects import ObjectStore

_PAIR = 2
_MAX_FLAT = 256
"""Notes in one folder; more than that are spread over up to 256, by the first pair of digits."""


def read_notes(history: GitHistory, ref: str) -> dict[GitId, GitId]:
    """Return commit → blob of its note; empty if there is no such ref."""
    tip = history.find_ref(_check_name(ref))
    entries = {} if tip is None else history.read_tree(tip)
    noted = {path: _noted_id(path) for path in entries}
    return {
        noted_id: entries[path].blob for path, noted_id in noted.items() if noted_id is not None
    }


def find_notes(history: GitHistory, ref: str) -> NoteFinder | None:
    """Return what finds the notes of single commits, or None if there is no such ref."""
    tip = history.find_ref(ref)
    if tip is None:
        return None
    return NoteFinder(history.read_commit(tip).tree, history.objects.read_tree_items)


class NoteFinder:
    """Finds the notes of single commits; reads only the folders on the way to them, each once."""

    def __init__(
        self, tree: GitId, read_items: Callable[[GitId], Iterable[tuple[bytes, int, GitId]]]
    ) -> None:
        self._tree = tree
        self._read_items = read_items
        self._folders: dict[GitId, dict[str, tuple[int, GitId]]] = {}

    def find(self, noted: GitId) -> GitId | None:
        """Return the blob of a commit's note, or None."""
        folder, rest = self._tree, str(noted)
        while rest:
            items = self._items(folder)
            mode, blob = items.get(rest, (0, None))
            if blob is not None and not stat_bits.S_ISDIR(mode):
                return blob
            mode, below = items.get(rest[:_PAIR], (0, None))
            if below is None or not stat_bits.S_ISDIR(mode):
                return None
            folder, rest = below, rest[_PAIR:]
        return None

    def _items(self, folder: GitId) -> dict[str, tuple[int, GitId]]:
        if folder not in self._folders:
            self._folders[folder] = {
                name.decode("ascii", "replace"): (mode, blob)
                for name, mode, blob in self._read_items(folder)
            }
        return self._folders[folder]


def write_notes(
    history: GitHistory,
    ref: str,
    changes: Mapping[GitId, bytes | None],
    *,
    message: str,
    stamp: Stamp,
) -> None:
    """Replace the notes of some commits durably, as one commit on the notes ref; None removes one.

    Notes of other commits stay, and so does everything else in that tree. If nothing changes, no
    commit is made. Takes ``no_sweep()`` and ``lock()`` itself, so not to be called under ``lock()``
    alone.
    """
    _check_name(ref)
    for noted in changes:
        if not is_git_id(noted):
            raise UsageError(f"{noted!r} is not a commit id")
    with history.no_sweep(), history.lock():
        tip = history.find_ref(ref)
        old = None if tip is None else history.read_commit(tip).tree
        tree = None if old is None else _change_folders(history.objects, old, changes)
        if tree is None:
            tree = history.write_tree(
                _merge(history, history.read_tree(old) if old else {}, changes)
            )
        if tree == old or (old is None and not any(changes.values())):
            return
        new = history.write_commit(
            tree=tree,
            parents=[] if tip is None else [tip],
            message=message,
            author=stamp,
        )
        history.update_ref(ref, new, expected=tip, message=message, stamp=stamp)


def _change_folders(
    objects: ObjectStore, tree: GitId, changes: Mapping[GitId, bytes | None]
) -> GitId | None:
    """Return the new tree, or None unless all notes are in folders, as very many do.

    Only the folders of these notes are read and written, so a note costs the same however many
    there are.
    """
    root = _read_folder(objects, tree)
    folders = {name for name, (mode, _) in root.items() if stat_bits.S_ISDIR(mode)}
    if not folders or any(_noted_id(name.decode("ascii", "replace")) for name in root):
        return None
    for first in sorted({noted[:_PAIR] for noted in changes}):
        name = first.encode()
        folder = _read_folder(objects, GitId(root[name][1].decode())) if name in folders else {}
        if name in root.keys() - folders or any(
            stat_bits.S_ISDIR(mode) for mode, _ in folder.values()
        ):
            return None
        for noted, text in changes.items():
            if noted.startswith(first):
                folder.pop(noted[_PAIR:].encode(), None)
                if text is not None:
                    blob = objects.write("blob", text)
                    folder[noted[_PAIR:].encode()] = (MODE_FILE, blob.encode())
        root.pop(name, None)
        if folder:
            root[name] = (MODE_TREE, objects.write("tree", encode_folder({**folder})).encode())
    return objects.write("tree", encode_folder({**root}))


def _read_folder(objects: ObjectStore, tree: GitId) -> dict[bytes, tuple[int, bytes]]:
    return {name: (mode, blob.encode()) for name, mode, blob in objects.read_tree_items(tree)}


def _merge(
    history: GitHistory, before: Mapping[str, TreeEntry], changes: Mapping[GitId, bytes | None]
) -> dict[str, TreeEntry]:
    """Return the new tree of the notes, all of them laid out in the same way."""
    others: dict[str, TreeEntry] = {}
    notes: dict[GitId, TreeEntry] = {}
    for path, entry in before.items():
        noted = _noted_id(path)
        if noted is None:
            others[path] = entry
        else:
            notes[noted] = entry
    for noted, text in changes.items():
        if text is None:
            notes.pop(noted, None)
        else:
            notes[noted] = TreeEntry(MODE_FILE, history.write_blob(text))
    is_flat = len(notes) <= _MAX_FLAT
    return others | {
        noted if is_flat else f"{noted[:_PAIR]}/{noted[_PAIR:]}": entry
        for noted, entry in notes.items()
    }


def _noted_id(path: str) -> GitId | None:
    """Return the commit whose note is at a path, or None if it is something else."""
    *folders, name = path.split("/")
    joined = "".join((*folders, name))
    is_note = is_git_id(joined) and all(len(part) == _PAIR for part in folders)
    return GitId(joined) if is_note else None


def _check_name(ref: str) -> str:
    if not ref.startswith(NOTES):
        raise UsageError(f"{ref!r} is not a ref for notes", hint=f"choose a name below {NOTES}")
    return check_ref_name(ref)
