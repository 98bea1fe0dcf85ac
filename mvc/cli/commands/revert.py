"""Undo the changes of some commits."""

from __future__ import annotations

from typing import Annotated

from mvc.cli.options import Json, NoGate, Quiet, ShowProgress, check_alone
from mvc.cli.parameters import Argument, Option
from mvc.cli.render.merges import parse_told
from mvc.cli.sequence import (
    Abort,
    Continue,
    Mainline,
    NoCommit,
    Rules,
    Shown,
    Skip,
    Strategy,
    run_sequence,
)


def revert(
    commits: Annotated[list[str] | None, Argument(metavar="[REV]...")] = None,
    arithmetic: Annotated[
        bool,
        Option(
            "--arithmetic",
            help="If a tensor changed since, subtract the commit's update; not bit-exact.",
        ),
    ] = False,
    strategy: Strategy = None,
    rules: Rules = None,
    mainline: Mainline = None,
    no_commit: NoCommit = False,
    no_gate: NoGate = False,
    go_on: Continue = False,
    skip: Skip = False,
    abort: Abort = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Undo the changes of some commits with new commits.

    A tensor or file that a commit changed becomes what it was in the parent, bit for bit. If it
    changed again since, it is a conflict, as in a merge: --rule or --strategy decides ("theirs" is
    the parent's version), or --arithmetic computes new = now - (commit - parent), rounded to the
    dtype. REV may be a range, A..B.

    After a conflict, use --continue, --skip or --abort.
    """
    check_alone([("--arithmetic", arithmetic), ("--strategy", strategy)])
    told = parse_told(strategy, rules or (), (), 0)
    options: dict[str, object] = {"mainline": mainline, "commit": not no_commit}
    if arithmetic:
        options["arithmetic"] = True
    run_sequence(
        "revert",
        commits or (),
        {key: told[key] for key in ("strategy", "rules")},
        options,
        no_gate=no_gate,
        ways={"--continue": go_on, "--skip": skip, "--abort": abort},
        shown=Shown(quiet, progress and not quiet, as_json),
    )
