"""What verify found, of the worktree or of two models, as text and as fields for ``--json``."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.files import change_rows, shape_change
from mvc.cli.render.text import (
    count_text,
    number_text,
    ratio_text,
    short_id,
    some_text,
    table_lines,
)
from mvc.comparison.pairs import unravel
from mvc.tensor_names import in_layer_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.comparison.checks import TensorCheck
    from mvc.numbers.deviation import FirstDifference
    from mvc.operations.verify import FileCheck, WorktreeCheck
    from mvc.operations.verify_models import ModelCheck


_ROWS_ON_TERMINAL = 20
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
        _write_tensor_checks(out, file.tensors)
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


def _write_tensor_checks(out: Output, tensors: Sequence[TensorCheck]) -> None:
    tensors = in_layer_order(tensors)
    shown = tensors[: _most_rows(out, len(tensors))]
    changes = [
        (_MARKS[one.status], "red", (printable(one.name), shape_change(one), _difference(one)))
        for one in shown
    ]
    out.lines(change_rows(out, changes, "<<<", spare=1))
    _write_more(out, len(tensors) - len(shown))


def _most_rows(out: Output, count: int) -> int:
    fits = out.width is None or count <= _ROWS_ON_TERMINAL
    return count if fits else _ROWS_ON_TERMINAL - 1


def _write_more(out: Output, count: int) -> None:
    if count:
        out.line(out.style(f"  … and {count:,} more (--json has all)", "dim"))


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


def model_fields(check: ModelCheck) -> dict[str, object]:
    """Return the first layer of a comparison of two models."""
    worst = _find_worst(check)
    return {
        "passed": check.passed,
        **pick(check, "old new old_commit new_commit"),
        "atol": None if check.tolerance is None else check.tolerance.absolute,
        "rtol": None if check.tolerance is None else check.tolerance.relative,
        "tensors_total": check.tensors_total,
        "tensors_same": check.tensors_total - len(check.tensors),
        "tensors_failed": len(check.failed),
        "size_bytes": check.size_bytes,
        "worst": None if worst is None else worst.name,
        "tensors": [_model_tensor_fields(tensor) for tensor in in_layer_order(check.tensors)],
    }


def _model_tensor_fields(tensor: TensorCheck) -> dict[str, object]:
    before = pick(tensor, "old_name old_dtype old_shape").items()
    found, first = tensor.deviation, tensor.first
    return {
        **pick(tensor, "path name status passed=is_within dtype shape"),
        **{name: value for name, value in before if value is not None},
        "elements": {
            "total": tensor.elements_total,
            "changed": tensor.elements_changed,
            "beyond": None if found is None else found.beyond,
        },
        "bytes_changed": tensor.bytes_changed,
        "first": None if first is None else _first_fields(first, tensor),
        "largest": None if tensor.largest_difference is None else _largest_fields(tensor),
    }


def _first_fields(first: FirstDifference, tensor: TensorCheck) -> dict[str, object]:
    return {
        "index": unravel(first.index, tensor.shape),
        "old": _json_number(first.old),
        "new": _json_number(first.new),
        "ulps": first.ulps,
    }


def _largest_fields(tensor: TensorCheck) -> dict[str, object]:
    found = tensor.deviation
    assert found is not None
    index = found.largest_index
    return {
        "absolute": found.largest,
        "relative": found.relative,
        "index": None if index is None else unravel(index, tensor.shape),
    }


def _json_number(value: complex | None) -> object:
    return str(value) if isinstance(value, complex) else value


def _find_worst(check: ModelCheck) -> TensorCheck | None:
    """Return the tensor with the largest deviation; NaN, which is on one side only, before all."""
    measured = [tensor for tensor in check.tensors if tensor.largest_difference is not None]

    def size_of(one: TensorCheck) -> float:
        largest = one.largest_difference
        return math.inf if largest is None or math.isnan(largest) else largest

    return max(measured, key=size_of, default=None)


def write_models(out: Output, found: Mapping[str, Any], check: ModelCheck | None) -> None:
    """Write what a comparison of two models found, a paragraph per layer."""
    if check is not None:
        _write_unit(out, check)
    if found["module"] is not None:
        _write_modules(out, "module", found["module"], found["module"]["modules"])
    for setting in found["settings"]:
        worst_first = sorted(setting["modules"], key=_distance, reverse=True)
        name = f"{setting['setting']} {setting['old']} and {setting['new']}"
        _write_modules(out, name, setting, worst_first, is_worst_first=True)
    if found["system"] is not None:
        _write_system(out, found["system"])


def _head(out: Output, layer: str, passed: bool | None, text: str) -> None:
    words = {True: ("passed", "green"), False: ("failed", "red"), None: ("not judged", "yellow")}
    word, colour = words[passed]
    out.line(f"{layer} {out.style(f'{word}:', colour, 'bold')} {text}")


def _write_unit(out: Output, check: ModelCheck) -> None:
    old, new = printable(check.old), printable(check.new)
    same, total = check.tensors_total - len(check.tensors), check.tensors_total
    wanted = "the same to the bit"
    if check.tolerance is not None:
        relative = check.tolerance.relative
        wanted = f"within {number_text(check.tolerance.absolute)}"
        wanted += f" + {number_text(relative)} of the old" if relative else ""
    if check.passed:
        text = f"{count_text(total, 'tensor')} of {new} {wanted}, compared with {old}"
        worst = _find_worst(check)
        if worst is not None:
            text += f"; {same:,} to the bit, the others by up to {_relative(worst)} in {printable(worst.name)}"
    else:
        verb = "is" if len(check.failed) == 1 else "are"
        text = (
            f"{len(check.failed):,} of {count_text(total, 'tensor')} of {new} {verb} not {wanted}, "
            f"compared with {old}"
        )
    _head(out, "unit", check.passed, text)
    if check.failed:
        _write_tensor_checks(out, check.failed)
    first = next((one for one in in_layer_order(check.failed) if one.first is not None), None)
    if first is not None:
        out.line(f"  first difference: {_describe_first(first)}")


def _describe_first(tensor: TensorCheck) -> str:
    first = tensor.first
    assert first is not None
    place = f"{printable(tensor.name)}{list(unravel(first.index, tensor.shape))}"
    if first.old is None or first.new is None:
        return place
    ulps = "" if first.ulps is None else f", {count_text(first.ulps, 'ULP')}"
    return f"{place} was {first.old!r}, is {first.new!r}{ulps}"


def _relative(tensor: TensorCheck) -> str:
    largest = tensor.largest_difference
    assert largest is not None
    relative = None if tensor.deviation is None else tensor.deviation.relative
    share = f" ({number_text(relative)} of the old value)" if relative else ""
    return number_text(largest) + share


def _distance(module: Mapping[str, Any]) -> float:
    distance = module["relative_l2"]
    return math.inf if math.isnan(distance) else float(distance)


def _write_modules(
    out: Output,
    layer: str,
    found: Mapping[str, Any],
    modules: Sequence[Mapping[str, Any]],
    *,
    is_worst_first: bool = False,
) -> None:
    """Write the verdict on modules, and those that do not pass, in the order given."""
    _head(out, layer, found["passed"], modules_text(found, is_worst_first=is_worst_first))
    failed = [module for module in modules if not module["passed"]]
    shown = failed[: _most_rows(out, len(failed))]
    rows = [("", "cosine", "relative L2", "largest |Δ|"), *map(_module_row, shown)]
    width = None if out.width is None else out.width - 2 * len(rows[0])
    if shown:
        out.lines(table_lines(out, rows, "<>>>", indent="  ", width=width))
    _write_more(out, len(failed) - len(shown))


def modules_text(found: Mapping[str, Any], *, is_worst_first: bool) -> str:
    """Return what the outputs of modules had to be, and how many are not."""
    modules: Sequence[Mapping[str, Any]] = found["modules"]
    limits = [
        text.format(number_text(found[name]))
        for name, text in (("cosine", "cosine at least {}"), ("bound", "relative L2 within {}"))
        if found[name] is not None
    ]
    failed = [module for module in modules if not module["passed"]]
    worst = max(failed or modules, key=_distance, default=None)
    samples = count_text(found["samples"], "sample")
    text = f"{' and '.join(limits)} for {samples}; "
    if found["parted"] is not None:
        names = (repr(printable(name)) if name else "the end" for name in found["parted"])
        text += "after the same modules, one model runs {} and the other {}".format(*names)
    elif failed:
        verb = "is" if len(failed) == 1 else "are"
        text += f"{len(failed):,} of {count_text(len(modules), 'module')} {verb} not, "
        first = next((one for one in failed if one["name"] == found.get("first")), failed[0])
        text += f"worst {_name(worst)}" if is_worst_first and worst else f"first {_name(first)}"
    elif worst is not None:
        figures = f"{number_text(worst['relative_l2'])}, cosine {_cosine(worst['cosine'])}"
        note = (
            f"worst {_name(worst)}: relative L2 {figures}"
            if worst["relative_l2"]
            else "none differs"
        )
        text += f"all {count_text(len(modules), 'module')} are, {note}"
    return text


def _name(module: Mapping[str, Any]) -> str:
    return f"{printable(module['name']) or 'the whole model'} ({printable(module['kind'])})"


def _cosine(value: float) -> str:
    return f"{value:.8g}"


def _module_row(module: Mapping[str, Any]) -> tuple[str, ...]:
    if module["reason"] is not None:
        return _name(module), printable(module["reason"]), "", ""
    figures = (module["relative_l2"], module["largest_difference"])
    return _name(module), _cosine(module["cosine"]), *map(number_text, figures)


def _write_system(out: Output, found: Mapping[str, Any]) -> None:
    _head(out, "system", found["passed"], system_text(found))
    rows = [
        (test["name"], number_text(test["statistic"]), f"p {number_text(test['p_adjusted'])}")
        for test in found["tests"]
        if found["judged"]
    ]
    out.lines(table_lines(out, rows, "<>>", indent="  "))
    for line in _system_lines(found):
        out.line(f"  {line}")


def system_text(found: Mapping[str, Any]) -> str:
    """Return what tests of the outputs say."""
    failed = [test for test in found["tests"] if not test["passed"]]
    samples, tests = count_text(found["samples"], "sample"), count_text(len(found["tests"]), "test")
    text = f"{samples}, significance {number_text(found['significance'])} for {tests} together"
    if found["passed"] is None:
        text = f"{samples} are too few for any test to fail: {found['least_samples']} are needed"
    elif failed:
        text += f"; failed: {', '.join(test['name'] for test in failed)}"
    return text


def _system_lines(found: Mapping[str, Any]) -> list[str]:
    lines = []
    agreement, loss = found["agreement"], found["loss"]
    if agreement is not None:
        share, low, high = (ratio_text(agreement[name]) for name in ("share", "low", "high"))
        level = ratio_text(1 - found["significance"])
        lines.append(f"the top prediction is the same in {share} ({low} to {high} at {level})")
    if found["divergence"] is not None:
        lines.append(f"predictions differ by {number_text(found['divergence'])} bits on average")
    if loss is not None:
        name = loss["kind"].replace("-", " ")
        lines.append(f"{name} {number_text(loss['old'])} -> {number_text(loss['new'])}")
    return lines
