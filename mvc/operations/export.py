"""export: a revision's files into a folder, or its tensors into one new safetensors file, streaming."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.checkpoints.names import is_checkpoint_name
from mvc.checkpoints.safetensors import DTYPES, METADATA_KEY, encode_header
from mvc.chunkstore.parallel import for_each
from mvc.errors import ConflictError, NotFoundError, UnsupportedError, UsageError
from mvc.fs import DurableFile, find_stat, fsync_dir, make_dirs, replace_staged
from mvc.progress import announce
from mvc.workspace.content import stage_file
from mvc.workspace.manifests import read_stored
from mvc.workspace.released import check_content, command_text
from mvc.workspace.tensors import ModelTensor, select_tensors
from mvc.workspace.worktree import find_obstacle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mvc.progress import ByteProgress
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written to ``path``: how many ``tensors`` and ``files``, ``size_bytes`` in all."""

    path: Path
    tensors: int
    size_bytes: int
    files: int = 1


def export(
    context: Context,
    revision: str,
    output: str,
    *,
    path: str | None = None,
    tensors: str | None = None,
    force: bool = False,
    progress: ByteProgress = None,
) -> ExportResult:
    """Write tensors of a revision into one new file, or all of its files into a folder."""
    is_folder = output.endswith(os.sep) or os.path.isdir(output) or not is_checkpoint_name(output)
    if is_folder and path is None and tensors is None:
        return _export_files(context, revision, Path(output), force=force, progress=progress)
    return _export_tensors(
        context, revision, Path(output), path, tensors, force=force, progress=progress
    )


def _export_files(
    context: Context, revision: str, folder: Path, *, force: bool, progress: ByteProgress
) -> ExportResult:
    """Write every file of a revision below a folder, each whole or not at all."""
    commit = context.history.resolve(revision)
    tree = context.history.read_tree(commit)
    if not tree:
        raise NotFoundError(f"{revision} has no files")
    _check_free(context, folder, tree, force=force)
    versions = [(path, entry.blob) for path, entry in tree.items()]
    command = command_text("mvc export {}", [str(folder)])
    check_content(context, versions, commit=commit, command=command)
    tensors = size_bytes = 0
    for _, blob in versions:
        manifest, file_bytes = read_stored(context, blob)
        size_bytes += file_bytes
        tensors += 0 if manifest is None else manifest.tensors_total
    announce(progress, size_bytes)
    for path, entry in tree.items():
        target = folder / path
        make_dirs(target.parent)
        staged = stage_file(context, path, entry.mode, entry.blob, target.parent, progress)
        replace_staged(staged, target)
    for place in {(folder / path).parent for path in tree}:
        fsync_dir(place)
    return ExportResult(folder, tensors, size_bytes, len(tree))


def _check_free(context: Context, folder: Path, paths: Iterable[str], *, force: bool) -> None:
    """Check that files can be written below a folder, and that none is there unless ``force``."""
    if folder.resolve().is_relative_to(context.git_dir):
        raise UsageError(f"{folder} is inside {context.git_dir}, the repository itself")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    for path in paths:
        obstacle = find_obstacle(folder, path)
        if obstacle is not None:  # never through a link, wherever it leads
            raise ConflictError(f"{folder / obstacle} is in the way: it is not a folder")
        there = find_stat(folder / path)
        if there is not None and there.is_directory:
            raise ConflictError(f"{folder / path} is in the way: it is a folder")
        if there is not None and not force:
            raise ConflictError(f"{folder / path} already exists", hint="`force` replaces it")


def _export_tensors(
    context: Context,
    revision: str,
    output: Path,
    path: str | None,
    tensors: str | None,
    *,
    force: bool,
    progress: ByteProgress,
) -> ExportResult:
    existing = find_stat(output)
    if existing is not None and existing.is_directory:
        raise UsageError(f"{output} is a folder", hint="name a file in it")
    if is_checkpoint_name(output.name) and output.suffix.lower() != ".safetensors":
        raise UsageError(
            f"{output} would hold a safetensors file, whatever its name says",
            hint=f"name it {output.with_suffix('.safetensors').name}",
        )
    if existing is not None and not force:
        raise ConflictError(f"{output} already exists", hint="`force` replaces it")
    if not output.parent.is_dir():
        raise UsageError(f"folder {output.parent} does not exist")
    command = command_text("mvc export {} -o", [str(output)])
    chosen = select_tensors(context, revision, [path] if path else [], tensors, command)
    for tensor in chosen:
        _check_storable(tensor)
    header = encode_header(
        (one.name, one.view.dtype, one.view.shape, one.size_bytes) for one in chosen
    )
    position = len(header)
    announce(progress, sum(tensor.size_bytes for tensor in chosen))
    with DurableFile(output.parent) as file:
        file.write([header])
        for tensor in chosen:
            _write_tensor(context, file, position, tensor, progress)
            position += tensor.size_bytes
        file.publish(output, expected_bytes=position)
    return ExportResult(output, len(chosen), position)


def _check_storable(tensor: ModelTensor) -> None:
    """Check that a safetensors file can hold a tensor."""
    name, dtype = tensor.view.name, tensor.view.dtype
    if dtype in DTYPES and name != METADATA_KEY:
        return
    what = "the one name that safetensors reserves"
    raise UnsupportedError(
        f"tensor {name!r} of {tensor.path} has {what}"
        if name == METADATA_KEY
        else f"tensor {name!r} of {tensor.path} is {dtype}, which safetensors cannot hold",
        hint="leave it out with `tensors`",
    )


def _write_tensor(
    context: Context,
    file: DurableFile,
    position: int,
    tensor: ModelTensor,
    progress: ByteProgress,
) -> None:
    read = tensor.open()

    def copy(offset: int, _: None) -> int:
        size_bytes = min(tensor.chunk_bytes, tensor.size_bytes - offset)
        file.write_at(read(offset, size_bytes).data, position + offset)
        return size_bytes

    offsets = range(0, tensor.size_bytes, tensor.chunk_bytes)
    for_each(offsets, lambda: None, copy, threads=context.store.threads, progress=progress)
