"""Undo the changes of some commits."""

from __future__ import annotations

from mvc.cli.options import JSON, NO_GATE, PROGRESS, QUIET, check_alone
from mvc.cli.output import Shown
from mvc.cli.parameters import arguments, flag
from mvc.cli.render.merges import parse_choices
from mvc.cli.sequence import (
    ABORT,
    CONTINUE,
    MAINLINE,
    NO_COMMIT,
    RULES,
    SKIP,
    STRATEGY,
    run_sequence,
)


def revert(
    commits: list[str] = arguments("[REV]..."),
    arithmetic: bool = flag(
        "--arithmetic", "If a tensor changed since, subtract the commit's update; not bit-exact."
    ),
    strategy: str | None = STRATEGY,
    rules: list[str] = RULES,
    mainline: int | None = MAINLINE,
    no_commit: bool = NO_COMMIT,
    no_gate: bool = NO_GATE,
    go_on: bool = CONTINUE,
    skip: bool = SKIP,
    abort: bool = ABORT,
    quiet: bool = QUIET,
    progress: bool = PROGRESS,
    as_json: bool = JSON,
) -> None:
    """Undo the changes of some commits with new commits.

    A tensor or file that a commit changed becomes what it was in the parent, bit for bit. If it
    changed again since, it is a conflict, as in a merge: --rule or --strategy decides ("theirs" is
    the parent's version), or --arithmetic computes new = now - (commit - parent), rounded to the
    dtype. REV may be a range, A..B.

    After a conflict, use --continue, --skip or --abort.
    """
    check_alone([("--arithmetic", arithmetic), ("--strategy", strategy)])
    choices = parse_choices(strategy, rules or (), (), 0)
    options: dict[str, object] = {"mainline": mainline, "commit": not no_commit}
    if arithmetic:
        options["arithmetic"] = True
    run_sequence(
        "revert",
        commits or (),
        {key: choices[key] for key in ("strategy", "rules")},
        options,
        no_gate=no_gate,
        ways={"--continue": go_on, "--skip": skip, "--abort": abort},
        shown=Shown(quiet, progress and not quiet, as_json),
    )
