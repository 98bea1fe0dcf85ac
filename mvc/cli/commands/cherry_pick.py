"""Apply the changes of some commits to the current branch."""

from __future__ import annotations

from mvc.cli.options import JSON, NO_GATE, PROGRESS, QUIET
from mvc.cli.output import Shown
from mvc.cli.parameters import arguments, flag
from mvc.cli.render.merges import parse_choices
from mvc.cli.sequence import (
    ABORT,
    CONTINUE,
    MAINLINE,
    NO_COMMIT,
    PARAMETERS,
    RULES,
    SEED,
    SKIP,
    STRATEGY,
    run_sequence,
)


def cherry_pick(
    commits: list[str] = arguments("[REV]..."),
    record_origin: bool = flag("-x", "Name the original commit in the message."),
    strategy: str | None = STRATEGY,
    rules: list[str] = RULES,
    parameters: list[str] = PARAMETERS,
    seed: int = SEED,
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
    """Apply the changes of some commits to the current branch.

    A tensor or file that a commit changed is taken from the commit, if the branch still has the
    version of the commit's parent. If the branch changed it too, it is a conflict, as in a merge,
    and --rule or --strategy decides ("--strategy task_arithmetic" adds the commit's update). REV
    may be a range, A..B.

    The author is kept, and a commit that would change nothing is left out. After a conflict, use
    --continue, --skip or --abort.
    """
    choices = parse_choices(strategy, rules or (), parameters or (), seed)
    run_sequence(
        "cherry-pick",
        commits or (),
        choices,
        {"mainline": mainline, "commit": not no_commit, "record_origin": record_origin},
        no_gate=no_gate,
        ways={"--continue": go_on, "--skip": skip, "--abort": abort},
        shown=Shown(quiet, progress and not quiet, as_json),
    )
