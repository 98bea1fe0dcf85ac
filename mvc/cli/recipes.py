"""The command line of merges by recipe, previews and replays."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.cli.errors import NEGATIVE
from mvc.cli.output import stdout, write_json
from mvc.cli.parameters import CommandUsageError, Exit
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import seconds_text
from mvc.cli.sequence import Shown, show_merge
from mvc.cli.session import open_repo
from mvc.errors import FormatError, NotFoundError, RepositoryNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from mvc.operations.preview_merge import MergePreview
    from mvc.repo import Repo

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
    from mvc.cli.render.recipes import recipe_fields, write_recipe
    from mvc.repo import merge_recipe

    merge_into = merge_recipe if repo is None else repo.merge_recipe
    started_s = time.perf_counter()
    with byte_progress("merging", wanted=shown.progress) as bar:
        result = merge_into(text, output, seed=recipe.seed, force=recipe.force, progress=bar)
    if shown.as_json:
        write_json(recipe_fields(result))
    elif not shown.quiet:
        write_recipe(stdout(), result, seconds_text(time.perf_counter() - started_s))


def preview_branches(branches: Sequence[str], told: Mapping[str, Any], shown: Shown) -> None:
    """Show what a merge of branches would do."""
    with byte_progress("comparing", wanted=shown.progress) as bar:
        seen = open_repo().preview_merge(*branches, **told, progress=bar)
    _show_preview(seen, shown)


def _show_preview(seen: MergePreview, shown: Shown) -> None:
    from mvc.cli.render.recipes import preview_fields, write_preview

    if shown.as_json:
        write_json(preview_fields(seen))
    else:
        write_preview(stdout(), seen)


def replay_merge(revision: str, shown: Shown) -> None:
    """Make a merge again; one that is not the same is a negative answer."""
    from mvc.cli.render.recipes import replay_fields, write_replay

    with byte_progress("merging", wanted=shown.progress) as bar:
        replay = open_repo().replay_merge(revision, progress=bar)
    if shown.as_json:
        write_json(replay_fields(replay))
    elif not shown.quiet:
        write_replay(stdout(), replay)
    if not replay.is_same:
        raise Exit(NEGATIVE)
