"""What merge, cherry-pick and revert did, and what they leave to decide."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mvc.cli.output import Output, pick, printable, warn
from mvc.cli.render.moves import commit_line, write_counts
from mvc.cli.render.text import count_text, short_id, size_text, some_text, table_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.merging.files import Conflict
    from mvc.numbers.interference import Interference
    from mvc.operations.merge import MergeResult
    from mvc.operations.merge_recipe import RecipeResult
    from mvc.operations.preview_merge import MergePreview
    from mvc.operations.replay_merge import MergeReplay
    from mvc.repo import Repo
    from mvc.workspace.checkout_plan import CheckoutResult


_SHOWN = 3
_AROUND = "__metadata__"  # what is no tensor, but around them
WORDS = {
    "ours": "from ours",
    "theirs": "from theirs",
    "base": "from the base",
    "merged": "computed",
    "conflict": "undecided",
}

_SHOWN_FILES = 5
_HEAD = ["", "elements", "changed", "by several", "opposed", "cosine"]


def parse_choices(
    strategy: str | None,
    rules: Sequence[str],
    parameters: Sequence[str] | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Return what the options of a merge tell it, as arguments of ``Repo.merge``."""
    from mvc.merging.rules import parse_rule

    parsed = [(rule.pattern, rule.strategy) for rule in map(parse_rule, rules)]
    choices = {"strategy": strategy, "rules": parsed}
    if parameters is None:
        return choices
    values: dict[str, object] = {}
    if parameters:
        from mvc.merging.strategies import parse_parameter

        values = dict(map(parse_parameter, parameters))
    return {**choices, "parameters": values, "seed": seed}


def merge_fields(result: MergeResult) -> dict[str, object]:
    """Return a merge for ``--json``."""
    return {
        **pick(result, "kind commit branch heads written removed bytes_computed"),
        "tensors": {kind: result.tensors.get(kind, 0) for kind in ("kept", *WORDS)},
        **pick(result, "conflicts(path tensor reason)"),
    }


def write_merge(out: Output, repo: Repo, verb: str, result: MergeResult) -> None:
    """Write the result of a merge, and how to continue."""
    if result.kind == "up-to-date":
        out.line("Already up to date.")
        return
    if result.kind == "conflicts":
        write_conflicts(out, result.conflicts)
        out.line(f"The {verb} is waiting for decisions:")
        out.lines(f"  {line}" for line in ways_on(verb))
        return
    where = printable(result.branch or "detached HEAD")
    if result.kind == "fast-forward":
        out.line(f"Fast-forward of {where} to {commit_line(repo, out, result.commit)}")
    elif result.kind == "merged":
        assert result.commit is not None
        subject = printable(repo.show(result.commit).info.subject)
        out.line(f"[{where} {out.style(short_id(result.commit), 'yellow')}] {subject}")
    else:
        out.line(f'The result is staged: "mvc {verb} --continue" or "mvc commit" records it')
    counted = [(word, result.tensors.get(kind, 0)) for kind, word in WORDS.items()]
    parts = [f"{count:,} {word}" for word, count in counted if count]
    if parts:
        size = f" ({size_text(result.bytes_computed)})" if result.bytes_computed else ""
        out.line(f"Merged tensor by tensor: {', '.join(parts)}{size}")
    write_counts(out, result)


def write_conflicts(out: Output, conflicts: Sequence[Conflict]) -> None:
    """Write one line per file and kind of conflict."""
    for (path, reason), group in groupby(conflicts, lambda one: (one.path, one.reason)):
        names = [printable(one.tensor) for one in group if one.tensor is not None]
        line = f"{out.style('CONFLICT', 'red')} {printable(path)}: "
        if not names:
            out.line(line + reason)
            continue
        is_around = names[0].startswith(_AROUND)
        fact = reason if is_around else f"{count_text(len(names), 'tensor')} {reason}"
        plain = len(f"CONFLICT {path}: {fact}")  # without the codes of colours
        room = None if out.width is None else out.width - plain
        out.line(line + fact + _examples(names, room))


def _examples(names: Sequence[str], room: int | None) -> str:
    """Return some of the names: three in a pipe, on a terminal as many of them as fit the line."""
    for shown in range(min(len(names), _SHOWN), 0, -1):
        text = f": {some_text(names, shown)}"
        if room is None or len(text) <= room:
            return text
    return ""


def ways_on(verb: str) -> list[str]:
    """Return the commands that end what is under way."""
    ways = [
        (
            f"mvc {verb} --continue --rule 'GLOB=theirs'",
            "decide by tensor or file: ours, theirs, base",
        ),
        (f"mvc add FILE, then mvc {verb} --continue", "accept files as they are now"),
        (f"mvc {verb} --abort", "give up and go back to where it began"),
    ]
    if verb != "merge":
        ways.insert(2, (f"mvc {verb} --skip", "leave this commit out"))
    width = max(len(command) for command, _ in ways)
    return [f"{command:<{width}}   {meaning}" for command, meaning in ways]


def write_returned(out: Output, repo: Repo, verb: str, result: CheckoutResult) -> None:
    """Write where one is after giving up."""
    out.line(f"The {verb} was given up: back at {commit_line(repo, out, result.commit)}")
    write_counts(out, result)


def preview_fields(preview: MergePreview) -> dict[str, object]:
    """Return a preview for ``--json``."""
    total = preview.total
    return {
        **pick(preview, "kind sides base files outcomes notes conflicts(path tensor reason)"),
        "total": None if total is None else _fields(total),
        "layers": [{"name": name, **_fields(one)} for name, one in preview.by_layer().items()],
        "tensors": [
            {"path": tensor.path or None, "name": tensor.name, **_fields(tensor.found)}
            for tensor in preview.tensors
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
    width = None if out.width is None else out.width - 10
    out.lines(table_lines(out, rows, "<>>>>>", width=width))
    out.line("Nothing was written")


def _write_files(out: Output, files: Mapping[str, str]) -> None:
    """Write how many files would come from where, and which."""
    words = {**WORDS, "both": "changed alike", "merged": "merged", "conflict": "in conflict"}
    for kind, count in Counter(files.values()).items():
        paths = [path for path, origin in files.items() if origin == kind]
        counted = f"{count_text(count, 'file')} {words.get(kind, kind)}"
        out.line(f"{counted}: {some_text(paths, _SHOWN_FILES)}")


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
    else:
        differs = some_text(replay.different, _SHOWN_FILES)
        out.line(f"Merge {name} was repeated and differs in {differs}")
