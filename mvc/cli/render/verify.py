"""What verify found, as text and as fields for ``--json``."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.files import change_rows, shape_change
from mvc.cli.render.text import (
    count_text,
    number_text,
    short_id,
    some_text,
)
from mvc.tensor_names import in_layer_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.comparison.checks import TensorCheck
    from mvc.operations.verify import FileCheck, WorktreeCheck

ROWS_ON_TERMINAL = 20
_FILES_NAMED = 3
_COLOURS = {"same": "green", "same-tensors": "green", "not-in-worktree": "dim"}
_WORDS = {"same-tensors": "same tensors", "not-in-worktree": "not in the worktree"}
_MARKS = {"modified": "M", "missing": "D", "extra": "A", "renamed": "R"}


def check_fields(check: WorktreeCheck) -> dict[str, object]:
    """Return the comparison of the worktree with a commit."""
    facts = "path status format size_bytes tensors_total found_in reason"
    files = [
        {
            **pick(file, facts),
            "tensors": [_tensor_fields(tensor) for tensor in in_layer_order(file.tensors)],
        }
        for file in check.files
    ]
    return {"commit": check.commit, "same": check.is_same, "files": files}


def _tensor_fields(tensor: TensorCheck) -> dict[str, object]:
    before = pick(tensor, "old_dtype old_shape").items()
    return {
        **pick(tensor, "name status dtype shape"),
        "elements": {"changed": tensor.elements_changed, "total": tensor.elements_total},
        **pick(tensor, "bytes_changed largest_difference"),
        **{name: value for name, value in before if value is not None},
    }


def write_check(out: Output, check: WorktreeCheck, revision: str, *, quiet: bool) -> None:
    """Write a line per file that differs, its tensors, and the verdict."""
    for file in check.files:
        if file.status == "same" or (quiet and file.status in _COLOURS):
            continue
        word = _WORDS.get(file.status, file.status)
        word = out.style(f"{word}:", _COLOURS.get(file.status, "red"))
        out.line(f"{word} {printable(file.path)}{_explain(file)}")
        write_tensor_checks(out, file.tensors)
    if not quiet:
        out.line(_verdict(out, check, revision))


def _explain(file: FileCheck) -> str:
    parts = []
    if file.found_in:
        parts.append(f"in {some_text(file.found_in, _FILES_NAMED)}")
    if file.status == "same-tensors":
        where = "other files" if file.found_in[1:] else "another file"
        parts.append(f"the same {count_text(file.tensors_total, 'tensor')} in {where}")
    if file.reason is not None:
        parts.append(printable(file.reason))
    if file.tensors:
        known = sum(tensor.status != "extra" for tensor in file.tensors)
        verb = "differs" if known == 1 else "differ"
        parts.append(f"{known:,} of {count_text(file.tensors_total, 'tensor')} {verb}")
    return f"  ({'; '.join(parts)})" if parts else ""


def write_tensor_checks(out: Output, tensors: Sequence[TensorCheck]) -> None:
    """Write a line per tensor that differs, as many as fit on a screen."""
    shown = tensors = in_layer_order(tensors)
    if out.width is not None and len(tensors) > ROWS_ON_TERMINAL:
        shown = tensors[: ROWS_ON_TERMINAL - 1]
    changes = [
        (_MARKS[one.status], "red", (printable(one.name), shape_change(one), _difference(one)))
        for one in shown
    ]
    out.lines(change_rows(out, changes, "<<<", spare=1))
    if len(shown) < len(tensors):
        out.line(out.style(f"  … and {len(tensors) - len(shown):,} more (--json has all)", "dim"))


def _difference(tensor: TensorCheck) -> str:
    if tensor.status != "modified":
        only = "only in the file" if not tensor.path else f"only in {printable(tensor.path)}"
        return {
            "extra": only,
            "missing": "missing",
            "renamed": f"was {printable(tensor.old_name or '')}",
        }[tensor.status]
    parts = []
    if tensor.elements_changed is not None:
        found = tensor.deviation  # without a tolerance, all that changed are beyond it
        wrong = tensor.elements_changed if found is None else found.beyond
        parts.append(f"{wrong:,} of {tensor.elements_total:,} elements")
    elif tensor.bytes_changed is not None:
        parts.append(count_text(tensor.bytes_changed, "byte"))
    if tensor.largest_difference is not None:
        largest = tensor.largest_difference
        if math.isnan(largest):
            parts.append("NaN on one side only")
        elif not largest:
            parts.append("equal as numbers (-0 or another NaN)")
        else:
            parts.append(f"by up to {number_text(largest)}")
    return ", ".join(parts)


def _verdict(out: Output, check: WorktreeCheck, revision: str) -> str:
    name = revision
    if not check.commit.startswith(revision):
        name += f" ({short_id(check.commit)})"
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
        text = f"no file of {printable(name)} is in the worktree"
        return f"{out.style('nothing to compare:', 'yellow', 'bold')} {text}"
    wrong = compared - counts["same"] - counts["same-tensors"]
    verb = "differs" if wrong == 1 else "differ"
    text = f"{wrong:,} of {count_text(compared, 'file')} {verb} from {printable(name)}{rest}"
    return f"{out.style('not the same:', 'red', 'bold')} {text}"
