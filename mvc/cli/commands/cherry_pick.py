"""Apply the changes of some commits to the current branch."""

from __future__ import annotations

from typing import Annotated

from mvc.cli.options import Json, NoGate, Quiet, ShowProgress
from mvc.cli.parameters import Argument, Option
from mvc.cli.render.merges import parse_told
from mvc.cli.sequence import (
    Abort,
    Continue,
    Mainline,
    NoCommit,
    Parameters,
    Rules,
    Seed,
    Shown,
    Skip,
    Strategy,
    run_sequence,
)


def cherry_pick(
    commits: Annotated[list[str] | None, Argument(metavar="[REV]...")] = None,
    record_origin: Annotated[
        bool, Option("-x", help="Name the original commit in the message.")
    ] = False,
    strategy: Strategy = None,
    rules: Rules = None,
    parameters: Parameters = None,
    seed: Seed = 0,
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
    """Apply the changes of some commits to the current branch.

    A tensor or file that a commit changed is taken from the commit, if the branch still has the
    version of the commit's parent. If the branch changed it too, it is a conflict, as in a merge,
    and --rule or --strategy decides ("--strategy task_arithmetic" adds the commit's update). REV
    may be a range, A..B.

    The author is kept, and a commit that would change nothing is left out. After a conflict, use
    --continue, --skip or --abort.
    """
    told = parse_told(strategy, rules or (), parameters or (), seed)
    run_sequence(
        "cherry-pick",
        commits or (),
        told,
        {"mainline": mainline, "commit": not no_commit, "record_origin": record_origin},
        no_gate=no_gate,
        ways={"--continue": go_on, "--skip": skip, "--abort": abort},
        shown=Shown(quiet, progress and not quiet, as_json),
    )
