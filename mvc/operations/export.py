"""export: tensors of a revision, from any format, into one new safetensors file, streaming."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from mvc.checkpoints.safetensors import DTYPES, METADATA_KEY, encode_header
from mvc.errors import ConflictError, NotFoundError, UnsupportedError, UsageError
from mvc.fs import DurableFile, find_stat
from mvc.progress import announce
from mvc.workspace.manifests import find_manifest
from mvc.workspace.pathspec import select_paths
from mvc.workspace.released import check_chunks, command_text
from mvc.workspace.tensors import StoredTensor, in_order, read_bytes_of, read_parts

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.progress import ByteProgress
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The new file: its ``path``, how many ``tensors`` it holds, its length in ``size_bytes``."""

    path: Path
    tensors: int
    size_bytes: int


def export(
    context: Context,
    revision: str,
    output: Path,
    *,
    path: str | None = None,
    tensors: str | None = None,
    force: bool = False,
    progress: ByteProgress = None,
) -> ExportResult:
    """Write tensors of a revision into one new safetensors file."""
    existing = find_stat(output)
    if existing is not None and existing.is_directory:
        raise UsageError(f"{output} is a folder", hint="name a file in it")
    if existing is not None and not force:
        raise ConflictError(f"{output} already exists", hint="`force` replaces it")
    if not output.parent.is_dir():
        raise UsageError(f"folder {output.parent} does not exist")
    command = command_text("mvc export {} -o", [str(output)])
    chosen = _choose_tensors(context, revision, path, tensors, command)
    header = encode_header(
        (one.view.name, one.view.dtype, one.view.shape, one.size_bytes) for one in chosen
    )
    position = len(header)
    announce(progress, sum(tensor.size_bytes for tensor in chosen))
    with DurableFile(output.parent) as file:
        file.write([header])
        for tensor in chosen:
            _write_tensor(context, file, position, tensor)
            position += tensor.size_bytes
            if progress is not None:
                progress(tensor.size_bytes)
        file.publish(output, expected_bytes=position)
    return ExportResult(output, len(chosen), position)


def _choose_tensors(
    context: Context, revision: str, path: str | None, pattern: str | None, command: str
) -> list[StoredTensor]:
    commit = context.history.resolve(revision)
    tree = context.history.read_tree(commit)
    chosen: dict[str, StoredTensor] = {}
    for source in select_paths([path] if path else [], list(tree)):
        manifest = find_manifest(context, tree[source].blob)
        if manifest is None:
            continue
        for view, stored in manifest.tensors():
            if pattern is None or fnmatch.fnmatchcase(view.name, pattern):
                _choose(chosen, StoredTensor(source, view, stored, manifest.chunk_bytes))
    if not chosen:
        raise NotFoundError(f"no tensor of {revision} fits", hint='"mvc ls" lists them')
    # Released content is reported before the output file is begun.
    for source in dict.fromkeys(tensor.path for tensor in chosen.values()):
        parts = [tensor.stored.chunks for tensor in chosen.values() if tensor.path == source]
        version = (source, tree[source].blob)
        check_chunks(context, version, chain(*parts), commit=commit, command=command)
    return list(chosen.values())


def _choose(chosen: dict[str, StoredTensor], tensor: StoredTensor) -> None:
    name, dtype = tensor.view.name, tensor.view.dtype
    if dtype not in DTYPES:
        raise UnsupportedError(
            f"tensor {name!r} of {tensor.path} is {dtype}, which safetensors cannot hold",
            hint="leave it out with `tensors`",
        )
    if name == METADATA_KEY:
        raise UnsupportedError(
            f"tensor {name!r} of {tensor.path} has the one name that safetensors reserves",
            hint="leave it out with `tensors`",
        )
    if name in chosen:
        raise ConflictError(
            f"{chosen[name].path} and {tensor.path} both hold a tensor {name!r}",
            hint="name one of the files",
        )
    chosen[name] = tensor


def _write_tensor(context: Context, file: DurableFile, position: int, tensor: StoredTensor) -> None:
    if tensor.view.strides is not None:
        flat = in_order(read_bytes_of(context, tensor), tensor.view)
        file.write_at(flat.data, position)
        return
    read_parts(context, tensor, lambda part, offset: file.write_at(part, position + offset))
