"""Merge other branches into the current one, tensor by tensor."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import JSON, NO_GATE, PROGRESS, QUIET, check_clashes
from mvc.cli.output import Shown, stdout, write_json
from mvc.cli.parameters import CommandUsageError, Exit, arguments, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.merges import parse_choices
from mvc.cli.render.text import seconds_text
from mvc.cli.sequence import PARAMETERS, RULES, SEED, STRATEGY, give_up, show_merge
from mvc.cli.session import open_repo
from mvc.errors import FormatError, NotFoundError, RepositoryNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from mvc.operations.preview_merge import MergePreview
    from mvc.repo import Repo


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
    recipe: str | None = string("--recipe FILE", "Merge models by a mergekit recipe."),
    output: str | None = string(
        "-o, --output FILE", "With --recipe: write a safetensors file, or DIR/, and commit nothing."
    ),
    force: bool = flag("-f, --force", "Let --output overwrite files."),
    tokenizer: str | None = string(
        "--tokenizer NAME",
        "Align embeddings by token: union, base, or the one of a branch or model.",
    ),
    preview: bool = flag(
        "--preview", "Show what a merge would do and where models interfere; change nothing."
    ),
    replay: str | None = string(
        "--replay REV", "Repeat a merge; exit with 1 if the result differs."
    ),
    message: str | None = string("-m, --message TEXT", "Message of the commit."),
    no_commit: bool = flag("--no-commit", "Stop before the commit, to inspect the result."),
    no_gate: bool = NO_GATE,
    ff_only: bool = flag("--ff-only", "Fast-forward or refuse."),
    no_ff: bool = flag("--no-ff", "Make a commit even if a fast-forward is possible."),
    unrelated: bool = flag(
        "--allow-unrelated-histories", "Allow a merge without a common ancestor."
    ),
    go_on: bool = flag("--continue", "Finish the merge, with --rule or --strategy if needed."),
    abort: bool = flag("--abort", "Give up the merge and go back to where it began."),
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
    choices = parse_choices(strategy, rules or (), parameters or (), seed)
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
            done = repo.conclude("merge", **choices, message=message, no_gate=no_gate, progress=bar)
            show_merge(repo, "merge", done, shown)
    elif not branches:
        raise CommandUsageError("which branch?")
    elif preview:
        preview_branches(branches, {**choices, "tokenizer": tokenizer}, shown)
    else:
        way: Literal["allowed", "only", "never"] = (
            "only" if ff_only else "never" if no_ff else "allowed"
        )
        repo = open_repo()
        with byte_progress("merging", wanted=shown.progress) as bar:
            result = repo.merge(
                *branches,
                **choices,
                tokenizer=tokenizer,
                message=message,
                fast_forward=way,
                allow_unrelated=unrelated,
                commit=not no_commit,
                no_gate=no_gate,
                progress=bar,
            )
        show_merge(repo, "merge", result, shown)


_MAX_RECIPE_CHARACTERS = 2**20  # what is longer is refused when it is parsed


@dataclass(frozen=True, slots=True)
class RecipeCall:
    """What the command line says of a recipe."""

    path: str
    output: str | None
    force: bool
    tokenizer: str | None
    preview: bool
    seed: int
    message: str | None
    no_gate: bool

    def read(self) -> str:
        """Return its text, with the tokenizer that an option chose."""
        try:
            with open(self.path, encoding="utf-8") as file:
                text = file.read(_MAX_RECIPE_CHARACTERS)
        except FileNotFoundError:
            raise NotFoundError(f"recipe {self.path!r} does not exist") from None
        except IsADirectoryError:
            raise NotFoundError(f"recipe {self.path!r} is a folder, not a file") from None
        except UnicodeDecodeError:
            raise FormatError(f"recipe {self.path!r} is not UTF-8 text") from None
        if self.tokenizer is None:
            return text
        return f"{text.rstrip()}\ntokenizer_source: {json.dumps(self.tokenizer)}\n"


def check_of_recipes(options: Sequence[tuple[str, object]]) -> None:
    """Check that no option was given that makes sense with a recipe only."""
    for name, given in options:
        if given:
            raise CommandUsageError(f"{name} needs --recipe")


def merge_by_recipe(recipe: RecipeCall, shown: Shown) -> None:
    """Merge as a recipe says, or show what it would do."""
    if recipe.output is not None and recipe.message is not None:
        raise CommandUsageError("--output commits nothing, so it takes no message")
    if recipe.output is None and recipe.force:
        raise CommandUsageError("--force needs --output")
    text = recipe.read()
    try:
        repo = open_repo()
    except RepositoryNotFoundError:
        if recipe.output is None and not recipe.preview:
            raise
        repo = None
    if recipe.preview:
        _preview(repo, text, recipe.seed, shown)
    elif recipe.output is not None:
        _write(repo, text, recipe.output, recipe, shown)
    else:
        assert repo is not None
        with byte_progress("merging", wanted=shown.progress) as bar:
            done = repo.commit_recipe(
                text, seed=recipe.seed, message=recipe.message, no_gate=recipe.no_gate, progress=bar
            )
        show_merge(repo, "merge", done, shown)


def _preview(repo: Repo | None, text: str, seed: int, shown: Shown) -> None:
    with byte_progress("comparing", wanted=shown.progress) as bar:
        if repo is not None:
            seen = repo.preview_merge(recipe=text, seed=seed, progress=bar)
        else:
            from mvc.operations.preview_merge import preview_recipe

            seen = preview_recipe(None, text, seed=seed, progress=bar)
    _show_preview(seen, shown)


def _write(
    repo: Repo | None,
    text: str,
    output: str,
    recipe: RecipeCall,
    shown: Shown,
) -> None:
    from mvc.cli.render.merges import recipe_fields, write_recipe
    from mvc.repo.outside import merge_recipe

    merge_into = merge_recipe if repo is None else repo.merge_recipe
    started_s = time.perf_counter()
    with byte_progress("merging", wanted=shown.progress) as bar:
        result = merge_into(text, output, seed=recipe.seed, force=recipe.force, progress=bar)
    if shown.as_json:
        write_json(recipe_fields(result))
    elif not shown.quiet:
        write_recipe(stdout(), result, seconds_text(time.perf_counter() - started_s))


def preview_branches(branches: Sequence[str], choices: Mapping[str, Any], shown: Shown) -> None:
    """Show what a merge of branches would do."""
    with byte_progress("comparing", wanted=shown.progress) as bar:
        seen = open_repo().preview_merge(*branches, **choices, progress=bar)
    _show_preview(seen, shown)


def _show_preview(seen: MergePreview, shown: Shown) -> None:
    from mvc.cli.render.merges import preview_fields, write_preview

    if shown.as_json:
        write_json(preview_fields(seen))
    else:
        write_preview(stdout(), seen)


def replay_merge(revision: str, shown: Shown) -> None:
    """Make a merge again; one that is not the same is a negative answer."""
    from mvc.cli.render.merges import replay_fields, write_replay

    with byte_progress("merging", wanted=shown.progress) as bar:
        replay = open_repo().replay_merge(revision, progress=bar)
    if shown.as_json:
        write_json(replay_fields(replay))
    elif not shown.quiet:
        write_replay(stdout(), replay)
    if not replay.is_same:
        raise Exit(NEGATIVE)
