"""branch, tag: names for commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.history.refnames import HEADS, TAGS, branch_ref, tag_ref
from mvc.workspace.context import holds_sweep_lock
from mvc.workspace.recovery import recover

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class RefInfo:
    """A branch or tag.

    Attributes:
        name: short name.
        commit: the commit it points to (through the tag object of an annotated tag).
        is_current: whether HEAD is on it.
        subject: subject of the commit; empty if stock Git tagged something else.
    """

    name: str
    commit: GitId
    is_current: bool
    subject: str


def _list(context: Context, prefix: str) -> list[RefInfo]:
    history = context.history
    current = history.head().branch
    found: list[RefInfo] = []
    for ref in sorted(history.list_refs(prefix)):
        name = ref.removeprefix(prefix)
        try:
            commit = history.resolve(ref)
        except NotFoundError:
            continue  # deleted since they were listed
        is_current = prefix == HEADS and name == current
        found.append(RefInfo(name, commit, is_current, _subject(context, ref)))
    return found


def _subject(context: Context, ref: str) -> str:
    history = context.history
    try:
        return history.read_commit(history.resolve_commit(ref)).subject
    except NotFoundError:
        return ""  # a stock Git may tag anything


def list_branches(context: Context) -> list[RefInfo]:
    """Return all branches by name."""
    return _list(context, HEADS)


def list_tags(context: Context) -> list[RefInfo]:
    """Return all tags by name."""
    return _list(context, TAGS)


@holds_sweep_lock
def create_branch(
    context: Context, name: str, start: str = "HEAD", *, force: bool = False
) -> GitId:
    """Make a branch at a revision; HEAD stays where it is."""
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
    return commit


def delete_branch(context: Context, name: str, *, force: bool = False) -> GitId:
    """Delete a branch; return the commit it pointed to."""
    recover(context)  # an interrupted checkout may be on its way to the branch
    history = context.history
    commit = history.find_ref(HEADS + name)
    if commit is None:
        raise NotFoundError(f"no branch {name!r}", hint='"mvc branch" lists them')
    head = history.head()
    if head.branch == name:
        raise ConflictError(f"branch {name!r} is checked out", hint="switch to another one first")
    merged = head.commit is not None and history.is_ancestor(commit, head.commit)
    if not merged and not force:
        raise ConflictError(
            f"branch {name!r} is not merged into HEAD",
            hint=f'run "mvc branch -D {name}" to delete it anyway; its tip is {commit}',
        )
    history.delete_ref(HEADS + name, expected=commit, stamp=context.stamp())
    return commit


@holds_sweep_lock
def rename_branch(context: Context, old: str, new: str, *, force: bool = False) -> None:
    """Rename a branch with its reflog; HEAD follows."""
    recover(context)  # an interrupted checkout may be on its way to the branch
    history = context.history
    branch_ref(new)
    is_unborn = history.head().branch == old and history.head().commit is None
    if history.find_ref(HEADS + old) is None and not is_unborn:
        raise NotFoundError(f"no branch {old!r}", hint='"mvc branch" lists them')
    if old == new:
        return
    existing = history.find_ref(HEADS + new)
    if existing is not None:
        if not force or history.head().branch == new:
            raise ConflictError(f"branch {new!r} already exists")
        history.delete_ref(HEADS + new, expected=existing, stamp=context.stamp())
    history.rename_branch(old, new, stamp=context.stamp())


@holds_sweep_lock
def create_tag(
    context: Context,
    name: str,
    revision: str = "HEAD",
    *,
    message: str | None = None,
    force: bool = False,
) -> GitId:
    """Tag a commit; with a message the tag is an annotated one."""
    history = context.history
    tag_ref(name)
    if message is not None and not message.strip():
        raise UsageError(
            "an annotated tag needs a message", hint="leave `message` out to make a plain tag"
        )
    commit, existing = history.resolve(revision), history.find_ref(TAGS + name)
    if existing is not None and not force:
        raise ConflictError(f"tag {name!r} already exists", hint="`force` moves it")
    stamp = context.stamp()
    history.create_tag(name, commit, message=message, stamp=stamp, expected=existing)
    return commit


def delete_tag(context: Context, name: str) -> GitId:
    """Delete a tag; return the commit or tag object it pointed to."""
    found = context.history.find_ref(TAGS + name)
    if found is None:
        raise NotFoundError(f"no tag {name!r}", hint='"mvc tag" lists them')
    context.history.delete_ref(TAGS + name, expected=found, stamp=context.stamp())
    return found
