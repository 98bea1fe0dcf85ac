"""A repository whose content is on a store: each commit is pushed there, in the same command.

What is in ``.mvc`` is the history, content that is not there yet, and the newest of the rest, for as much as
``cache.size`` allows: against that the next commit is stored as differences. What is not here is read from
the store, as in a clone without content. A commit whose push fails stands, and its content stays here until a
later push brings it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.copies import NONE, StoredCopies
from mvc.errors import ConflictError, MvcError, NotFoundError, UsageError
from mvc.history.names import HEADS, REMOTES
from mvc.history.refspecs import parse_refspec
from mvc.operations.push import push_specs
from mvc.remotes.checked import require_safe_refs
from mvc.remotes.pushed import Pushed, look_up
from mvc.remotes.remote import open_remote
from mvc.remotes.settings import DEFAULT_REMOTE, list_remotes, parse_urls, write_remote
from mvc.remotes.tracking import find_upstream, set_upstream
from mvc.scaling.results import SCALE_REF
from mvc.storage.urls import StoreUrl
from mvc.upkeep.retention import DIVERGED
from mvc.upkeep.sweep import upkeep_lock
from mvc.workspace.context import STORE, Context
from mvc.workspace.settings import CACHE_SIZE, parse_cache_size
from mvc.workspace.verdicts import HEALTHY_REF

if TYPE_CHECKING:
    from mvc.formats.pack_index import PackIndex
    from mvc.ids import GitId, PackId


def keep_on_store(context: Context, url: str) -> None:
    """Keep content on a store from now on; see ``Repo.init``."""
    parsed, _ = parse_urls(url, None, base=context.worktree)
    if not isinstance(parsed, StoreUrl):
        raise UsageError(
            f"{parsed} is a Git host, which takes no content of checkpoints",
            hint=f'add it with "mvc remote add {DEFAULT_REMOTE} URL --content STORE", '
            f'then "mvc config {STORE} {DEFAULT_REMOTE}"',
        )
    known = list_remotes(context).get(DEFAULT_REMOTE)
    if known is not None and str(known.url) != str(parsed):
        raise ConflictError(
            f"the repository has a remote {DEFAULT_REMOTE!r} already, which is {known.url}",
            hint=f'"mvc config {STORE} NAME" names the remote that content is kept on',
        )
    there = open_remote(context, str(parsed))
    root = there.roots.read()
    if known is None and root is not None:
        raise ConflictError(
            f"{parsed} has a history already", hint=f'"mvc clone --store {parsed}" goes on with it'
        )
    require_safe_refs(context, there.settings, has_root=root is not None)
    if known is None:
        write_remote(context, DEFAULT_REMOTE, parsed)
    begin(context, DEFAULT_REMOTE)
    branch = context.history.head().branch
    if branch is not None:
        set_upstream(context, branch, DEFAULT_REMOTE, HEADS + branch)


def begin(context: Context, remote: str) -> None:
    """Let a remote have the content from now on, and reads take it from there."""
    if remote not in list_remotes(context):
        raise NotFoundError(
            f"the repository has no remote {remote!r}", hint='"mvc remote add NAME URL" adds one'
        )
    for key in (f"remote.{remote}.promisor", f"remote.{remote}.partial"):
        context.history.config.set(key, "true")
    context.history.config.set(STORE, remote)
    context.forget_settings()


def send_commit(context: Context, branch: str | None) -> str | None:
    """Push what was just committed, if a store has the content; return why it is not there.

    A branch that was moved back here, as a rollback does, moves back there as well, but only from where
    it was here before: what others pushed is never given up. What it leaves gets a name there, for content
    that nothing names would go, and reflogs here still lead to it.
    """
    remote = context.history.config.get(STORE)
    if remote is None:
        return None
    if branch is None:
        return "HEAD is on no branch"
    name = HEADS + branch
    try:
        others = _find_abandoned(context, remote, branch)
        old = context.history.find_ref(f"{REMOTES}{remote}/{branch}")
        lease: dict[str, GitId | None] | bool = False
        specs = [name, *others]
        if old is not None and _was_left(context, name, old):
            lease = {**dict.fromkeys(others), name: old}
            if not _is_kept(context, old, specs):
                left = f"{DIVERGED}{branch}/{old[:10]}"
                lease[HEADS + left] = context.history.find_ref(f"{REMOTES}{remote}/{left}")
                specs.append(f"{old}:{HEADS}{left}")
        push_specs(
            context,
            open_remote(context, remote),
            [parse_refspec(spec) for spec in specs],
            lease=lease,
            set_upstream=find_upstream(context, branch) is None,
            notes=[HEALTHY_REF, SCALE_REF],
        )
    except MvcError as error:
        return error.message if error.hint is None else f"{error.message} ({error.hint})"
    except OSError as error:  # the commit stands, whatever it is
        return str(error)
    with contextlib.suppress(OSError, MvcError):  # the next commit tries again
        trim(context, remote)
    return None


def _find_abandoned(context: Context, remote: str, branch: str) -> list[str]:
    """Return the branches that rollbacks of one have left, and the remote has not."""
    there = f"{REMOTES}{remote}/"
    refs = context.history.list_refs(f"{HEADS}{DIVERGED}{branch}/")
    return [
        ref for ref in refs if context.history.find_ref(there + ref.removeprefix(HEADS)) is None
    ]


def _is_kept(context: Context, old: GitId, names: list[str]) -> bool:
    """Return whether branches lead to a commit, or have just all files of it, as after an amend."""
    history = context.history
    tips = [tip for tip in map(history.find_ref, names) if tip is not None]
    files = history.read_tree(old)
    return any(history.is_ancestor(old, tip) or history.read_tree(tip) == files for tip in tips)


def _was_left(context: Context, name: str, old: GitId) -> bool:
    """Return whether a branch was moved away here from a commit that it had here."""
    tip = context.history.find_ref(name)
    if tip is None or context.history.is_ancestor(old, tip):
        return False
    return any(old in (entry.old, entry.new) for entry in context.history.read_reflog(name))


def trim(context: Context, remote: str) -> None:
    """Remove the oldest content here that the store has, if it is more than ``cache.size``.

    Nothing is removed while others write: the next commit does it.
    """
    limit_bytes = parse_cache_size(context.history.config.get(CACHE_SIZE))
    if sum(context.list_packs().packs.values()) <= limit_bytes:
        return
    pushed = look_up(context, remote)
    pushed.let_promise(context)
    with context.history.sweep_alone(wait=False), upkeep_lock(context):
        gone = _choose_oldest(context, pushed, limit_bytes - limit_bytes // 8)
        context.here.remove_packs(gone)


def _choose_oldest(context: Context, pushed: Pushed, goal_bytes: int) -> set[PackId]:
    """Return packs of which the remote has all, oldest first, and those that could not be read then."""
    indexes = {index.pack: index for index in context.here.copies().indexes}
    made_s = context.list_packs().made_s
    left_bytes = sum(index.pack_size_bytes for index in indexes.values())
    gone: set[PackId] = set()
    for pack in sorted(indexes, key=lambda pack: (made_s.get(pack, 0.0), pack)):
        if left_bytes <= goal_bytes:
            break
        if pack in gone:
            continue
        going = _with_users(indexes, gone | {pack})
        if all(not len(pushed.find_lacking(indexes[pack].ids)) for pack in going - gone):
            left_bytes -= sum(indexes[pack].pack_size_bytes for pack in going - gone)
            gone = going
    return gone


def _with_users(indexes: dict[PackId, PackIndex], gone: set[PackId]) -> set[PackId]:
    """Return packs that go, with those whose chunks could not be read here without them."""
    while True:
        copies = StoredCopies([index for pack, index in indexes.items() if pack not in gone])
        lost = copies.chosen[copies.chunks] == NONE
        torn = {copies.indexes[number].pack for number in np.unique(copies.packs[lost]).tolist()}
        if not torn:
            return gone
        gone = gone | torn
