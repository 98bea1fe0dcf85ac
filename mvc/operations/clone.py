"""clone: a repository from a remote, with its default branch checked out."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import ConflictError, NotFoundError, StorageError, UsageError
from mvc.history.host_urls import GitUrl
from mvc.history.names import HEADS, REMOTES
from mvc.operations.checkout import checkout_revision
from mvc.operations.fetch import FetchResult, check_depth, fetch
from mvc.remotes.remote import open_remote
from mvc.remotes.root import Root
from mvc.remotes.settings import (
    DEFAULT_REMOTE,
    check_remote_name,
    list_remotes,
    parse_urls,
    write_remote,
)
from mvc.remotes.tracking import set_upstream
from mvc.workspace.checkout_plan import CheckoutPlan, execute
from mvc.workspace.context import GIT_DIR_NAME, STORE, Context, holds_sweep_lock, init
from mvc.workspace.journal import EntryChange
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.remotes.settings import RemoteUrl
    from mvc.storage.urls import StoreUrl


_UNFINISHED = ".mvc-clone"
"""In the folder of a clone until it is done; says of what, so that only that is gone on with."""


@dataclass(frozen=True, slots=True)
class CloneResult:
    """Where a clone is, and what came."""

    worktree: Path
    fetched: FetchResult


def clone(
    url: str,
    folder: Path | None,
    *,
    content_url: str | None = None,
    origin: str = DEFAULT_REMOTE,
    branch: str | None = None,
    checkout: bool = True,
    content: bool = True,
    depth: int | None = None,
    store: bool = False,
    limit_bytes_s: int | None = None,
) -> CloneResult:
    """Make a repository in a new folder from a remote; see ``mvc.clone``."""
    parsed, apart = parse_urls(url, content_url)
    content = content and not store
    check_remote_name(origin)
    check_depth(depth)
    folder = folder or Path(_name(parsed))
    is_new = not folder.exists()
    mark = folder / _UNFINISHED
    if not is_new and not _can_begin(folder, mark, parsed):
        raise ConflictError(f"{folder} already exists and is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    fs.write_durable(mark, [str(parsed).encode()])
    with _undone_after_errors(folder, mark, is_new=is_new):
        context = init(folder)
        _add_remote(context, origin, parsed, apart, content=content)
        if depth is not None:
            _follow_one(context, origin, branch)
        result = fetch(context, origin, depth=depth, limit_bytes_s=limit_bytes_s)
        name = branch or result.head.removeprefix(HEADS)
        _begin(context, origin, name, must_exist=branch is not None)
        tip = context.history.head().commit if checkout else None
        if tip is not None and content:
            checkout_revision(context, name, force=True)
        elif tip is not None:
            _write_small_files(context, tip)
    if store:
        context.history.config.set(STORE, origin)
    fs.remove_file(mark)
    return CloneResult(context.worktree, result)


@contextlib.contextmanager
def _undone_after_errors(folder: Path, mark: Path, *, is_new: bool) -> Iterator[None]:
    """Leave nothing behind if the block fails, but keep content that came before the store went away."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, StorageError | KeyboardInterrupt) and any(
            (folder / GIT_DIR_NAME).glob("remotes/*/incoming/packs/*.pack")
        ):
            if isinstance(error, StorageError):
                error.hint = error.hint or "clone again: that goes on where this ended"
            raise
        mark.unlink(missing_ok=True)
        shutil.rmtree(folder if is_new else folder / GIT_DIR_NAME, ignore_errors=True)
        raise


def _follow_one(context: Context, origin: str, branch: str | None) -> None:
    """Let a fetch bring one branch only, that to check out by default, as in Git's shallow clones."""
    root = open_remote(context, origin).roots.read()
    ref = HEADS + branch if branch else (root or Root()).head
    if root is not None and ref not in root.refs:
        raise NotFoundError(f"the remote has no branch {ref.removeprefix(HEADS)!r}")
    target = f"{REMOTES}{origin}/{ref.removeprefix(HEADS)}"
    context.history.config.set(f"remote.{origin}.fetch", f"+{ref}:{target}")


def _add_remote(
    context: Context, name: str, url: RemoteUrl, apart: StoreUrl | None, *, content: bool
) -> None:
    if name not in list_remotes(context):
        write_remote(context, name, url, apart)
    for key in () if content else ("promisor", "partial"):
        context.history.config.set(f"remote.{name}.{key}", "true")


@holds_sweep_lock
def _write_small_files(context: Context, tip: GitId) -> None:
    """Check out what has no chunks; of the rest the index says that it need not be in the worktree."""
    small: list[tuple[str, TreeEntry]] = []
    asleep: list[EntryChange] = []
    for path, entry in context.history.read_tree(tip).items():
        if find_manifest(context, entry.blob) is None:
            small.append((path, entry))
        else:
            asleep.append(EntryChange(path, entry.mode, entry.blob, skip_worktree=True))
    plan = CheckoutPlan(tuple(small), entries=tuple(asleep))
    execute(context, plan, context.history.read_index(), None, source=tip)


def _can_begin(folder: Path, mark: Path, url: RemoteUrl) -> bool:
    """Return whether a folder is empty, or what is left of a clone of the same that was cut off."""
    if not folder.is_dir():
        return False
    names = os.listdir(folder)
    if all(name.endswith(fs.TEMP_SUFFIX) for name in names):
        fs.remove_file(*(folder / name for name in names))  # marks that a kill left half written
        return True
    try:
        is_same = mark.read_bytes() == str(url).encode()
    except OSError:
        return False
    config = folder / GIT_DIR_NAME / "config"
    if is_same and not (config.exists() and b"[remote" in config.read_bytes()):
        shutil.rmtree(folder / GIT_DIR_NAME, ignore_errors=True)  # it had just begun
    return is_same


def _name(url: RemoteUrl) -> str:
    """Return what a clone is called: the end of where it comes from."""
    path = url.path if isinstance(url, GitUrl) else url.prefix or url.bucket
    name = path.rstrip("/").rpartition("/")[2].removesuffix(".mvc").removesuffix(".git")
    if not name:
        raise UsageError("the URL ends with no name", hint="name the folder to clone into")
    return name


def _begin(context: Context, origin: str, branch: str, *, must_exist: bool) -> None:
    """Let the first branch follow that of the remote."""
    history, stamp = context.history, context.stamp()
    tip = history.find_ref(f"{REMOTES}{origin}/{branch}")
    if tip is None and must_exist:
        raise NotFoundError(f"the remote has no branch {branch!r}")
    history.set_head_branch(branch, stamp=stamp)
    if tip is not None:
        old = history.find_ref(HEADS + branch)  # of a clone that was cut off
        history.update_ref(HEADS + branch, tip, expected=old, message="clone", stamp=stamp)
    set_upstream(context, branch, origin, HEADS + branch)
