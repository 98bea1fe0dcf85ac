"""branch, tag: names for commits."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.history.names import HEADS, REMOTES, TAGS, branch_ref, tag_ref
from mvc.remotes.tracking import find_upstream, follow, set_upstream, unset_upstream
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.recovery import recover

if TYPE_CHECKING:
    from mvc.ids import GitId


@dataclass(frozen=True, slots=True)
class RefInfo:
    """A branch or tag.

    Attributes:
        name: short name.
        commit: the commit it points to (through the tag object of an annotated tag).
        is_current: whether HEAD is on it.
        subject: subject of the commit; empty if stock Git tagged something else.
        is_alias: whether it is a tag that is meant to move, ``@NAME``.
    """

    name: str
    commit: GitId
    is_current: bool
    subject: str
    is_alias: bool = False


def list_branches(context: Context, *, remote: bool = False) -> list[RefInfo]:
    """Return all branches, or with ``remote`` those of remotes, as last heard of."""
    return list_refs(context, REMOTES if remote else HEADS)


def list_tags(context: Context) -> list[RefInfo]:
    """Return all tags."""
    return list_refs(context, TAGS)


def list_refs(context: Context, prefix: str = HEADS) -> list[RefInfo]:
    """Return all branches, or all refs with another prefix, by name."""
    history = context.history
    head = history.head()
    current = None if head.branch is None else HEADS + head.branch
    found: list[RefInfo] = []
    for ref in sorted(history.list_refs(prefix)):
        with contextlib.suppress(NotFoundError):  # deleted since they were listed
            target, commit = history.resolve(ref), history.find_commit(ref)
            subject = "" if commit is None else history.read_commit(commit).subject
            name, is_alias = ref.removeprefix(prefix), history.is_alias(ref)
            found.append(RefInfo(name, target, ref == current, subject, is_alias))
    return found


@holds_sweep_lock
def create_branch(
    context: Context, name: str, start: str = "HEAD", *, force: bool = False
) -> GitId:
    """Make a branch without going there; return its commit.

    Raises:
        ConflictError: it exists, and not ``force``; or it is checked out.
    """
    recover(context)  # an interrupted checkout may be on its way to the branch
    history = context.history
    ref = branch_ref(name)
    commit = history.resolve(start)
    old = history.find_ref(ref)
    if old is not None and not force:
        raise ConflictError(f"branch {name!r} already exists", hint="`force` moves it")
    if old is not None and history.head().branch == name:
        raise ConflictError(
            f"branch {name!r} is checked out here", hint='"mvc reset" moves the current branch'
        )
    verb = "Created from" if old is None else "Reset to"
    history.update_ref(
        ref, commit, expected=old, message=f"branch: {verb} {start}", stamp=context.stamp()
    )
    follow(context, name, start)
    return commit


def delete_branch(context: Context, name: str, *, force: bool = False) -> GitId:
    """Delete a branch (an unmerged one with ``force``); return the commit it pointed to.

    Raises:
        ConflictError: it is checked out, or not merged and not ``force``.
    """
    recover(context)  # an interrupted checkout may be on its way to the branch
    history = context.history
    commit, head = history.get_branch(name), history.head()
    if head.branch == name:
        raise ConflictError(f"branch {name!r} is checked out", hint="switch to another one first")
    upstream = find_upstream(context, name)
    into, what = head.commit, "HEAD"
    if upstream is not None and upstream.commit is not None:
        into, what = upstream.commit, f"{upstream.remote}/{upstream.branch}"
    merged = into is not None and history.is_ancestor(commit, into)
    if not merged and not force:
        raise ConflictError(
            f"branch {name!r} is not merged into {what}",
            hint=f'run "mvc branch -D {name}" to delete it anyway; its tip is {commit}',
        )
    history.delete_ref(HEADS + name, expected=commit, stamp=context.stamp())
    unset_upstream(context, name)
    return commit


@holds_sweep_lock
def rename_branch(context: Context, old: str, new: str, *, force: bool = False) -> None:
    """Rename a branch with its reflog; HEAD follows.

    Raises:
        ConflictError: ``new`` exists, and not ``force``; or it is checked out.
    """
    recover(context)  # an interrupted checkout may be on its way to the branch
    context.history.rename_branch(old, new, stamp=context.stamp(), force=force)
    if old != new:
        upstream = find_upstream(context, old)
        unset_upstream(context, new)
        if upstream is not None:
            set_upstream(context, new, upstream.remote, HEADS + upstream.branch)
            unset_upstream(context, old)


@holds_sweep_lock
def create_tag(
    context: Context,
    name: str,
    revision: str = "HEAD",
    *,
    message: str | None = None,
    force: bool = False,
) -> GitId:
    """Tag a commit, with an annotated tag if there is a message; return the commit.

    With ``force`` a tag that exists is moved, and from then on it is an alias: the log shows it as
    ``@name``, and ``name@{1}`` is where it was.

    Raises:
        ConflictError: the tag exists, and not ``force``.
        UsageError: not a valid tag name, or an empty message.
    """
    history = context.history
    tag_ref(name)
    if message is not None and not message.strip():
        raise UsageError(
            "an annotated tag needs a message", hint="leave `message` out to make a plain tag"
        )
    commit, existing = history.resolve(revision), history.find_ref(TAGS + name)
    if existing is not None and not force:
        raise ConflictError(f"tag {name!r} already exists", hint="`force` moves it")
    if existing == commit and message is None and force and history.is_alias(TAGS + name):
        return commit  # its log tells of moves only
    stamp = context.stamp()
    history.create_tag(
        name,
        commit,
        message=message,
        stamp=stamp,
        expected=existing,
        reason=f"tag: moved to {revision}",
        is_alias=force,
    )
    return commit


def tag_message(context: Context, name: str) -> str | None:
    """Return the message of an annotated tag, or None for any other name.

    Raises:
        FormatError: the tag is damaged.
    """
    return context.history.find_tag_message(name)


def delete_tag(context: Context, name: str) -> GitId:
    """Delete a tag; return the commit or tag object it pointed to.

    Raises:
        NotFoundError: no such tag.
    """
    found = context.history.find_ref(TAGS + name)
    if found is None:
        raise NotFoundError(f"no tag {name!r}", hint='"mvc tag" lists them')
    context.history.delete_ref(TAGS + name, expected=found, stamp=context.stamp())
    return found
