"""Models outside any repository, or anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mvc import operations, workspace
from mvc.repo import Repo

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mvc.errors import MvcError
    from mvc.operations.clone import CloneResult
    from mvc.operations.compare import ModelDiff
    from mvc.operations.follow import Update
    from mvc.operations.merge_recipe import RecipeResult
    from mvc.operations.verify_models import ModelCheck
    from mvc.repo.opening import OpenRepo
    from mvc.workspace.models import Model, Operand
    from mvc.workspace.worktree import StrPath


def compare(
    old: StrPath | Operand,
    new: StrPath | Operand,
    *,
    tensors: str | None = None,
    spectral: bool = False,
) -> ModelDiff:
    """Compare two models outside any repository: files, folders of them, live models or states.

    As ``Repo.compare``, but nothing is cached.

    Raises:
        NotFoundError: a file does not exist.
        FormatError: a file holds no tensor.
    """
    return operations.compare.compare(
        None, *_as_files(old, new), tensors=tensors, spectral=spectral
    )


def verify_models(
    old: StrPath | Operand,
    new: StrPath | Operand,
    *,
    atol: float | None = None,
    rtol: float | None = None,
) -> ModelCheck:
    """Compare two models to the bit or within a tolerance, outside any repository.

    As ``Repo.verify_models``, of what ``compare`` takes.
    """
    return operations.verify_models.verify_models(None, *_as_files(old, new), atol=atol, rtol=rtol)


def _as_files(*sides: StrPath | Operand) -> Iterator[Operand]:
    return (Path(one) if isinstance(one, (str, os.PathLike)) else one for one in sides)


def merge_recipe(
    recipe: str, output: StrPath, *, seed: int = 0, force: bool = False
) -> RecipeResult:
    """Merge models outside any repository: as ``Repo.merge_recipe``, of files and folders only."""
    return operations.merge_recipe.merge_recipe(None, recipe, Path(output), seed=seed, force=force)


def clone(
    url: StrPath,
    folder: StrPath | None = None,
    *,
    content_url: StrPath | None = None,
    origin: str = "origin",
    branch: str | None = None,
    checkout: bool = True,
    content: bool = True,
    depth: int | None = None,
    store: bool = False,
    limit_bytes_s: int | None = None,
) -> Repo:
    """Make a repository from a remote, in a new folder, and open it.

    Args:
        url: ``s3://bucket/prefix``, ``gs://…``, ``az://…``, ``hf://buckets/namespace/name``,
            ``file:///folder`` or a path of a store; or a repository on a Git host: ``https://…``,
            ``ssh://…``, ``user@host:path``, ``git://…``, ``git+file:///folder``.
        content_url: of a Git host: the store that has the content of checkpoints.
        origin: what the remote is called in the new repository.
        folder: new or empty; by default named as the end of the URL, in the current folder.
        branch: the branch to check out; by default the one that the remote names.
        checkout: write its files.
        content: bring the content of checkpoints; otherwise the history only, and whatever reads
            content takes it from the remote. Files without it are not written before they are
            checked out by name.
        depth: bring only so many commits of one branch; ``Repo.fetch`` brings more. By default all.
        store: leave the content on the remote for good: as without ``content``, and each commit is
            pushed there, as in a repository made by ``Repo.init`` with a store.
        limit_bytes_s: at most so many bytes from the remote in a second.

    Raises:
        NotFoundError: nothing was ever pushed there, or not that branch.
        ConflictError: the folder exists and is not empty.
        StorageError: the store cannot be reached, or refuses.
        FormatError: what it holds is not a sound repository; nothing is left behind.
    """
    done: CloneResult = operations.clone.clone(
        str(url),
        None if folder is None else Path(folder),
        content_url=None if content_url is None else str(content_url),
        origin=origin,
        branch=branch,
        checkout=checkout,
        content=content,
        depth=depth,
        store=store,
        limit_bytes_s=limit_bytes_s,
    )
    return Repo(done.worktree)


def follow(
    url: StrPath,
    channel: str,
    folder: StrPath,
    *,
    keep: int = 1,
    interval_s: float = 5.0,
    once: bool = False,
    limit_bytes_s: int | None = None,
    waiting: Callable[[MvcError | None], None] = lambda _: None,
) -> Iterator[Update]:
    """Keep a folder at the newest version of a channel; yield each version that comes.

        for update in mvc.follow("s3://models/llama", "prod", "/srv/llama"):
            for name, array in update.tensors("torch"):
                live[name].copy_(array)  # unless update.changes() says that it does not fit

    ``FOLDER/current`` always leads to a whole, verified version, also after a kill.

    Args:
        url: of the remote, as of ``clone``.
        channel: what ``Repo.publish`` moves there.
        folder: where versions are written, ``weight_v000042`` and so on.
        keep: how many versions before the newest stay.
        interval_s: how long to wait before asking again; a store that is away is asked less and
            less often, down to once a minute.
        once: end after the newest version.
        limit_bytes_s: how many bytes of packs may come in a second; any number by default.
        waiting: called with what is wrong when the store goes away or sends what is damaged, and with
            None when it is well again; ``current`` stays meanwhile.

    Raises:
        NotFoundError: nothing is published under that name.
        ConflictError: the folder follows something else, or another process follows into it.
        StorageError: with ``once``, the store cannot be reached.
        FormatError: with ``once``, what came is damaged; the version before it stays.
    """
    follower = operations.follow.Follower(
        str(url), channel, Path(folder), keep=keep, limit_bytes_s=limit_bytes_s
    )
    return operations.follow.follow(follower, interval_s=interval_s, once=once, waiting=waiting)


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
