"""export: tensors of a revision, from any format, into one new safetensors file, streaming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.checkpoints.safetensors import DTYPES, METADATA_KEY, encode_header
from mvc.errors import ConflictError, UnsupportedError, UsageError
from mvc.fs import DurableFile, find_stat
from mvc.progress import announce
from mvc.workspace.released import command_text
from mvc.workspace.tensors import StoredTensor, in_order, read_bytes_of, read_parts, select_tensors

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
    chosen = select_tensors(context, revision, [path] if path else [], tensors, command)
    for tensor in chosen:
        _check_storable(tensor)
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


def _check_storable(tensor: StoredTensor) -> None:
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


def _write_tensor(context: Context, file: DurableFile, position: int, tensor: StoredTensor) -> None:
    if tensor.view.strides is not None:
        flat = in_order(read_bytes_of(context, tensor), tensor.view)
        file.write_at(flat.data, position)
        return
    read_parts(context, tensor, lambda part, offset: file.write_at(part, position + offset))
