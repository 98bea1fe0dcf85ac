"""Tensors as rows: those of files, and those that changed; files as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.text import columns, count_text, shape_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.operations.diff import TensorDiff
    from mvc.operations.ls import FileInfo, TensorInfo
    from mvc.workspace.tensor_compare import TensorCheck


TENSOR_FIELDS = "dtype shape size_bytes chunks id"
_SHORT_TENSOR_ID = 12


def file_fields(info: FileInfo) -> dict[str, object]:
    """Return one file for ``--json``."""
    tensors = [pick(tensor, f"name {TENSOR_FIELDS}") for tensor in info.tensors]
    mode = f"{info.mode:06o}"
    return {
        "path": info.path,
        "mode": mode,
        **pick(info, "blob format size_bytes"),
        "tensors": tensors,
    }


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
        for tensor in tensors
    ]
    aligns = "<<>><" if long else "<<>"
    width = None if out.width is None else out.width - 2 * len(aligns)
    return [f"  {'  '.join(row)}".rstrip() for row in columns(rows, aligns, width=width)]


def change_rows(
    out: Output, changes: Sequence[tuple[str, str, Sequence[str]]], aligns: str
) -> Iterator[str]:
    """Yield one line per (letter, colour, cells), aligned and cut to the terminal."""
    width = None if out.width is None else out.width - len("  M ") - (len(aligns) - 1) * len("  ")
    rows = columns([cells for _, _, cells in changes], aligns, width=width)
    for (letter, colour, _), row in zip(changes, rows, strict=True):
        yield f"  {out.style(letter, colour)} {'  '.join(row)}".rstrip()


def shape_change(one: TensorDiff | TensorCheck) -> str:
    """Return dtype and shape, and what they were before if that differs."""
    shape = shape_text(one.dtype, one.shape)
    if one.old_dtype is None and one.old_shape is None:
        return shape
    before = one.shape if one.old_shape is None else one.old_shape
    return f"{shape_text(one.old_dtype or one.dtype, before)} -> {shape}"
