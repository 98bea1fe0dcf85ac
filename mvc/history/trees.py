"""Folders of a commit: path → entry in, nested Git trees out, and back.

Reading flattens and checks: a tree from elsewhere may name paths that reach outside the
worktree, name one path twice, or hold the same subtree so often that the paths would fill the
memory; all of that is a FormatError.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from dulwich.objects import parse_tree, serialize_tree, sorted_tree_items

from mvc.errors import FormatError, UsageError
from mvc.history.paths import MAX_PATH_BYTES, decode_path, encode_path, find_path_fault
from mvc.history.translate import translate_damage
from mvc.history.values import FILE_MODES, MODE_EXECUTABLE, MODE_FILE, TreeEntry
from mvc.ids import GitId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MAX_ENTRIES = 2_000_000
"""Files and folders of one commit."""
MAX_PATHS_CHARS = 256 * 1024 * 1024
"""Length of all its paths together: what a commit may take in memory."""
_ID_BYTES = 20
_MODE_TREE = 0o040000

_Folder = dict[bytes, "tuple[int, bytes] | _Folder"]


def write_tree(
    entries: Mapping[str, TreeEntry], write_object: Callable[[str, bytes], GitId]
) -> GitId:
    """Write the trees of a set of paths, innermost first, and return the id of the outermost.

    ``write_object`` stores (kind, content) and returns the id.
    """
    root: _Folder = {}
    for path, entry in entries.items():
        fault = find_path_fault(path)
        if fault is not None:
            raise UsageError(f"path {path!r} cannot be recorded: it {fault}")
        if entry.mode not in FILE_MODES:
            raise UsageError(f"path {path!r} has mode {entry.mode:o}, which Git does not know")
        _place(root, path, entry)
    return _write_folder(root, write_object)


def _place(root: _Folder, path: str, entry: TreeEntry) -> None:
    *folders, name = encode_path(path).split(b"/")
    folder: _Folder = root
    for part in folders:
        inner = folder.setdefault(part, {})
        if not isinstance(inner, dict):
            raise UsageError(f"path {path!r} lies below a file of the same commit")
        folder = inner
    if name in folder:
        raise UsageError(f"path {path!r} is both a file and a folder")
    folder[name] = (entry.mode, entry.blob.encode())


def _write_folder(root: _Folder, write_object: Callable[[str, bytes], GitId]) -> GitId:
    """Write trees from the leaves up, without recursion: a path may be two thousand deep."""
    order: list[tuple[_Folder, _Folder | None, bytes]] = [(root, None, b"")]
    for folder, _, _ in order:  # grows while it is read
        order.extend(
            (inner, folder, name) for name, inner in folder.items() if isinstance(inner, dict)
        )
    written = GitId("")
    for folder, parent, name in reversed(order):
        items = {key: item for key, item in folder.items() if not isinstance(item, dict)}
        ordered = sorted_tree_items(items, False)  # type: ignore[arg-type]  # noqa: FBT003  dulwich's id is bytes under another name
        written = write_object("tree", b"".join(serialize_tree(ordered)))
        if parent is not None:
            parent[name] = (_MODE_TREE, written.encode())
    return written


def parse_tree_object(tree_id: GitId, data: bytes) -> Iterator[tuple[bytes, int, GitId]]:
    """Yield (name, mode, id) of one tree object, as it is stored."""
    with translate_damage(f"tree {tree_id}"):
        parsed = list(parse_tree(data, _ID_BYTES))
    for name, mode, object_id in parsed:
        yield name, mode, GitId(object_id.decode())


def read_tree(root: GitId, read_object: Callable[[GitId], bytes]) -> dict[str, TreeEntry]:
    """Return path → entry of everything below a tree, sorted by path."""
    found: dict[str, TreeEntry] = {}
    pending = [("", root)]
    visited = chars = 0
    while pending:
        prefix, tree_id = pending.pop()
        names: set[bytes] = set()
        for name, mode, object_id in parse_tree_object(tree_id, read_object(tree_id)):
            path = _checked_path(prefix, name, tree_id)
            visited, chars = visited + 1, chars + len(path)
            if visited > MAX_ENTRIES or chars > MAX_PATHS_CHARS:
                raise FormatError(f"tree {root} unfolds to more than {MAX_ENTRIES:,} paths")
            if name in names:
                raise FormatError(f"tree {tree_id} names {path[:200]!r} twice")
            names.add(name)
            if stat.S_ISDIR(mode):
                pending.append((path + "/", object_id))
            else:
                found[path] = TreeEntry(_clean_mode(mode, path), object_id)
    return dict(sorted(found.items()))


def _checked_path(prefix: str, name: bytes, tree_id: GitId) -> str:
    part = decode_path(name)
    fault = "has a slash in a name" if b"/" in name else find_path_fault(part)
    path = prefix + part
    if fault is None and len(path) > MAX_PATH_BYTES:
        fault = f"is longer than {MAX_PATH_BYTES} bytes"
    if fault is not None:
        raise FormatError(
            f"tree {tree_id} holds a path that is not allowed: {path[:200]!r} {fault}"
        )
    return path


def _clean_mode(mode: int, path: str) -> int:
    if stat.S_ISREG(mode):  # old Gits stored other permission bits; only this one has a meaning
        return MODE_EXECUTABLE if mode & stat.S_IXUSR else MODE_FILE
    if mode not in FILE_MODES:
        raise FormatError(
            f"path {path!r} has mode {mode:o}: neither file, link nor folder",
            hint="mvc does not keep submodules",
        )
    return mode
