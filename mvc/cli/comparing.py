"""Comparing models by their values: what ``diff`` and ``show`` share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.cli.options import STAT, TENSORS, choose_one
from mvc.cli.parameters import flag, option_set, string
from mvc.cli.progress import byte_progress
from mvc.cli.session import is_revision, open_repo, parse_place
from mvc.errors import RepositoryNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mvc.cli.render.comparison_rows import View
    from mvc.operations.compare import ModelDiff
    from mvc.repo import Repo


@dataclass(frozen=True, slots=True)
class Compared:
    """What is shown of files or models that differ, as ``diff`` and ``show`` are told it."""

    tensors: str | None
    stat: bool
    name_only: bool
    name_status: bool
    stats: bool
    by: str | None
    sort: str | None
    above: str | None
    spectral: bool

    def view(self, *, everything: bool) -> View | None:
        """Return the rows to show, or None if no values are compared."""
        if not (self.stats or self.spectral) and {self.by, self.sort, self.above} == {None}:
            return None
        from mvc.cli.render.comparison_rows import parse_view

        return parse_view(self.by, self.sort, self.above, everything=everything)

    def form(self, values: str, *, with_values: bool) -> str:
        """Return the form that is asked for: ``values`` is the option that asks for values."""
        forms = {"stat": self.stat, "name-only": self.name_only, "name-status": self.name_status}
        return choose_one({**forms, values: with_values}, "rows")


COMPARED = option_set(
    Compared,
    tensors=TENSORS,
    stat=STAT,
    name_only=flag("--name-only", "Print paths only."),
    name_status=flag("--name-status", "Print paths and a letter: A, D, M or R."),
    stats=flag("--stats", "Compare values: how far did each tensor move? See docs/guide.md."),
    by=string("--by KIND", "With --stats, list all rows by: tensor, module, kind."),
    sort=string(
        "--sort KIND",
        "With --stats, sort, largest first, by: sigma, l2, cosine, max, changed, ulp, norm, name.",
    ),
    above=string("--above X", "With --stats, only rows whose sigma is above X: 1e-3."),
    spectral=flag("--spectral", "With --stats, also the rank of each difference: would a LoRA do?"),
)
ALL = flag("--all", "List every tensor, also in new and removed files and in long lists.")


def find_models(names: Sequence[str]) -> Callable[..., ModelDiff] | None:
    """Return a function that compares the two models in the arguments, or None.

    Inside a repository these are checkpoints, folders of them elsewhere, ``REV:PATH``, and revisions
    beside what is elsewhere; outside of one, any two files or folders.
    """
    if len(names) != 2 or "--" in names:  # noqa: PLR2004  old and new
        return None
    try:
        repo = open_repo()
    except RepositoryNotFoundError:
        from mvc.repo.outside import compare

        return partial(compare, *names)
    models = [_find_model(repo, name) for name in names]
    if any(isinstance(model, Path) and not _is_inside(repo, model) for model in models):
        models = [
            in_history(repo, name) if one is None and is_revision(repo, name) else one
            for name, one in zip(names, models, strict=True)
        ]
    return None if None in models else partial(repo.compare, *models)


def open_repo_or_say() -> Repo:
    """Open the repository; where there is none, say what can be compared without."""
    try:
        return open_repo()
    except RepositoryNotFoundError as error:
        error.hint = f"{error.hint}, or name two checkpoints or folders to compare"
        raise


def _find_model(repo: Repo, name: str) -> str | Path | None:
    """Return an argument as one side of a comparison, or None if it means something else."""
    from mvc.checkpoints.names import is_checkpoint_name

    if os.path.isfile(name):
        is_model = is_checkpoint_name(name) and not is_revision(repo, name)
        return Path(name) if is_model else None
    if os.path.isdir(name):
        has_models = any(map(is_checkpoint_name, os.listdir(name)))
        is_model = has_models and not _is_inside(repo, Path(name))
        return Path(name) if is_model else None
    revision, _, path = name.partition(":")
    if not path or not is_revision(repo, revision or "HEAD"):
        return None
    revision, path = parse_place(repo, name)
    return f"{revision}:{os.path.relpath(path, repo.worktree) if os.path.isabs(path) else path}"


def _is_inside(repo: Repo, path: Path) -> bool:
    return path.resolve().is_relative_to(repo.worktree)


def in_history(repo: Repo, name: str | None) -> str | None:
    """Return a revision so that it cannot be taken for a file of that name."""
    return name if name is None or not os.path.lexists(name) else repo.resolve(name)


def compare_values(compare: Callable[..., ModelDiff], *, progress: bool = True) -> ModelDiff:
    """Compare two models, with a progress bar."""
    with byte_progress("comparing", wanted=progress):
        return compare()
