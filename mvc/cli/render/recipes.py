"""Previews of merges, what recipes made, and merges made again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable, warn
from mvc.cli.render.merges import WORDS, conflict_fields, write_conflicts
from mvc.cli.render.text import columns, count_text, short_id, size_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc.numbers.interference import Interference
    from mvc.operations.merge_recipe import RecipeResult
    from mvc.operations.preview_merge import MergePreview
    from mvc.operations.replay_merge import MergeReplay

_SHOWN = 5
_HEAD = ["", "elements", "changed", "by several", "opposed", "cosine"]


def preview_fields(preview: MergePreview) -> dict[str, object]:
    """Return a preview for ``--json``."""
    total = preview.total
    return {
        **pick(preview, "kind sides base files outcomes notes"),
        "conflicts": conflict_fields(preview.conflicts),
        "total": None if total is None else _fields(total),
        "layers": [{"name": name, **_fields(one)} for name, one in preview.by_layer().items()],
        "tensors": [
            {"path": one.path or None, "name": one.name, **_fields(one.found)}
            for one in preview.tensors
        ],
    }


def _fields(found: Interference) -> dict[str, object]:
    return pick(found, "elements changed shared opposed share_shared share_opposed cosine")


def write_preview(out: Output, preview: MergePreview) -> None:
    """Write what a merge would do: counts, conflicts, and interference by layer."""
    for note in preview.notes:
        warn(note)
    if preview.kind == "up-to-date":
        out.line("Already up to date.")
        return
    if preview.kind == "fast-forward":
        out.line("Fast-forward: nothing has to be merged")
    _write_files(out, preview.files)
    words = {**WORDS, "kept": "unchanged"}
    counted = [
        f"{count:,} {words.get(one, one)}" for one, count in preview.outcomes.items() if count
    ]
    if counted or not preview.files:
        out.line(f"Tensors: {', '.join(counted) or 'none to merge'}")
    write_conflicts(out, preview.conflicts)
    total = preview.total
    if total is None:
        where = "" if preview.base else ": there is no base to compare with"
        out.line(f"No tensor was changed on more than one side{where}")
        return
    sides = ", ".join(map(printable, preview.sides))
    out.line(f"Interference of {sides} over {printable(preview.base or '')}:")
    rows = [_HEAD, *(_row(*one) for one in [*preview.by_layer().items(), ("in all", total)])]
    for line in columns(rows, "<>>>>>", width=None if out.width is None else out.width - 10):
        out.line("  ".join(line).rstrip())
    out.line("Nothing was written")


def _write_files(out: Output, files: Mapping[str, str]) -> None:
    """Write how many files would come from where, and which."""
    words = {**WORDS, "both": "changed alike", "merged": "merged", "conflict": "in conflict"}
    for kind, count in Counter(files.values()).items():
        paths = [printable(path) for path, origin in files.items() if origin == kind]
        more = f" and {count - _SHOWN:,} more" if count > _SHOWN else ""
        counted = f"{count_text(count, 'file')} {words.get(kind, kind)}"
        out.line(f"{counted}: {', '.join(paths[:_SHOWN])}{more}")


def _row(name: str, found: Interference) -> list[str]:
    changed = " ".join(f"{_percent(one / max(found.elements, 1)):>6}" for one in found.changed)
    cosine = "" if found.cosine is None else f"{found.cosine:+.3f}"
    shares = [_percent(found.share_shared), _percent(found.share_opposed)]
    return [printable(name), f"{found.elements:,}", changed, *shares, cosine]


def _percent(share: float) -> str:
    return f"{share:.1%}"


def recipe_fields(result: RecipeResult) -> dict[str, object]:
    """Return what a recipe made for ``--json``."""
    return {"path": str(result.path), **pick(result, "method tensors merged size_bytes seed notes")}


def write_recipe(out: Output, result: RecipeResult, seconds: str) -> None:
    """Write what a recipe made."""
    for note in result.notes:
        warn(note)
    count = f"{count_text(result.tensors, 'tensor')}, {result.merged:,} merged ({result.method})"
    out.line(f"{printable(str(result.path))}: {count}, {size_text(result.size_bytes)} in {seconds}")


def replay_fields(replay: MergeReplay) -> dict[str, object]:
    """Return a merge that was made again for ``--json``."""
    return pick(replay, "commit files different is_same")


def write_replay(out: Output, replay: MergeReplay) -> None:
    """Write whether a merge came out the same."""
    name = short_id(replay.commit)
    files = count_text(replay.files, "file")
    if replay.is_same:
        out.line(f"Merge {name} was repeated: {files}, the same to the bit")
        return
    shown = ", ".join(map(printable, replay.different[:_SHOWN]))
    more = len(replay.different) - _SHOWN
    out.line(
        f"Merge {name} was repeated and differs in {shown}{f' and {more} more' if more > 0 else ''}"
    )
