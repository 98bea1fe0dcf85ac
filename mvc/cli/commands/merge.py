"""Bring the changes of other branches into the current one, tensor by tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import CommandUsageError, Json, Quiet, ShowProgress, check_alone
from mvc.cli.output import stdout, write_json
from mvc.cli.parameters import Argument, Exit, Option
from mvc.cli.progress import byte_progress
from mvc.cli.render.merges import merge_fields, parse_told, write_merge, write_returned
from mvc.cli.render.moves import result_fields
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from typing import Literal

    from mvc.operations.merge import MergeResult

Strategy = Annotated[
    str | None,
    Option(
        "--strategy",
        metavar="NAME",
        help="Decide what both sides changed: ours, theirs, base, or a merge method.",
    ),
]
Rules = Annotated[
    list[str] | None,
    Option(
        "--rule",
        metavar="GLOB=STRATEGY",
        help="Decide so about the tensors or files that GLOB fits; the first that fits counts.",
    ),
]
Parameters = Annotated[
    list[str] | None,
    Option("--param", metavar="NAME=VALUE", help="A parameter of the merge method."),
]
Seed = Annotated[
    int, Option("--seed", metavar="N", help="Seed of methods that draw random numbers.")
]
MergeMessage = Annotated[
    str | None, Option("-m", "--message", metavar="TEXT", help="Message of the commit.")
]


def merge(
    branches: Annotated[list[str] | None, Argument(metavar="[BRANCH]...")] = None,
    strategy: Strategy = None,
    rules: Rules = None,
    parameters: Parameters = None,
    seed: Seed = 0,
    message: MergeMessage = None,
    no_commit: Annotated[
        bool, Option("--no-commit", help="Stop before the commit, to look at the result.")
    ] = False,
    ff_only: Annotated[
        bool, Option("--ff-only", help="Only move the branch on, or refuse.")
    ] = False,
    no_ff: Annotated[
        bool, Option("--no-ff", help="Make a commit even if the branch could just move on.")
    ] = False,
    unrelated: Annotated[
        bool,
        Option("--allow-unrelated-histories", help="Merge what has no commit in common, too."),
    ] = False,
    go_on: Annotated[
        bool, Option("--continue", help="Finish the merge, with --rule or --strategy if needed.")
    ] = False,
    abort: Annotated[
        bool, Option("--abort", help="Give the merge up: all is as it was before.")
    ] = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Bring the changes of other branches into the current one, tensor by tensor.

    What only one side changed since the branches parted is taken from it, without being read. What
    both changed is a conflict, unless --rule or --strategy says how to go on. Text files are merged
    by lines, with Git's markers where both sides changed something.

    With conflicts the files hold what could be merged, and ours where not; "mvc status" lists them.
    Decide with "mvc merge --continue --rule ...", or put files in place, "mvc add" them and
    continue; --abort goes back.

    A merge method (linear, slerp, ties, ...) decides by default over weights only: the optimizer
    and the rest of a training state need a rule of their own, such as --rule 'optimizer.*=ours'.
    """
    check_alone([("--ff-only", ff_only), ("--no-ff", no_ff)])
    check_alone([("--continue", go_on), ("--abort", abort), ("BRANCH", branches)])
    if not (branches or go_on or abort):
        raise CommandUsageError("which branch?")
    told = parse_told(strategy, rules or (), parameters or (), seed)
    repo = open_repo()
    if abort:
        returned = repo.abort("merge")
        if as_json:
            write_json(result_fields(returned))
        elif not quiet:
            write_returned(stdout(), repo, "merge", returned)
        return
    result: MergeResult
    with byte_progress("merging", wanted=progress and not quiet) as bar:
        if go_on:
            result = repo.conclude("merge", **told, message=message, progress=bar)
        else:
            way: Literal["allowed", "only", "never"] = (
                "only" if ff_only else "never" if no_ff else "allowed"
            )
            result = repo.merge(
                *(branches or ()),
                **told,
                message=message,
                fast_forward=way,
                allow_unrelated=unrelated,
                commit=not no_commit,
                progress=bar,
            )
    if as_json:
        write_json(merge_fields(result))
    elif not quiet or result.conflicts:
        write_merge(repo, stdout(), "merge", result)
    if result.conflicts:
        raise Exit(NEGATIVE)
