"""What differs in one file between two versions: tensors by identity, or lines of a text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from stat import S_ISREG
from typing import TYPE_CHECKING

from mvc.errors import FormatError, NotFoundError, UnsupportedError
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from mvc.formats.manifest import Manifest
    from mvc.ids import GitId
    from mvc.operations.pipeline_diff import NodeDiff
    from mvc.operations.tensor_diff import TensorDiff
    from mvc.shards.shard_map import MapChanges, ShardMap
    from mvc.workspace.context import Context

_STATE = "state.json"  # of a training run


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file that differs.

    Attributes:
        path: its path (the new one if it was renamed).
        status: ``added``, ``removed``, ``modified`` or ``renamed``.
        old_path: path before it was renamed.
        format: checkpoint format, or None for plain files and links.
        tensors: tensors that differ, in file order, without those that only moved to another file.
        tensors_total: tensors of the file on the new side (old if removed).
        other_changed: whether bytes outside tensors (header, metadata) or a plain file differ.
        mode_changed: whether the executable bit or the kind of file differs.
        size_bytes: length of the new file, or of the old one if removed.
        lines: changed lines of a modified plain text, in hunks as of ``diff -u``.
        moved_from: (path, how many) of the files that held equal tensors before.
        moved_to: (path, how many) of the files that hold equal tensors now.
        shards: of a shard map, which shards differ.
        nodes: of the state of a run: the nodes of its data pipeline that differ. What the file says of
            them is not among its lines.
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
    lines: tuple[str, ...] = ()
    moved_from: tuple[tuple[str, int], ...] = ()
    moved_to: tuple[tuple[str, int], ...] = ()
    shards: MapChanges | None = None
    nodes: tuple[NodeDiff, ...] = ()


@dataclass(frozen=True, slots=True)
class FileSide:
    """One version of a file; a changed file of the worktree has no stored blob, but the rest."""

    mode: int
    blob: GitId
    manifest: Manifest | None = field(default=None, compare=False)
    size_bytes: int | None = field(default=None, compare=False)


def compare_file(
    context: Context,
    old_path: str,
    path: str,
    old: FileSide | None,
    new: FileSide | None,
    *,
    with_tensors: bool,
) -> FileDiff:
    """Compare one file with its version at ``old_path``; a side is None where there is no file."""
    file = FileDiff(
        path,
        _file_status(old_path, path, old, new),
        old_path if old_path != path else None,
        mode_changed=old is not None and new is not None and old.mode != new.mode,
    )
    if not with_tensors:
        return file
    from mvc.operations.tensor_diff import compare_tensors  # noqa: PLC0415  names need none
    from mvc.shards.shard_map import MAP_SUFFIX  # noqa: PLC0415  as above

    same_content = old is not None and new is not None and old.blob == new.blob
    old_manifest, new_manifest = find_manifest_of(context, old), find_manifest_of(context, new)
    shown = new_manifest or old_manifest
    if path.endswith(MAP_SUFFIX) and (shown is None or not shown.tensors_total):
        shards = _compare_maps(context, old_path, path, old, new)
        size_bytes = _plain_size(context, new or old) if shown is None else shown.size_bytes
        if shards is not None:
            return replace(
                file, other_changed=not same_content, size_bytes=size_bytes, shards=shards
            )
    if shown is None:
        size_bytes = _plain_size(context, new or old)
        file = replace(file, other_changed=not same_content, size_bytes=size_bytes)
        if same_content:
            return file
        if path == _STATE:
            lines, nodes = _compare_states(context, path, old, new)
            return replace(file, lines=lines, nodes=nodes)
        return replace(file, lines=_changed_lines(context, path, old, new))
    tensors = () if same_content else compare_tensors(old_manifest, new_manifest)
    gaps_changed = (old_manifest and old_manifest.gaps) != (new_manifest and new_manifest.gaps)
    return replace(
        file,
        format=shown.format,
        tensors=tensors,
        tensors_total=shown.tensors_total,
        other_changed=not same_content and (gaps_changed or not tensors),
        size_bytes=shown.size_bytes,
    )


def _compare_maps(
    context: Context, old_path: str, path: str, old: FileSide | None, new: FileSide | None
) -> MapChanges | None:
    """Return what differs between two shard maps, or None if a side is none."""
    from mvc.shards.shard_map import compare_maps  # noqa: PLC0415  names need none

    try:
        return compare_maps(_read_map(context, old_path, old), _read_map(context, path, new))
    except (FormatError, NotFoundError):
        return None


def _read_map(context: Context, path: str, side: FileSide | None) -> ShardMap | None:
    from mvc.shards.stored import read_map_file, read_stored_map  # noqa: PLC0415  as above

    if side is None:
        return None
    if side.size_bytes is not None:
        return read_map_file(context, path)
    return read_stored_map(context, side.blob, path)


def _changed_lines(
    context: Context, path: str, old: FileSide | None, new: FileSide | None
) -> tuple[str, ...]:
    """Return how two versions of a plain file differ, if both are texts of bearable length."""
    from mvc.operations.text_diff import changed_lines  # noqa: PLC0415  few comparisons need it

    texts = [_plain_text(context, path, side) for side in (old, new)]
    if None in texts:
        return ()
    return changed_lines(*(text or b"" for text in texts))


def _compare_states(
    context: Context, path: str, old: FileSide | None, new: FileSide | None
) -> tuple[tuple[str, ...], tuple[NodeDiff, ...]]:
    """Return how two states of a run differ: lines, and nodes of their data pipelines."""
    from mvc.operations.pipeline_diff import compare_pipelines, find_pipeline  # noqa: PLC0415
    from mvc.operations.text_diff import changed_lines  # noqa: PLC0415  as above
    from mvc.states.document import MAX_TEXT_BYTES  # noqa: PLC0415

    texts = [_plain_text(context, path, side, MAX_TEXT_BYTES) or b"" for side in (old, new)]
    (before, old_rest), (after, new_rest) = map(find_pipeline, texts)
    lines = changed_lines(old_rest, new_rest) if old_rest and new_rest else ()
    return lines, compare_pipelines(before, after)


def _plain_text(
    context: Context, path: str, side: FileSide | None, most_bytes: int | None = None
) -> bytes | None:
    if side is None or not S_ISREG(side.mode):
        return None
    from mvc.operations.text_diff import MAX_TEXT_BYTES  # noqa: PLC0415  as above
    from mvc.sources import FileSource, read_bytes  # noqa: PLC0415

    most = MAX_TEXT_BYTES if most_bytes is None else most_bytes
    if side.size_bytes is None:
        size_bytes = context.history.find_blob_size(side.blob)
        small = size_bytes is not None and size_bytes <= most
        return context.history.read_blob(side.blob) if small else None
    if side.size_bytes > most:
        return None
    try:
        with FileSource.open(context.worktree / path) as source:
            return read_bytes(source, 0, min(source.size_bytes, most))
    except (FileNotFoundError, NotADirectoryError, UnsupportedError):
        return None  # it was there when it was hashed


def _file_status(old_path: str, path: str, old: FileSide | None, new: FileSide | None) -> str:
    if old is None:
        return "added"
    if new is None:
        return "removed"
    return "renamed" if old_path != path else "modified"


def find_manifest_of(context: Context, side: FileSide | None) -> Manifest | None:
    """Return how one side's file is stored in chunks, or None if it is not."""
    if side is None:
        return None
    if side.manifest is not None:
        return side.manifest
    return None if side.size_bytes is not None else find_manifest(context, side.blob)


def _plain_size(context: Context, side: FileSide | None) -> int:
    if side is None or side.size_bytes is not None:
        return 0 if side is None else side.size_bytes or 0
    return context.history.find_blob_size(side.blob) or 0
