"""diff: which files and tensors differ between two states, by identity; no tensor byte is read.

A side is a path → (mode, blob) mapping: a commit's tree, the index, or the worktree. A changed
worktree file is hashed (as ``add`` would) but nothing is stored.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc.formats.manifest import tensor_id
from mvc.progress import announce
from mvc.workspace.files import find_manifest, hash_file
from mvc.workspace.recorded import head_tree, is_clean, staged_tree
from mvc.workspace.transition import recover
from mvc.workspace.worktree import find_file_stat, matches_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mvc.formats.layout import TensorView
    from mvc.formats.manifest import Manifest, StoredSegment
    from mvc.ids import GitId, TensorId
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """One tensor that differs.

    Attributes:
        name: its name (the new one where it was renamed).
        status: ``added``, ``removed``, ``modified`` or ``renamed``.
        dtype: dtype on the new side, or on the old where it was removed.
        shape: shape on the same side.
        old_name: name before a renaming.
        old_dtype: dtype before, where it changed.
        old_shape: shape before, where it changed.
        chunks_changed: chunks that the other side's tensor does not have.
        chunks_total: chunks of the tensor.
        size_bytes: its bytes.
    """

    name: str
    status: str
    dtype: str
    shape: tuple[int, ...]
    old_name: str | None = None
    old_dtype: str | None = None
    old_shape: tuple[int, ...] | None = None
    chunks_changed: int = 0
    chunks_total: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file that differs.

    Attributes:
        path: its path (the new one where it was renamed).
        status: ``added``, ``removed``, ``modified`` or ``renamed``.
        old_path: path before a renaming.
        format: checkpoint format, or None for plain files and links.
        tensors: tensors that differ, in file order.
        tensors_total: tensors of the file on the new side (old where removed).
        other_changed: whether bytes outside tensors (header, metadata) or a plain file differ.
        mode_changed: whether the executable bit or the kind of file differs.
        size_bytes: length of the new file; of the old one where removed.
    """

    path: str
    status: str
    old_path: str | None = None
    format: str | None = None
    tensors: tuple[TensorDiff, ...] = ()
    tensors_total: int = 0
    other_changed: bool = False
    mode_changed: bool = False
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Side:
    """One version of a file.

    Attributes:
        mode: Git mode.
        blob: id of the blob, which need not be stored (a changed file of the worktree).
        manifest: the manifest where no stored blob holds it.
        size_bytes: length where no stored blob tells.
    """

    mode: int
    blob: GitId
    manifest: Manifest | None = field(default=None, compare=False)
    size_bytes: int | None = field(default=None, compare=False)


def diff_revisions(
    context: Context,
    old: str,
    new: str,
    *,
    paths: Sequence[str] = (),
    tensors: str | None = None,
    with_tensors: bool = True,
) -> list[FileDiff]:
    """Compare two commits.

    Args:
        context: the repository.
        old: revision before.
        new: revision after.
        paths: only these paths, folders or wildcards.
        tensors: only tensors whose name fits this wildcard; files without one are left out.
        with_tensors: also find out which tensors differ (reads the manifests).
    """
    history = context.history
    before, after = (
        {path: Side(entry.mode, entry.blob) for path, entry in history.read_tree(commit).items()}
        for commit in (history.resolve(old), history.resolve(new))
    )
    return compare(context, before, after, paths, tensors, with_tensors=with_tensors)


def diff_commit(
    context: Context,
    revision: str,
    *,
    paths: Sequence[str] = (),
    tensors: str | None = None,
    with_tensors: bool = True,
) -> list[FileDiff]:
    """Compare a commit with its first parent; with nothing where it has none."""
    info = context.history.read_commit(context.history.resolve(revision))
    before = _commit_sides(context, info.parents[0]) if info.parents else {}
    after = _commit_sides(context, info.id)
    return compare(context, before, after, paths, tensors, with_tensors=with_tensors)


def diff_staged(
    context: Context,
    revision: str | None = None,
    *,
    paths: Sequence[str] = (),
    tensors: str | None = None,
    with_tensors: bool = True,
) -> list[FileDiff]:
    """Compare a commit (HEAD) with the index."""
    recover(context)
    before = _commit_sides(context, revision)
    after = {
        path: Side(mode, blob)
        for path, (mode, blob) in staged_tree(context.history.read_index()).items()
    }
    return compare(context, before, after, paths, tensors, with_tensors=with_tensors)


def diff_worktree(
    context: Context,
    revision: str | None = None,
    *,
    paths: Sequence[str] = (),
    tensors: str | None = None,
    with_tensors: bool = True,
    progress: Callable[[int], None] | None = None,
) -> list[FileDiff]:
    """Compare the index (or a commit) with the tracked files of the worktree."""
    recover(context)
    index = context.history.read_index()
    base = {path: Side(mode, blob) for path, (mode, blob) in staged_tree(index).items()}
    before = base if revision is None else _commit_sides(context, revision)
    after: dict[str, Side] = {}
    for path, side in base.items():
        if not _wanted(paths, path):
            continue
        entry, stat = index.entries[path], find_file_stat(context.worktree, path)
        if stat is None or not (stat.is_regular or stat.is_symlink):
            if entry.skip_worktree:
                after[path] = side
        elif is_clean(context, index, entry, stat):
            after[path] = side
        else:
            announce(progress, stat.size_bytes)
            hashed = hash_file(context, path, progress)
            after[path] = Side(hashed.mode, hashed.blob, hashed.manifest, hashed.size_bytes)
    return compare(context, before, after, paths, tensors, with_tensors=with_tensors)


def _commit_sides(context: Context, revision: str | None) -> dict[str, Side]:
    if revision is None:
        tree = head_tree(context)
    else:
        tree = context.history.read_tree(context.history.resolve(revision))
    return {path: Side(entry.mode, entry.blob) for path, entry in tree.items()}


def _wanted(patterns: Sequence[str], path: str) -> bool:
    return not patterns or any(matches_path(pattern, path) for pattern in patterns)


def compare(
    context: Context,
    before: Mapping[str, Side],
    after: Mapping[str, Side],
    paths: Sequence[str] = (),
    tensors: str | None = None,
    *,
    with_tensors: bool = True,
) -> list[FileDiff]:
    """Compare two sides path by path; files that moved unchanged are renamed."""
    changed = sorted(
        path
        for path in {*before, *after}
        if _wanted(paths, path) and before.get(path) != after.get(path)
    )
    removed: dict[GitId, list[str]] = {}
    for path in reversed(changed):
        if path not in after:
            removed.setdefault(before[path].blob, []).append(path)
    found: list[FileDiff] = []
    renamed: set[str] = set()
    for path in changed:
        if path not in after:
            continue
        old_path: str | None = path
        if path not in before:
            namesakes = removed.get(after[path].blob)
            old_path = namesakes.pop() if namesakes else None
            renamed.update([old_path] if old_path is not None else [])
        old = before[old_path] if old_path is not None else None
        found.append(
            _compare_file(
                context, old_path or path, path, old, after[path], with_tensors=with_tensors
            )
        )
    found.extend(
        _compare_file(context, path, path, before[path], None, with_tensors=with_tensors)
        for path in changed
        if path not in after and path not in renamed
    )
    found.sort(key=lambda file: file.path)
    return found if tensors is None else _only_tensors(found, tensors)


def _only_tensors(files: Iterable[FileDiff], pattern: str) -> list[FileDiff]:
    found: list[FileDiff] = []
    for file in files:
        kept = tuple(
            tensor
            for tensor in file.tensors
            if fnmatch.fnmatchcase(tensor.name, pattern)
            or (tensor.old_name is not None and fnmatch.fnmatchcase(tensor.old_name, pattern))
        )
        if kept:
            found.append(
                FileDiff(
                    file.path,
                    file.status,
                    file.old_path,
                    file.format,
                    kept,
                    file.tensors_total,
                    size_bytes=file.size_bytes,
                )
            )
    return found


def _compare_file(
    context: Context,
    old_path: str,
    path: str,
    old: Side | None,
    new: Side | None,
    *,
    with_tensors: bool,
) -> FileDiff:
    status = _file_status(old_path, path, old, new)
    mode_changed = old is not None and new is not None and old.mode != new.mode
    moved_from = old_path if old_path != path else None
    same_content = old is not None and new is not None and old.blob == new.blob
    if not with_tensors:
        return FileDiff(path, status, moved_from, mode_changed=mode_changed)
    old_manifest, new_manifest = _manifest_of(context, old), _manifest_of(context, new)
    shown = new_manifest or old_manifest
    if shown is None:
        size_bytes = _plain_size(context, new or old)
        return FileDiff(
            path,
            status,
            moved_from,
            other_changed=not same_content,
            mode_changed=mode_changed,
            size_bytes=size_bytes,
        )
    tensors = () if same_content else compare_tensors(old_manifest, new_manifest)
    gaps_changed = (old_manifest and old_manifest.gaps) != (new_manifest and new_manifest.gaps)
    return FileDiff(
        path,
        status,
        moved_from,
        shown.format,
        tensors,
        sum(len(stored.segment.tensors) for stored in shown.segments),
        other_changed=not same_content and (gaps_changed or not tensors),
        mode_changed=mode_changed,
        size_bytes=shown.size_bytes,
    )


def _file_status(old_path: str, path: str, old: Side | None, new: Side | None) -> str:
    if old is None:
        return "added"
    if new is None:
        return "removed"
    return "renamed" if old_path != path else "modified"


def _manifest_of(context: Context, side: Side | None) -> Manifest | None:
    if side is None:
        return None
    if side.manifest is not None:
        return side.manifest
    return None if side.size_bytes is not None else find_manifest(context, side.blob)


def _plain_size(context: Context, side: Side | None) -> int:
    if side is None or side.size_bytes is not None:
        return 0 if side is None else side.size_bytes or 0
    return context.history.find_blob_size(side.blob) or 0


def tensor_ids(manifest: Manifest) -> dict[str, TensorId]:
    """Return name → identity of every tensor of a file, in file order."""
    return {view.name: tensor_id(view, stored) for view, stored in manifest.tensors()}


def compare_tensors(old: Manifest | None, new: Manifest | None) -> tuple[TensorDiff, ...]:
    """Compare two versions of a file tensor by tensor; equal bytes under a new name are renamed."""
    before = _by_name(old)
    after = _by_name(new)
    gone = {name: pair for name, pair in before.items() if name not in after}
    by_id: dict[TensorId, list[str]] = {}
    for name, pair in reversed(gone.items()):  # tied tensors have the same id
        by_id.setdefault(tensor_id(*pair), []).append(name)
    found: list[TensorDiff] = []
    for name, (view, stored) in after.items():
        if name in before:
            change = _compare_tensor(before[name], (view, stored))
            if change is not None:
                found.append(change)
            continue
        namesakes = by_id.get(tensor_id(view, stored)) if by_id else None
        old_name = namesakes.pop() if namesakes else None
        if old_name is not None:
            del gone[old_name]
        found.append(_whole(view, stored, "added" if old_name is None else "renamed", old_name))
    found.extend(_whole(view, stored, "removed") for view, stored in gone.values())
    return tuple(found)


def _by_name(manifest: Manifest | None) -> dict[str, tuple[TensorView, StoredSegment]]:
    if manifest is None:
        return {}
    return {view.name: (view, stored) for view, stored in manifest.tensors()}


def _whole(
    view: TensorView, stored: StoredSegment, status: str, old_name: str | None = None
) -> TensorDiff:
    count = len(stored.chunks)
    return TensorDiff(
        view.name,
        status,
        view.dtype,
        view.shape,
        old_name,
        chunks_changed=0 if status == "renamed" else count,
        chunks_total=count,
        size_bytes=stored.segment.size_bytes,
    )


def _compare_tensor(
    old: tuple[TensorView, StoredSegment], new: tuple[TensorView, StoredSegment]
) -> TensorDiff | None:
    (old_view, old_stored), (view, stored) = old, new
    same_place = (old_view.offset_bytes, old_view.strides) == (view.offset_bytes, view.strides)
    same_kind = (old_view.dtype, old_view.shape) == (view.dtype, view.shape)
    if same_place and same_kind and old_stored.chunks == stored.chunks:
        return None
    known = set(old_stored.chunks)
    return TensorDiff(
        view.name,
        "modified",
        view.dtype,
        view.shape,
        old_dtype=None if old_view.dtype == view.dtype else old_view.dtype,
        old_shape=None if old_view.shape == view.shape else old_view.shape,
        chunks_changed=sum(1 for chunk in stored.chunks if chunk not in known),
        chunks_total=len(stored.chunks),
        size_bytes=stored.segment.size_bytes,
    )
