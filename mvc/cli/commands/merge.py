"""Merge other branches into the current one, tensor by tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.options import JSON, NO_GATE, PROGRESS, QUIET, check_clashes
from mvc.cli.parameters import CommandUsageError, arguments, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.recipes import (
    RecipeCall,
    check_of_recipes,
    merge_by_recipe,
    preview_branches,
    replay_merge,
)
from mvc.cli.render.merges import parse_told
from mvc.cli.sequence import PARAMETERS, RULES, SEED, STRATEGY, Shown, give_up, show_merge
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from typing import Literal


_OF_BRANCHES = (
    "BRANCH", "--strategy", "--rule", "--param", "--ff-only", "--no-ff", "--no-commit",
    "--allow-unrelated-histories",
)  # fmt: skip
_CLASHES = {
    "--ff-only": ("--no-ff",),
    "--continue": ("--abort", "--replay", "--recipe", "BRANCH", "--preview"),
    "--abort": ("--replay", "--recipe", "BRANCH", "--preview"),
    "--replay": ("--recipe", "--preview", *_OF_BRANCHES),
    "--recipe": _OF_BRANCHES,
    "--tokenizer": ("--continue", "--abort", "--replay"),
    "--no-gate": ("--abort", "--replay", "--preview", "--output"),
}


def merge(
    branches: list[str] = arguments("[BRANCH]..."),
    strategy: str | None = STRATEGY,
    rules: list[str] = RULES,
    parameters: list[str] = PARAMETERS,
    seed: int = SEED,
    recipe: str | None = string(
        "--recipe", metavar="FILE", help="Merge models by a mergekit recipe."
    ),
    output: str | None = string(
        "-o",
        "--output",
        metavar="FILE",
        help="With --recipe: write a safetensors file, or DIR/, and commit nothing.",
    ),
    force: bool = flag("-f", "--force", help="Let --output overwrite files."),
    tokenizer: str | None = string(
        "--tokenizer",
        metavar="NAME",
        help="Align embeddings by token: union, base, or the one of a branch or model.",
    ),
    preview: bool = flag(
        "--preview", help="Show what a merge would do and where models interfere; change nothing."
    ),
    replay: str | None = string(
        "--replay", metavar="REV", help="Repeat a merge; exit with 1 if the result differs."
    ),
    message: str | None = string("-m", "--message", metavar="TEXT", help="Message of the commit."),
    no_commit: bool = flag("--no-commit", help="Stop before the commit, to inspect the result."),
    no_gate: bool = NO_GATE,
    ff_only: bool = flag("--ff-only", help="Fast-forward or refuse."),
    no_ff: bool = flag("--no-ff", help="Make a commit even if a fast-forward is possible."),
    unrelated: bool = flag(
        "--allow-unrelated-histories", help="Allow a merge without a common ancestor."
    ),
    go_on: bool = flag("--continue", help="Finish the merge, with --rule or --strategy if needed."),
    abort: bool = flag("--abort", help="Give up the merge and go back to where it began."),
    quiet: bool = QUIET,
    progress: bool = PROGRESS,
    as_json: bool = JSON,
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
    check_clashes(
        _CLASHES,
        {"BRANCH": branches, "--strategy": strategy, "--rule": rules, "--param": parameters,
         "--recipe": recipe, "--output": output, "--tokenizer": tokenizer, "--preview": preview,
         "--replay": replay, "--no-commit": no_commit, "--no-gate": no_gate, "--ff-only": ff_only,
         "--no-ff": no_ff, "--allow-unrelated-histories": unrelated, "--continue": go_on,
         "--abort": abort},
    )  # fmt: skip
    if recipe is None:
        check_of_recipes([("--output", output), ("--force", force)])
    shown = Shown(quiet, progress and not quiet, as_json)
    told = parse_told(strategy, rules or (), parameters or (), seed)
    if replay is not None:
        replay_merge(replay, shown)
    elif recipe is not None:
        call = RecipeCall(recipe, output, force, tokenizer, preview, seed, message, no_gate)
        merge_by_recipe(call, shown)
    elif abort:
        give_up(open_repo(), "merge", shown)
    elif go_on:
        with byte_progress("merging", wanted=shown.progress) as bar:
            repo = open_repo()
            done = repo.conclude("merge", **told, message=message, no_gate=no_gate, progress=bar)
            show_merge(repo, "merge", done, shown)
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
        show_merge(repo, "merge", result, shown)
