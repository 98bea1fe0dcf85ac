"""Apply what some commits changed to the current branch."""

from __future__ import annotations

from typing import Annotated

from mvc.cli.commands.merge import Parameters, Rules, Seed, Strategy
from mvc.cli.options import Json, NoGate, Quiet, ShowProgress
from mvc.cli.parameters import Argument, Option
from mvc.cli.render.merges import parse_told
from mvc.cli.sequence import Abort, Continue, Mainline, NoCommit, Skip, run_sequence


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
    """Apply what some commits changed to the current branch.

    Tensors and files that a commit changed against its parent are taken from it, where the branch
    has them as the parent had. What the branch changed too is a conflict, as in a merge: --rule and
    --strategy decide ("--strategy task_arithmetic" adds what the commit added). REV may be a range,
    A..B.

    The author stays, and what would change nothing is left out. At conflicts, --continue, --skip or
    --abort goes on.
    """
    told = parse_told(strategy, rules or (), parameters or (), seed)
    run_sequence(
        "cherry-pick",
        commits or (),
        told,
        {"mainline": mainline, "commit": not no_commit, "record_origin": record_origin},
        no_gate=no_gate,
        ways={"--continue": go_on, "--skip": skip, "--abort": abort},
        output=(quiet, progress, as_json),
    )
