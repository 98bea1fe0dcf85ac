"""What merge, cherry-pick and revert did, and what they leave to decide."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.moves import commit_line, write_counts
from mvc.cli.render.text import count_text, short_id, size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.merging.files import Conflict
    from mvc.operations.merge import MergeResult
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


def parse_told(
    strategy: str | None, rules: Sequence[str], parameters: Sequence[str], seed: int
) -> dict[str, Any]:
    """Return what the options of a merge tell it, as arguments of ``Repo.merge``."""
    from mvc.merging.rules import parse_rule

    told = [parse_rule(one) for one in rules]
    values: dict[str, object] = {}
    if parameters:
        from mvc.merging.strategies import parse_parameter

        values = dict(map(parse_parameter, parameters))
    return {
        "strategy": strategy,
        "rules": [(one.pattern, one.strategy) for one in told],
        "parameters": values,
        "seed": seed,
    }


def merge_fields(result: MergeResult) -> dict[str, object]:
    """Return a merge for ``--json``."""
    return {
        **pick(result, "kind commit branch heads written removed bytes_computed"),
        "tensors": {kind: result.tensors.get(kind, 0) for kind in ("kept", *WORDS)},
        "conflicts": conflict_fields(result.conflicts),
    }


def conflict_fields(conflicts: Sequence[Conflict]) -> list[dict[str, object]]:
    """Return conflicts for ``--json``."""
    return [pick(one, "path tensor reason") for one in conflicts]


def write_merge(repo: Repo, out: Output, verb: str, result: MergeResult) -> None:
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
        told = reason if is_around else f"{count_text(len(names), 'tensor')} {reason}"
        plain = len(f"CONFLICT {path}: {told}")  # without the codes of colours
        room = None if out.width is None else out.width - plain
        out.line(line + told + _examples(names, room))


def _examples(names: Sequence[str], room: int | None) -> str:
    """Return some of the names: three in a pipe, on a terminal as many of them as fit the line."""
    for shown in range(min(len(names), _SHOWN), 0, -1):
        more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
        text = f": {', '.join(names[:shown])}{more}"
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
