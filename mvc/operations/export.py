"""export: a revision's files into a folder, or its model in another format, streaming."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.checkpoints.names import METADATA_NAME, is_checkpoint_name
from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.fs import find_stat, fsync_dir, make_dirs, replace_staged
from mvc.progress import announce
from mvc.workspace.content import stage_file
from mvc.workspace.manifests import read_stored
from mvc.workspace.model_files import (
    DCP_FILE,
    HUB_INDEX,
    SHARD_BYTES,
    check_writable,
    plan_shards,
    write_dcp,
    write_hub,
    write_safetensors,
    write_torch,
)
from mvc.workspace.model_tree import Cleaner, read_model_tree
from mvc.workspace.models import select_tensors
from mvc.workspace.pathspec import select_paths
from mvc.workspace.released import check_content, command_text
from mvc.workspace.worktree import find_obstacle, relative_paths

if TYPE_CHECKING:
    from mvc.workspace.context import Context
    from mvc.workspace.worktree import StrPath

FILES = "files"
FORMATS = ("safetensors", "torch", "dcp", FILES)
TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written to ``path``: how many ``tensors`` and ``files``, ``size_bytes`` in all.

    ``format`` is that of the model, None if files were written as they are; ``left_out`` names what
    it could not hold, which is never a tensor of a checkpoint.
    """

    path: Path
    tensors: int
    size_bytes: int
    files: int = 1
    format: str | None = None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Job:
    """What is exported."""

    context: Context
    revision: str
    paths: list[str]
    tensors: str | None
    command: str


def export(
    context: Context,
    revision: str,
    output: StrPath,
    *,
    path: StrPath | None = None,
    tensors: str | None = None,
    format: str | None = None,  # noqa: A002  the word of the command line
    force: bool = False,
) -> ExportResult:
    """Write the files of a revision into a folder, or its model in another format.

    Args:
        revision: which commit.
        output: the folder, made if missing, or the file: a name that ends like a checkpoint's, or
            any name with ``path`` or ``tensors``. A relative path starts at the current folder.
        path: only this checkpoint, or this folder; defaults to all of the revision's.
        tensors: only these tensors.
        format: ``safetensors``: one file, or files of the Hub in a folder; ``torch``: a file that
            ``torch.load(weights_only=True)`` reads; ``dcp``: a folder for ``dcp.load``; ``files``:
            the files as they are, in a folder. Defaults to what the name of the file says. Shards of a DCP folder become whole tensors; DCP and
            torch also take plain values of states and DCP folders, nested as they were.
        force: replace existing files.

    Raises:
        NotFoundError: no such revision or path, or no tensor matches.
        ConflictError: a file exists or is in the way, or two tensors have the same name.
        UsageError: the output is a folder and a file is wanted, or the other way round; the
            folder of the file does not exist; the folder is in ``.mvc``; a file name of another
            format, or a format that is none.
        UnsupportedError: a dtype or name that the format cannot hold.
        FormatError: the shards of a tensor in a DCP folder leave gaps or overlap.
    """
    output = os.fspath(output)
    paths = [] if path is None else relative_paths(context, path)
    is_folder = output.endswith(os.sep) or os.path.isdir(output) or not is_checkpoint_name(output)
    if format == FILES and tensors is not None:
        raise UsageError("files are written whole", hint="choose a format for some tensors")
    if format == FILES or (format is None and is_folder and path is None and tensors is None):
        return _export_files(context, revision, paths, Path(output), force=force)
    target = _find_target(Path(output), format, is_folder=is_folder)
    command = command_text("mvc export {} -o", [output])
    job = _Job(context, revision, paths, tensors, command)
    write = _export_safetensors if target.kind == "safetensors" else _export_tree
    return write(job, target, force=force)


def _export_files(
    context: Context, revision: str, paths: list[str], folder: Path, *, force: bool
) -> ExportResult:
    """Write files of a revision below a folder, each whole or not at all."""
    commit = context.history.resolve(revision)
    tree = context.history.read_tree(commit)
    if not tree:
        raise NotFoundError(f"{revision} has no files")
    tree = {path: tree[path] for path in select_paths(paths, tree)}
    _check_free(context, folder, tree, force=force)
    versions = [(path, entry.blob) for path, entry in tree.items()]
    command = command_text("mvc export {}", [str(folder)])
    check_content(context, versions, commit=commit, command=command)
    tensors = size_bytes = 0
    for _, blob in versions:
        manifest, file_bytes = read_stored(context, blob)
        size_bytes += file_bytes
        tensors += 0 if manifest is None else manifest.tensors_total
    announce(size_bytes)
    for path, entry in tree.items():
        target = folder / path
        make_dirs(target.parent)
        staged = stage_file(context, path, entry.mode, entry.blob, target.parent)
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


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a model goes, in which format; ``is_folder``: safetensors files of the Hub, or DCP."""

    path: Path
    kind: str
    is_folder: bool

    def check_free(self, context: Context, names: Iterable[str], *, force: bool) -> None:
        """Check that it can be written, given the names in a folder; nothing is there unless ``force``."""
        if self.is_folder:
            _check_free(context, self.path, names, force=force)
            make_dirs(self.path)
            return
        existing = find_stat(self.path)
        if existing is not None and existing.is_directory:
            raise UsageError(f"{self.path} is a folder", hint="name a file in it")
        if existing is not None and not force:
            raise ConflictError(f"{self.path} already exists", hint="`force` replaces it")
        if not self.path.parent.is_dir():
            raise UsageError(f"folder {self.path.parent} does not exist")


def _find_target(output: Path, kind: str | None, *, is_folder: bool) -> _Target:
    suffix = output.suffix.lower() if is_checkpoint_name(output.name) else ""
    if kind is None:
        kind, is_folder = "torch" if suffix in TORCH_SUFFIXES else "safetensors", False
    if kind not in FORMATS:
        raise UsageError(f"unknown format {kind!r}", hint=f"formats are {', '.join(FORMATS)}")
    if kind == "dcp":
        is_folder = True
    fitting = {"safetensors": (".safetensors",), "torch": TORCH_SUFFIXES, "dcp": ()}[kind]
    if suffix and suffix not in fitting:
        what = "folder" if kind == "dcp" else "file"
        name = output.with_suffix(fitting[0] if fitting else "").name
        raise UsageError(
            f"{output} would hold a {kind} {what}, whatever its name says", hint=f"name it {name}"
        )
    if kind == "torch" and (is_folder and (output.is_dir() or not output.name)):
        raise UsageError(f"{output} is a folder", hint="name a file in it")
    return _Target(output, kind, is_folder and kind != "torch")


def _export_safetensors(job: _Job, target: _Target, *, force: bool) -> ExportResult:
    chosen = select_tensors(job.context, job.revision, job.paths, job.tensors, job.command)
    check_writable(chosen, "safetensors")
    shards = plan_shards(chosen, SHARD_BYTES)
    target.check_free(job.context, [*shards, HUB_INDEX] if target.is_folder else (), force=force)
    announce(sum(tensor.size_bytes for tensor in chosen))
    if target.is_folder:
        size_bytes = write_hub(job.context, target.path, shards)
    else:
        size_bytes = write_safetensors(job.context, target.path, chosen)
    files = len(shards) + (len(shards) > 1) if target.is_folder else 1
    return ExportResult(target.path, len(chosen), size_bytes, files, target.kind)


def _export_tree(job: _Job, target: _Target, *, force: bool) -> ExportResult:
    """Write a nested model: a file of torch, or a DCP folder, which takes stored objects as they are."""
    context = job.context
    model = read_model_tree(context, job.revision, job.paths, job.tensors, job.command)
    check_writable(model.tensors, target.kind)
    names = (DCP_FILE, METADATA_NAME)
    target.check_free(context, names, force=force)
    cleaner = Cleaner(context, model)
    if target.kind == "dcp":
        model = cleaner.clean(model.flatten(), keep_stored=True)
    else:
        model = cleaner.clean(model)
    announce(sum(tensor.size_bytes for tensor in model.tensors))
    write = write_dcp if target.kind == "dcp" else write_torch
    size_bytes = write(context, target.path, model)
    files = len(names) if target.is_folder else 1
    left_out = tuple(cleaner.left_out)
    return ExportResult(target.path, len(model.tensors), size_bytes, files, target.kind, left_out)
