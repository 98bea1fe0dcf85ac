"""Merge other branches into the current one, tensor by tensor."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import NO_GATE, QUIET_PROGRESS_JSON, check_clashes
from mvc.cli.output import Shown
from mvc.cli.parameters import CommandUsageError, Exit, arguments, flag, named, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import seconds_text
from mvc.cli.sequence import METHODS, fast_forward, give_up, show_merge
from mvc.cli.session import open_repo
from mvc.errors import FormatError, NotFoundError, RepositoryNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


_OPTIONS = named(
    string("--recipe FILE", "Merge models by a mergekit recipe."),
    string(
        "-o, --output FILE", "With --recipe: write a safetensors file, or DIR/, and commit nothing."
    ),
    flag("-f, --force", "Let --output overwrite files."),
    string(
        "--tokenizer NAME",
        "Align embeddings by token: union, base, or the one of a branch or model.",
    ),
    flag("--preview", "Show what a merge would do and where models interfere; change nothing."),
    string("--replay REV", "Repeat a merge; exit with 1 if the result differs."),
    string("-m, --message TEXT", "Message of the commit."),
    flag("--no-commit", "Stop before the commit, to inspect the result."),
    NO_GATE,
    flag("--ff-only", "Fast-forward or refuse."),
    flag("--no-ff", "Make a commit even if a fast-forward is possible."),
    flag("--allow-unrelated-histories", "Allow a merge without a common ancestor."),
    flag("--continue", "Finish the merge, with --rule or --strategy if needed."),
    flag("--abort", "Give up the merge and go back to where it began."),
)
_MAX_RECIPE_CHARACTERS = 2**20  # what is longer is refused when it is parsed


def merge(
    branches: list[str] = arguments("[BRANCH]..."),
    choices: dict[str, Any] = METHODS,
    options: dict[str, Any] = _OPTIONS,
    shown: Shown = QUIET_PROGRESS_JSON,
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
    given = {f"--{name}": value for name, value in options.items()}
    given |= {"BRANCH": branches, "--strategy": choices["strategy"], "--rule": choices["rules"]}
    check_clashes(_CLASHES, {**given, "--param": choices["parameters"]})
    for name in ("output", "force"):
        if options[name] and options["recipe"] is None:
            raise CommandUsageError(f"--{name} needs --recipe")
    if options["replay"] is not None:
        _replay(options["replay"], shown)
    elif options["recipe"] is not None:
        _merge_by_recipe(options, choices["seed"], shown)
    elif options["abort"]:
        give_up(open_repo(), "merge", shown)
    elif options["continue"]:
        how = {"message": options["message"], "no_gate": options["no-gate"]}
        with byte_progress("merging", wanted=shown.progress):
            repo = open_repo()
            done = repo.conclude("merge", **choices, **how)
            show_merge(repo, "merge", done, shown)
    elif not branches:
        raise CommandUsageError("which branch?")
    elif options["preview"]:
        with byte_progress("comparing", wanted=shown.progress):
            how = {**choices, "tokenizer": options["tokenizer"]}
            _show_preview(open_repo().preview_merge(*branches, **how), shown)
    else:
        _merge_branches(branches, choices, options, shown)


def _merge_branches(
    branches: Sequence[str], choices: Mapping[str, Any], options: Mapping[str, Any], shown: Shown
) -> None:
    repo = open_repo()
    with byte_progress("merging", wanted=shown.progress):
        result = repo.merge(
            *branches,
            **choices,
            tokenizer=options["tokenizer"],
            message=options["message"],
            fast_forward=fast_forward(only=options["ff-only"], never=options["no-ff"]),
            allow_unrelated=options["allow-unrelated-histories"],
            commit=not options["no-commit"],
            no_gate=options["no-gate"],
        )
    show_merge(repo, "merge", result, shown)


def _read_recipe(path: str, tokenizer: str | None) -> str:
    """Return the text of a recipe, with the tokenizer that an option chose."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_RECIPE_CHARACTERS)
    except FileNotFoundError:
        raise NotFoundError(f"recipe {path!r} does not exist") from None
    except IsADirectoryError:
        raise NotFoundError(f"recipe {path!r} is a folder, not a file") from None
    except UnicodeDecodeError:
        raise FormatError(f"recipe {path!r} is not UTF-8 text") from None
    return (
        text
        if tokenizer is None
        else f"{text.rstrip()}\ntokenizer_source: {json.dumps(tokenizer)}\n"
    )


def _merge_by_recipe(options: Mapping[str, Any], seed: int, shown: Shown) -> None:
    """Merge as a recipe says, or show what it would do."""
    output, message = options["output"], options["message"]
    if output is not None and message is not None:
        raise CommandUsageError("--output commits nothing, so it takes no message")
    if output is None and options["force"]:
        raise CommandUsageError("--force needs --output")
    text = _read_recipe(options["recipe"], options["tokenizer"])
    try:
        repo = open_repo()
    except RepositoryNotFoundError:
        if output is None and not options["preview"]:
            raise
        repo = None
    if options["preview"]:
        _preview_recipe(repo, text, seed, shown)
    elif output is not None:
        _write_recipe(repo, text, output, seed, shown, force=options["force"])
    else:
        assert repo is not None
        how = {"message": message, "no_gate": options["no-gate"]}
        with byte_progress("merging", wanted=shown.progress):
            done = repo.commit_recipe(text, seed=seed, **how)
        show_merge(repo, "merge", done, shown)


def _preview_recipe(repo: Repo | None, text: str, seed: int, shown: Shown) -> None:
    with byte_progress("comparing", wanted=shown.progress):
        if repo is not None:
            seen = repo.preview_merge(recipe=text, seed=seed)
        else:
            from mvc.operations.preview_merge import preview_recipe

            seen = preview_recipe(None, text, seed=seed)
    _show_preview(seen, shown)


def _write_recipe(
    repo: Repo | None, text: str, output: str, seed: int, shown: Shown, *, force: bool
) -> None:
    from mvc.cli.render.merges import recipe_fields, write_recipe
    from mvc.repo.outside import merge_recipe

    merge_into = merge_recipe if repo is None else repo.merge_recipe
    started_s = time.perf_counter()
    with byte_progress("merging", wanted=shown.progress):
        result = merge_into(text, output, seed=seed, force=force)
    seconds = seconds_text(time.perf_counter() - started_s)
    shown.answer(recipe_fields(result), write_recipe, result, seconds)


def _show_preview(seen: MergePreview, shown: Shown) -> None:
    from mvc.cli.render.merges import preview_fields, write_preview

    shown.aloud().answer(lambda: preview_fields(seen), write_preview, seen)


def _replay(revision: str, shown: Shown) -> None:
    """Make a merge again; one that is not the same is a negative answer."""
    from mvc.cli.render.merges import replay_fields, write_replay

    with byte_progress("merging", wanted=shown.progress):
        replay = open_repo().replay_merge(revision)
    shown.answer(replay_fields(replay), write_replay, replay)
    if not replay.is_same:
        raise Exit(NEGATIVE)
