"""Models outside any repository, or anywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mvc import operations, workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from mvc.operations.compare import ModelDiff
    from mvc.operations.merge_recipe import RecipeResult
    from mvc.operations.verify_models import ModelCheck
    from mvc.repo.opening import OpenRepo, Progress, StrPath
    from mvc.workspace.models import Model, Operand


def compare(
    old: StrPath | Operand,
    new: StrPath | Operand,
    *,
    tensors: str | None = None,
    spectral: bool = False,
    progress: Progress = None,
) -> ModelDiff:
    """Compare two models outside any repository: files, folders of them, live models or states.

    As ``Repo.compare``, but nothing is cached.

    Raises:
        NotFoundError: a file does not exist.
        FormatError: a file holds no tensor.
    """
    return operations.compare.compare(
        None, *_as_files(old, new), tensors=tensors, spectral=spectral, progress=progress
    )


def verify_models(
    old: StrPath | Operand,
    new: StrPath | Operand,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    progress: Progress = None,
) -> ModelCheck:
    """Compare two models to the bit or within a tolerance, outside any repository.

    As ``Repo.verify_models``, of what ``compare`` takes.
    """
    return operations.verify_models.verify_models(
        None, *_as_files(old, new), atol=atol, rtol=rtol, progress=progress
    )


def _as_files(*sides: StrPath | Operand) -> Iterator[Operand]:
    return (Path(one) if isinstance(one, (str, os.PathLike)) else one for one in sides)


def merge_recipe(
    recipe: str,
    output: StrPath,
    *,
    seed: int = 0,
    force: bool = False,
    progress: Progress = None,
) -> RecipeResult:
    """Merge models outside any repository: as ``Repo.merge_recipe``, of files and folders only."""
    return operations.merge_recipe.merge_recipe(
        None, recipe, Path(output), seed=seed, force=force, progress=progress
    )


def open_model(operand: Operand, repo: OpenRepo | None = None) -> AbstractContextManager[Model]:
    """Open the tensors of a revision, of the worktree or of plain files for a ``with`` block.

    Args:
        operand: a revision, ``REV:PATH``, a checkpoint file, a folder of them, or a live model or
            its state dict; None is the worktree. A ``Path`` is never a revision.
        repo: the repository, or None outside of one.

    Returns:
        A ``Model``, whose ``tensors`` are read one by one with ``read("numpy")`` or ``"torch"``.

    Raises:
        NotFoundError: it is none of these.
        UsageError: it is more than one of these, or there is no repository whose worktree it is.
        FormatError: a file holds no tensor.
    """
    context = None if repo is None else repo._context  # noqa: SLF001  the same package
    return workspace.models.open_model(context, operand)
