"""clone: a repository from a remote, with its default branch checked out."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from mvc.errors import ConflictError
from mvc.history.refnames import HEADS
from mvc.operations.checkout import checkout_revision
from mvc.operations.fetch import fetch
from mvc.remotes.remote import DEFAULT_REMOTE, add_remote
from mvc.storage.urls import parse_store_url
from mvc.workspace.context import init

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.progress import ByteProgress
    from mvc.workspace.context import Context


def clone(
    url: str,
    folder: Path,
    *,
    branch: str | None = None,
    checkout: bool = True,
    progress: ByteProgress = None,
) -> Context:
    """Make a repository in a new folder from a remote; see ``mvc.clone``."""
    if folder.exists() and (not folder.is_dir() or os.listdir(folder)):
        raise ConflictError(f"{folder} already exists and is not empty")
    parsed = parse_store_url(url)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        context = init(folder)
        add_remote(context, DEFAULT_REMOTE, str(parsed))
        result = fetch(context, DEFAULT_REMOTE, progress=progress)
        name = branch or result.head.removeprefix(HEADS)
        _begin(context, name)
        if checkout and context.history.head().commit is not None:
            checkout_revision(context, name, force=True, progress=progress)
    except BaseException:
        shutil.rmtree(folder if is_new else folder / ".mvc", ignore_errors=True)
        raise
    return context


def _begin(context: Context, branch: str) -> None:
    """Let the first branch follow that of the remote."""
    history, stamp = context.history, context.stamp()
    tip = history.find_ref(f"refs/remotes/{DEFAULT_REMOTE}/{branch}")
    history.set_head_branch(branch, stamp=stamp)
    if tip is not None:
        history.update_ref(HEADS + branch, tip, expected=None, message="clone", stamp=stamp)
    history.set_config(f"branch.{branch}.remote", DEFAULT_REMOTE)
    history.set_config(f"branch.{branch}.merge", HEADS + branch)
