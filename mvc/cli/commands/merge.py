"""Merge other branches into the current one, tensor by tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mvc.cli.options import CommandUsageError, Json, NoGate, Quiet, ShowProgress, check_alone
from mvc.cli.output import stdout, write_json
from mvc.cli.parameters import Argument, Option
from mvc.cli.progress import byte_progress
from mvc.cli.recipes import (
    RecipeCall,
    Shown,
    check_of_recipes,
    merge_by_recipe,
    preview_branches,
    replay_merge,
    show_merge,
)
from mvc.cli.render.merges import parse_told, write_returned
from mvc.cli.render.moves import result_fields
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

Strategy = Annotated[
    str | None,
    Option(
        "--strategy",
        metavar="NAME",
        help="Resolve conflicts by: ours, theirs, base, or a merge method.",
    ),
]
Rules = Annotated[
    list[str] | None,
    Option(
        "--rule",
        metavar="GLOB=STRATEGY",
        help="The strategy for tensors or files that match GLOB; the first match wins.",
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
    recipe: Annotated[
        str | None,
        Option("--recipe", metavar="FILE", help="Merge models by a mergekit recipe."),
    ] = None,
    output: Annotated[
        str | None,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="With --recipe: write a safetensors file, or DIR/, and commit nothing.",
        ),
    ] = None,
    force: Annotated[bool, Option("-f", "--force", help="Let --output overwrite files.")] = False,
    tokenizer: Annotated[
        str | None,
        Option(
            "--tokenizer",
            metavar="NAME",
            help="Align embeddings by token: union, base, or the one of a branch or model.",
        ),
    ] = None,
    preview: Annotated[
        bool,
        Option(
            "--preview",
            help="Show what a merge would do and where models interfere; change nothing.",
        ),
    ] = False,
    replay: Annotated[
        str | None,
        Option(
            "--replay", metavar="REV", help="Repeat a merge; exit with 1 if the result differs."
        ),
    ] = None,
    message: MergeMessage = None,
    no_commit: Annotated[
        bool, Option("--no-commit", help="Stop before the commit, to inspect the result.")
    ] = False,
    no_gate: NoGate = False,
    ff_only: Annotated[bool, Option("--ff-only", help="Fast-forward or refuse.")] = False,
    no_ff: Annotated[
        bool, Option("--no-ff", help="Make a commit even if a fast-forward is possible.")
    ] = False,
    unrelated: Annotated[
        bool,
        Option("--allow-unrelated-histories", help="Allow a merge without a common ancestor."),
    ] = False,
    go_on: Annotated[
        bool, Option("--continue", help="Finish the merge, with --rule or --strategy if needed.")
    ] = False,
    abort: Annotated[
        bool, Option("--abort", help="Give up the merge and go back to where it began.")
    ] = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Merge other branches into the current one, tensor by tensor.

    A change on one side is taken from that side without reading the tensor. A change on both sides
    is a conflict, unless --rule or --strategy resolves it. Text files merge by lines, with Git's
    conflict markers.

    After a conflict, the files hold whatever could be merged, and our version of the rest; "mvc
    status" lists what is undecided. Decide with "mvc merge --continue --rule ...", or put files in
    place, "mvc add" them and run "mvc merge --continue". --abort goes back.

    A merge method (linear, slerp, ties, ...) applies to weights only: the optimizer and the rest of
    a training state need a rule of their own, such as --rule 'optimizer.*=ours'.

    Where tokenizers differ, --tokenizer union (base, ours, theirs) aligns the rows of embeddings and
    heads by token and writes the matching tokenizer. Without it, rows of different tokens are never
    merged.

    --recipe merges revisions, files or folders by a mergekit recipe and commits the result, or
    writes it to a file or folder with -o, inside or outside a repository. --replay repeats a merge
    from the record in its commit.
    """
    check_alone([("--ff-only", ff_only), ("--no-ff", no_ff)])
    check_alone(
        [("--continue", go_on), ("--abort", abort), ("--replay", replay), ("--recipe", recipe)]
    )
    of_branches = [("--strategy", strategy), ("--rule", rules), ("--param", parameters),
                   ("--ff-only", ff_only), ("--no-ff", no_ff), ("--no-commit", no_commit),
                   ("--allow-unrelated-histories", unrelated)]  # fmt: skip
    named = [("BRANCH", branches)]
    _check_apart(("--continue", go_on), [*named, ("--preview", preview)])
    _check_apart(("--abort", abort), [*named, ("--preview", preview)])
    _check_apart(("--replay", replay), [*named, ("--preview", preview), *of_branches])
    _check_apart(("--recipe", recipe), [*named, *of_branches])
    _check_apart(
        ("--tokenizer", tokenizer),
        [("--continue", go_on), ("--abort", abort), ("--replay", replay)],
    )
    _check_apart(("--no-gate", no_gate), [("--abort", abort), ("--replay", replay),
                 ("--preview", preview), ("--output", output)])  # fmt: skip
    if recipe is None:
        check_of_recipes([("--output", output), ("--force", force)])
    shown = Shown(progress and not quiet, quiet, as_json)
    told = parse_told(strategy, rules or (), parameters or (), seed)
    if replay is not None:
        replay_merge(replay, shown)
    elif recipe is not None:
        call = RecipeCall(recipe, output, force, tokenizer, preview, seed, message, no_gate)
        merge_by_recipe(call, shown)
    elif abort:
        _abort(shown)
    elif go_on:
        with byte_progress("merging", wanted=shown.progress) as bar:
            repo = open_repo()
            done = repo.conclude("merge", **told, message=message, no_gate=no_gate, progress=bar)
            show_merge(repo, done, shown)
    elif not branches:
        raise CommandUsageError("which branch?")
    elif preview:
        preview_branches(branches, {**told, "tokenizer": tokenizer}, shown)
    else:
        way: Literal["allowed", "only", "never"] = (
            "only" if ff_only else "never" if no_ff else "allowed"
        )
        repo = open_repo()
        with byte_progress("merging", wanted=shown.progress) as bar:
            result = repo.merge(
                *branches,
                **told,
                tokenizer=tokenizer,
                message=message,
                fast_forward=way,
                allow_unrelated=unrelated,
                commit=not no_commit,
                no_gate=no_gate,
                progress=bar,
            )
        show_merge(repo, result, shown)


def _check_apart(one: tuple[str, object], others: Sequence[tuple[str, object]]) -> None:
    for other in others:
        check_alone([one, other])


def _abort(shown: Shown) -> None:
    repo = open_repo()
    returned = repo.abort("merge")
    if shown.as_json:
        write_json(result_fields(returned))
    elif not shown.quiet:
        write_returned(stdout(), repo, "merge", returned)
