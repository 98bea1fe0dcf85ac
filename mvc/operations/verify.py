"""verify: does a live state, or the worktree, hold bit for bit what a commit holds?

In the worktree every file is read: stat data is not trusted. What counts are tensors: a file with
another header, format or number of shards is distinguished from one whose tensors differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.checkpoints.detect import read_layout
from mvc.checkpoints.names import SHARD
from mvc.comparison.checks import TensorCheck, check_pairs
from mvc.comparison.pairs import TensorPair
from mvc.errors import ConflictError, FormatError, UnsupportedError
from mvc.history.ignore import IgnoreRules
from mvc.history.values import MODE_SYMLINK, TreeEntry
from mvc.progress import announce
from mvc.sources import FileSource, read_bytes
from mvc.states.document import STATE_FILE
from mvc.states.outline import check_sizes, compare_texts
from mvc.states.state import encode_spread, pair_segments
from mvc.workspace.content import GapStream, all_same, cut_live, find_different, open_source
from mvc.workspace.files import PLAIN_FILE_MAX_BYTES, find_layout
from mvc.workspace.manifests import find_manifest, stored_size
from mvc.workspace.pathspec import select_paths
from mvc.workspace.recovery import recover
from mvc.workspace.released import check_content
from mvc.workspace.state_files import (
    TensorSizes,
    find_state_files,
    read_state_text,
    read_state_tree,
)
from mvc.workspace.tensors import LivePart, find_different_parts, live_tensors, stored_tensors
from mvc.workspace.worktree import find_file_stat, read_link, relative_paths, scan_files

if TYPE_CHECKING:
    from mvc.formats.layout import FileLayout, Segment
    from mvc.formats.manifest import Manifest
    from mvc.ids import GitId
    from mvc.workspace.content import LiveChunk
    from mvc.workspace.context import Context
    from mvc.workspace.tensors import ModelTensor
    from mvc.workspace.worktree import Paths

    Version = tuple[str, GitId, GitId | None]

SAME = "same"
SAME_TENSORS = "same-tensors"
DIFFERENT = "different"
MISSING = "missing"
NOT_IN_WORKTREE = "not-in-worktree"


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One file of a commit and what the worktree has of it.

    Attributes:
        path: its path.
        status: ``same``; ``same-tensors``: all tensors are the same, but not the file around them;
            ``different``; ``missing``; ``not-in-worktree``: part of a state that was committed
            from memory and never written, so there is nothing to compare.
        format: checkpoint format in the commit; None for plain files and links.
        tensors: those that are missing, extra or differ.
        tensors_total: tensors of the commit's file.
        size_bytes: its length in the commit.
        found_in: the files whose tensors were compared, if not ``path`` itself.
        reason: what else is wrong, or None.
    """

    path: str
    status: str
    format: str | None = None
    tensors: tuple[TensorCheck, ...] = ()
    tensors_total: int = 0
    size_bytes: int = 0
    found_in: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class WorktreeCheck:
    """The ``commit`` compared with, and all ``files`` that were asked for, by path."""

    commit: GitId
    files: tuple[FileCheck, ...]

    @property
    def is_same(self) -> bool:
        """Whether there was something to compare, and all of it is the same."""
        compared = [file for file in self.files if file.status != NOT_IN_WORKTREE]
        if not compared:
            return not self.files
        return all(file.status in (SAME, SAME_TENSORS) for file in compared)


@dataclass(frozen=True, slots=True)
class StateCheck:
    """What a comparison of a live state with a ``commit`` found.

    ``tensors`` says how many were compared, ``size_bytes`` is the sum of theirs, and ``differences``
    has a line for each tensor or value that differs; empty means bit-exact.
    """

    commit: GitId
    tensors: int
    size_bytes: int
    differences: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether every bit is the same."""
        return not self.differences


def verify_state(
    context: Context,
    state: Mapping[str, object],
    revision: str = "HEAD",
    *,
    folder: str | None = None,
) -> StateCheck:
    """Compare a live state with a commit's, bit by bit; nothing is changed.

    Args:
        state: nested, as for ``commit_state``.
        revision: which commit.
        folder: as for ``outline_state``.

    Raises:
        UnsupportedError: a live value that is not data; the message names its path.
        FormatError: the commit lacks something that its state names.
    """
    commit = context.history.resolve(revision)
    text = read_state_text(context, commit, revision, folder)
    tree = read_state_tree(context, commit, folder)
    check_sizes(text, TensorSizes(context, tree))  # or a tensor missing in both would go unnoticed
    files, spread = encode_spread(state)
    live = {file.path: file for file in files}
    own_text = live[STATE_FILE]
    differences = compare_texts(text, read_bytes(own_text.source, 0, own_text.layout.size_bytes))
    chunks: list[LiveChunk[tuple[str, str]]] = []
    parts: list[LivePart] = []
    tensors = size_bytes = 0
    for path in sorted(live.keys() - {STATE_FILE}):
        manifest = find_manifest(context, tree[path].blob) if path in tree else None
        if manifest is None:
            continue  # the comparison of the texts has named it
        stored = {segment.segment: segment for segment in manifest.segments}
        for old, new in pair_segments(stored, live[path].layout.segments):
            tensors += 1
            ids, place = stored[old].chunks, (path, old.tensors[0].name)
            array = spread.get(place)
            if array is not None and array.part is not None:
                own = (array.source, array.part, stored[old], manifest.chunk_bytes, place)
                parts.append(LivePart(*own))
                size_bytes += array.part.size_bytes
                continue
            size_bytes += old.size_bytes
            source = live[path].source
            chunks += cut_live(source, new.start, old.size_bytes, ids, manifest.chunk_bytes, place)
    versions = {path: tree[path].blob for path in {part.place[0] for part in parts}}
    check_content(context, versions.items(), commit=commit)
    wrong, totals = find_different_parts(context, parts)
    wrong |= find_different(chunks, threads=context.store.threads)
    totals.update(chunk.place for chunk in chunks)
    for place, numbers in sorted(wrong.items()):
        count = f" in {len(numbers)} of {totals[place]} chunks" if totals[place] > 1 else ""
        differences.append(f"tensor {place[1]!r} of {place[0]} differs{count}")
    return StateCheck(commit, tensors, size_bytes, tuple(differences))


def verify_worktree(
    context: Context, revision: str = "HEAD", *, paths: Paths = ()
) -> WorktreeCheck:
    """Compare the files of the worktree with a commit's, tensor by tensor, bit by bit.

    Every file is read; nothing is changed. A file that differs from the commit's but holds
    the same tensors (another header, format or number of shards) is reported as such.

    Raises:
        ConflictError: a file changed while it was read.
        ReleasedError: a tensor can only be compared by its content, which was released.
    """
    chosen = relative_paths(context, paths)
    recover(context)
    commit = context.history.resolve(revision)
    tree = context.history.read_tree(commit)
    chosen = select_paths(chosen, sorted(tree))
    announce(sum(stored_size(context, tree[path].blob) for path in chosen))
    # States that were committed from memory need not be in the worktree.
    entries = context.history.read_index().entries
    unwritten = {path for path, entry in entries.items() if entry.skip_worktree}
    unwritten.update(path for path in find_state_files(context, tree) if path not in entries)
    elsewhere = _Elsewhere(context, tree)
    files = []
    for path in chosen:
        check = _check_file(context, commit, path, tree[path])
        if check.status == MISSING:
            if path in unwritten:
                check = replace(check, status=NOT_IN_WORKTREE)
            check = elsewhere.find(commit, check)
        files.append(check)
    return WorktreeCheck(commit, tuple(files))


def _check_file(context: Context, commit: GitId, path: str, entry: TreeEntry) -> FileCheck:
    manifest = None if entry.mode == MODE_SYMLINK else find_manifest(context, entry.blob)
    check = FileCheck(path, SAME, size_bytes=stored_size(context, entry.blob))
    if manifest is not None:
        check = replace(check, format=manifest.format, tensors_total=manifest.tensors_total)
    stat = find_file_stat(context.worktree, path)
    if stat is None:
        return replace(check, status=MISSING)
    if stat.is_symlink != (entry.mode == MODE_SYMLINK):
        return _different(check, "it is a link" if stat.is_symlink else "it is not a link")
    if not (stat.is_symlink or stat.is_regular):
        return _different(check, "it is not a file")
    if manifest is None:
        reason = _compare_plain(context, path, entry, check.size_bytes)
        return check if reason is None else _different(check, reason)
    with _open_unchanged(context, path) as source:
        version = (path, entry.blob, commit)
        return _compare_checkpoint(context, version, manifest, source, check)


def _compare_plain(context: Context, path: str, entry: TreeEntry, size_bytes: int) -> str | None:
    """Return how a link or a small file differs from a blob, or None."""
    if entry.mode == MODE_SYMLINK:
        text = read_link(context.worktree, path)
        return None if text == context.history.read_blob(entry.blob) else "it points elsewhere"
    with _open_unchanged(context, path) as source:
        is_state = path == STATE_FILE and source.size_bytes <= PLAIN_FILE_MAX_BYTES
        if source.size_bytes != size_bytes and not is_state:
            return "its bytes differ"
        live = read_bytes(source, 0, source.size_bytes)
    stored = context.history.read_blob(entry.blob)
    if live == stored:
        return None
    return (_compare_values(stored, live) if is_state else None) or "its bytes differ"


def _compare_values(stored: bytes, live: bytes) -> str | None:
    """Return the first value in which two ``state.json`` differ; None if they are not that."""
    with suppress(FormatError, UnsupportedError):
        lines = compare_texts(stored, live)
        more = f" (and {len(lines) - 1:,} more)" if len(lines) > 1 else ""
        return f"{lines[0]}{more}" if lines else "its text differs, its values do not"
    return None


def _different(check: FileCheck, reason: str) -> FileCheck:
    return replace(check, status=DIFFERENT, reason=reason)


@contextmanager
def _open_unchanged(context: Context, path: str) -> Iterator[FileSource]:
    """Open a file of the worktree, and check at the end that it did not change meanwhile."""
    with open_source(context.worktree / path, path) as source:
        yield source
        if find_file_stat(context.worktree, path) != source.stat:
            raise ConflictError(
                f"{path!r} changed while it was read",
                hint="verify it again once nothing writes to it",
            )


def _compare_checkpoint(
    context: Context, version: Version, manifest: Manifest, source: FileSource, check: FileCheck
) -> FileCheck:
    is_around_same = False  # whether all bytes outside tensors are the commit's
    if source.size_bytes == manifest.size_bytes:
        gaps = GapStream(manifest.gap_ranges(), source)
        size_bytes, chunk_bytes = manifest.gap_bytes, manifest.chunk_bytes
        is_around_same = all_same(cut_live(gaps, 0, size_bytes, manifest.gaps, chunk_bytes, None))
    if is_around_same:  # the header is too, so it has the same tensors at the same places
        segments: Sequence[Segment] = [stored.segment for stored in manifest.segments]
    elif not manifest.segments:
        return _different(check, "its bytes differ")
    else:
        layout = read_layout(source, check.path.rpartition("/")[2])
        if not layout.segments:
            why = layout.warning or "it holds no tensors"
            return _different(check, f"no tensor can be found in it: {why}")
        segments = layout.segments
    live = {tensor.name: tensor for tensor in live_tensors(check.path, source, segments)}
    tensors = _compare_tensors(context, version, manifest, live)
    known = {view.name for view, _ in manifest.tensors()}
    tensors += [
        TensorCheck(name, "extra", tensor.view.dtype, tensor.view.shape)
        for name, tensor in live.items()
        if name not in known
    ]
    if tensors:
        return replace(check, status=DIFFERENT, tensors=tuple(tensors))
    return check if is_around_same else replace(check, status=SAME_TENSORS)


def _compare_tensors(
    context: Context, version: Version, manifest: Manifest, live: Mapping[str, ModelTensor]
) -> list[TensorCheck]:
    """Return the tensors of a checkpoint that are missing or differ in open files, in its order."""
    stored = stored_tensors(context, version, manifest)
    pairs = [TensorPair(tensor, live.get(tensor.name)) for tensor in stored]
    return check_pairs(pairs, threads=context.store.threads)


class _Elsewhere:
    """Looks for the tensors of missing files in checkpoints that the commit does not hold."""

    def __init__(self, context: Context, tree: Mapping[str, TreeEntry]) -> None:
        self._context = context
        self._tree = tree
        self._layouts: dict[str, FileLayout] | None = None

    def find(self, commit: GitId, check: FileCheck) -> FileCheck:
        """Return the check of a missing file, compared with the files that hold its tensors."""
        if not check.tensors_total:
            return check
        blob = self._tree[check.path].blob
        manifest = self._context.manifests.read(blob)
        version = (check.path, blob, commit)
        for paths in self._candidates(manifest, check.path):
            with ExitStack() as stack:
                live: dict[str, ModelTensor] = {}
                for path in paths:
                    source = stack.enter_context(_open_unchanged(self._context, path))
                    segments = self._find_layouts()[path].segments
                    live |= {tensor.name: tensor for tensor in live_tensors(path, source, segments)}
                checks = _compare_tensors(self._context, version, manifest, live)
                tensors = tuple(checks)
            same = replace(check, status=SAME_TENSORS, found_in=paths)
            if not tensors:
                return same
            if check.status == MISSING and _stem(paths[0]) == _stem(check.path):
                return replace(same, status=DIFFERENT, tensors=tensors)
        return check

    def _candidates(self, manifest: Manifest, missing: str) -> Iterator[tuple[str, ...]]:
        """Yield files that together name all tensors of a missing one, of its own name first."""
        wanted = {view.name: (view.dtype, view.shape) for view, _ in manifest.tensors()}
        shards: dict[str, list[str]] = {}
        candidates: list[tuple[str, ...]] = []
        for path, layout in self._find_layouts().items():
            has = {
                view.name: (view.dtype, view.shape)
                for segment in layout.segments
                for view in segment.tensors
            }
            if wanted.items() <= has.items():
                candidates.append((path,))
            elif has.items() <= wanted.items():
                shards.setdefault(_stem(path), []).append(path)
        for paths in shards.values():
            layouts = (self._find_layouts()[path] for path in paths)
            names = {
                view.name for layout in layouts for seg in layout.segments for view in seg.tensors
            }
            if wanted.keys() <= names:
                candidates.append(tuple(paths))
        yield from sorted(candidates, key=lambda paths: _stem(paths[0]) != _stem(missing))

    def _find_layouts(self) -> dict[str, FileLayout]:
        """Return path → layout of the checkpoints in the worktree that the commit does not hold."""
        if self._layouts is None:
            self._layouts = {}
            worktree = self._context.worktree
            for path in scan_files(worktree, IgnoreRules(worktree)):
                if path in self._tree:
                    continue
                with suppress(ConflictError, OSError):  # it changes, so it is not what we look for
                    look = find_layout(self._context, path)
                    if look is not None and look[0].segments:
                        self._layouts[path] = look[0]
        return self._layouts


def _stem(path: str) -> str:
    """Return a path without its suffix and shard numbers."""
    return SHARD.sub("", path).rpartition(".")[0]
