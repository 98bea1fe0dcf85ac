"""What verify found, as text and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from mvc.cli.output import printable
from mvc.cli.render.text import columns, count_text, number_text, shape_text, short_id

if TYPE_CHECKING:
    from mvc.cli.output import Output
    from mvc.operations.verify import FileCheck, WorktreeCheck
    from mvc.workspace.tensor_compare import TensorCheck

_ROWS_ON_TERMINAL = 20
_COLOURS = {"same": "green", "same-tensors": "green", "not-in-worktree": "dim"}
_MARKS = {"modified": "M", "missing": "D", "extra": "A"}


def verify_fields(check: WorktreeCheck) -> dict[str, object]:
    """Return what ``verify --json`` prints."""
    return {
        "commit": check.commit,
        "same": check.is_same,
        "files": [
            {
                "path": file.path,
                "status": file.status,
                "format": file.format,
                "size_bytes": file.size_bytes,
                "tensors_total": file.tensors_total,
                "found_in": file.found_in,
                "reason": file.reason,
                "tensors": [_tensor_fields(tensor) for tensor in file.tensors],
            }
            for file in check.files
        ],
    }


def _tensor_fields(tensor: TensorCheck) -> dict[str, object]:
    fields: dict[str, object] = {
        "name": tensor.name,
        "status": tensor.status,
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "elements": {"changed": tensor.elements_changed, "total": tensor.elements_total},
        "bytes_changed": tensor.bytes_changed,
        "largest_difference": tensor.largest_difference,
    }
    before = {"old_dtype": tensor.old_dtype, "old_shape": tensor.old_shape}
    return fields | {name: value for name, value in before.items() if value is not None}


def write_verify(out: Output, check: WorktreeCheck, revision: str, *, quiet: bool) -> None:
    """Write a line per file that is not simply the same, its tensors, and the verdict."""
    for file in check.files:
        if file.status == "same" or (quiet and file.status in _COLOURS):
            continue
        word = out.style(f"{_word(file)}:", _COLOURS.get(file.status, "red"))
        out.line(f"{word} {printable(file.path)}{_explain(file)}")
        _write_tensors(out, file.tensors)
    if not quiet:
        out.line(_verdict(out, check, revision))


def _word(file: FileCheck) -> str:
    words = {"same-tensors": "same tensors", "not-in-worktree": "not in the worktree"}
    return words.get(file.status, file.status)


def _explain(file: FileCheck) -> str:
    parts = []
    if file.found_in:
        parts.append(f"in {', '.join(map(printable, file.found_in))}")
    if file.status == "same-tensors":
        parts.append(f"the same {count_text(file.tensors_total, 'tensor')} in another file")
    if file.reason is not None:
        parts.append(printable(file.reason))
    if file.tensors:
        known = sum(tensor.status != "extra" for tensor in file.tensors)
        verb = "differs" if known == 1 else "differ"
        parts.append(f"{known:,} of {count_text(file.tensors_total, 'tensor')} {verb}")
    return f"  ({'; '.join(parts)})" if parts else ""


def _write_tensors(out: Output, tensors: tuple[TensorCheck, ...]) -> None:
    shown = tensors
    if out.width is not None and len(tensors) > _ROWS_ON_TERMINAL:
        shown = tensors[: _ROWS_ON_TERMINAL - 1]
    width = None if out.width is None else out.width - len("  M ") - 2 * len("  ")
    cells = columns([_cells(tensor) for tensor in shown], "<<<", width=width, shrink=0)
    for tensor, row in zip(shown, cells, strict=True):
        out.line(f"  {out.style(_MARKS[tensor.status], 'red')} {'  '.join(row)}".rstrip())
    if len(shown) < len(tensors):
        out.line(out.style(f"  … and {len(tensors) - len(shown):,} more (--json has all)", "dim"))


def _cells(tensor: TensorCheck) -> tuple[str, str, str]:
    shape = shape_text(tensor.dtype, tensor.shape)
    if tensor.old_dtype is not None or tensor.old_shape is not None:
        before = tensor.shape if tensor.old_shape is None else tensor.old_shape
        shape = f"{shape_text(tensor.old_dtype or tensor.dtype, before)} -> {shape}"
    return printable(tensor.name), shape, _difference(tensor)


def _difference(tensor: TensorCheck) -> str:
    if tensor.status != "modified":
        return "only in the file" if tensor.status == "extra" else "missing"
    parts = []
    if tensor.elements_changed is not None:
        parts.append(f"{tensor.elements_changed:,} of {tensor.elements_total:,} elements")
    elif tensor.bytes_changed is not None:
        parts.append(count_text(tensor.bytes_changed, "byte"))
    if tensor.largest_difference is not None:
        parts.append(_largest(tensor.largest_difference))
    return ", ".join(parts)


def _largest(difference: float) -> str:
    if math.isnan(difference):
        return "some NaN on one side only"
    if not difference:
        return "equal as numbers (-0 or another NaN)"
    return f"by up to {number_text(difference)}"


def _verdict(out: Output, check: WorktreeCheck, revision: str) -> str:
    name = (
        revision if check.commit.startswith(revision) else f"{revision} ({short_id(check.commit)})"
    )
    counts = Counter(file.status for file in check.files)
    absent = counts["not-in-worktree"]
    compared = len(check.files) - absent
    rest = f"; {count_text(absent, 'file')} not in the worktree" if absent else ""
    if check.is_same:
        tensors = sum(
            file.tensors_total for file in check.files if file.status != "not-in-worktree"
        )
        what = f"{count_text(compared, 'file')}, {count_text(tensors, 'tensor')}"
        return f"{out.style('the same:', 'green', 'bold')} {what} as in {printable(name)}{rest}"
    if not compared:
        text = f"{printable(name)} has no file that is in the worktree"
        return f"{out.style('nothing to compare:', 'yellow', 'bold')} {text}"
    wrong = compared - counts["same"] - counts["same-tensors"]
    verb = "is" if wrong == 1 else "are"
    text = f"{wrong:,} of {count_text(compared, 'file')} {verb} not as in {printable(name)}{rest}"
    return f"{out.style('not the same:', 'red', 'bold')} {text}"
