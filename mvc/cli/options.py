"""Options that many commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON (docs/json.md).")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors and warnings only.")]
ShowProgress = Annotated[
    bool,
    typer.Option(
        "--progress/--no-progress", show_default=False, help="Show a progress bar on a terminal."
    ),
]
Tensors = Annotated[
    str | None,
    typer.Option("--tensors", metavar="GLOB", help="Only tensors whose name fits this wildcard."),
]
Stat = Annotated[bool, typer.Option("--stat", help="One line per file.")]
NameOnly = Annotated[bool, typer.Option("--name-only", help="Paths only.")]
NameStatus = Annotated[
    bool, typer.Option("--name-status", help="Paths with a letter: A, D, M or R.")
]
All = Annotated[
    bool,
    typer.Option("--all", help="Every tensor, also of new and removed files and of long lists."),
]
Delta = Annotated[
    bool | None,
    typer.Option(
        "--delta/--no-delta",
        show_default=False,
        help="Store tensors as differences to the last commit's wherever that is smaller, or never.",
    ),
]
Force = Annotated[
    bool, typer.Option("-f", "--force", help="Discard local changes that are in the way.")
]
DryRun = Annotated[
    bool, typer.Option("-n", "--dry-run", help="Print what would be done, and stop.")
]
Limit = Annotated[
    int | None, typer.Option("-n", "--max-count", metavar="N", help="At most N; also -N.")
]
Grace = Annotated[
    str | None,
    typer.Option(
        "--grace", metavar="AGE", help="Keep younger garbage: now, 12h, 7d, 2w (default)."
    ),
]


def age_seconds(age: str | None) -> int | None:
    """Return the seconds of an age such as ``12h``; ``now`` is 0."""
    from mvc.upkeep.durations import parse_duration

    return None if age is None else 0 if age in ("0", "now") else parse_duration(age)
