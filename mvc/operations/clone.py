"""clone: a repository from a remote, with its default branch checked out."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.history.refnames import HEADS
from mvc.operations.checkout import checkout_revision
from mvc.operations.fetch import fetch
from mvc.remotes.settings import DEFAULT_REMOTE, REMOTES, write_remote
from mvc.remotes.tracking import set_upstream
from mvc.storage.urls import parse_store_url
from mvc.workspace.context import init

if TYPE_CHECKING:
    from mvc.operations.fetch import FetchResult
    from mvc.progress import ByteProgress
    from mvc.storage.urls import StoreUrl
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class CloneResult:
    """Where a clone is, and what came."""

    worktree: Path
    fetched: FetchResult


def clone(
    url: str,
    folder: Path | None,
    *,
    branch: str | None = None,
    checkout: bool = True,
    limit_bytes_s: int | None = None,
    progress: ByteProgress = None,
) -> CloneResult:
    """Make a repository in a new folder from a remote; see ``mvc.clone``."""
    parsed = parse_store_url(url)
    folder = folder or Path(_name(parsed))
    if folder.exists() and (not folder.is_dir() or os.listdir(folder)):
        raise ConflictError(f"{folder} already exists and is not empty")
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        context = init(folder)
        write_remote(context, DEFAULT_REMOTE, parsed)
        result = fetch(context, DEFAULT_REMOTE, limit_bytes_s=limit_bytes_s, progress=progress)
        name = branch or result.head.removeprefix(HEADS)
        _begin(context, name, must_exist=branch is not None)
        if checkout and context.history.head().commit is not None:
            checkout_revision(context, name, force=True, progress=progress)
    except BaseException:
        shutil.rmtree(folder if is_new else folder / ".mvc", ignore_errors=True)
        raise
    return CloneResult(context.worktree, result)


def _name(url: StoreUrl) -> str:
    """Return what a clone is called: the end of where it comes from."""
    name = (url.prefix or url.bucket).rstrip("/").rpartition("/")[2].removesuffix(".mvc")
    if not name:
        raise UsageError("the URL ends with no name", hint="name the folder to clone into")
    return name


def _begin(context: Context, branch: str, *, must_exist: bool) -> None:
    """Let the first branch follow that of the remote."""
    history, stamp = context.history, context.stamp()
    tip = history.find_ref(f"{REMOTES}{DEFAULT_REMOTE}/{branch}")
    if tip is None and must_exist:
        raise NotFoundError(f"the remote has no branch {branch!r}")
    history.set_head_branch(branch, stamp=stamp)
    if tip is not None:
        history.update_ref(HEADS + branch, tip, expected=None, message="clone", stamp=stamp)
    set_upstream(context, branch, DEFAULT_REMOTE, HEADS + branch)
