"""Files and their tensors, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.text import columns, count_text, shape_text, size_text
from mvc.tensor_names import in_layer_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations.ls import FileInfo, TensorInfo

TENSOR_FIELDS = "dtype shape size_bytes chunks id"
_SHORT_TENSOR_ID = 12


def file_fields(info: FileInfo) -> dict[str, object]:
    """Return one file for ``--json``."""
    tensors = [pick(tensor, f"name {TENSOR_FIELDS}") for tensor in in_layer_order(info.tensors)]
    head = {"path": info.path, "mode": f"{info.mode:06o}"}
    return {**head, **pick(info, "blob format size_bytes"), "tensors": tensors}


def write_listing(out: Output, files: Sequence[FileInfo], *, long: bool) -> None:
    """Write files, each followed by its tensors."""
    for info in files:
        facts = [] if info.format is None else [info.format]
        if info.tensors:
            facts.append(count_text(len(info.tensors), "tensor"))
        facts.append(size_text(info.size_bytes))
        path = out.style(printable(info.path), "bold")
        out.line(f"{path}  {out.style(', '.join(facts), 'dim')}")
        out.lines(_tensor_lines(out, info.tensors, long=long))


def _tensor_lines(out: Output, tensors: Sequence[TensorInfo], *, long: bool) -> list[str]:
    rows = [
        (
            printable(tensor.name),
            shape_text(tensor.dtype, tensor.shape),
            size_text(tensor.size_bytes),
            *((count_text(tensor.chunks, "chunk"), tensor.id[:_SHORT_TENSOR_ID]) if long else ()),
        )
        for tensor in in_layer_order(tensors)
    ]
    aligns = "<<>><" if long else "<<>"
    width, spare = None if out.width is None else out.width - 2 * len(aligns), 3 if long else None
    shown = columns(rows, aligns, width=width, spare=spare)
    return [f"  {'  '.join(row)}".rstrip() for row in shown]
