"""remote: names for places to push to and fetch from; which branch follows which there."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError
from mvc.history.refnames import HEADS
from mvc.remotes.remote import (
    REMOTES,
    Remote,
    check_remote_name,
    list_remotes,
    open_remote,
    parse_url,
    write_remote,
)

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.remotes.remote import RemoteSettings
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class Upstream:
    """The branch of a remote that a branch here follows.

    Attributes:
        remote: name of the remote.
        branch: name of the branch there.
        ref: full name of the ref here that remembers where it was.
        commit: where it was when last heard of; None if it is not known.
        ahead: commits here that are not there.
        behind: commits there that are not here.
    """

    remote: str
    branch: str
    ref: str
    commit: GitId | None
    ahead: int = 0
    behind: int = 0


def add(context: Context, name: str, url: str) -> RemoteSettings:
    """Add a remote."""
    check_remote_name(name)
    if name in list_remotes(context):
        raise ConflictError(
            f"remote {name!r} already exists", hint='"mvc remote set-url" changes it'
        )
    return write_remote(context, name, parse_url(context, url))


def set_url(context: Context, name: str, url: str) -> RemoteSettings:
    """Give a remote another URL; what was known of the old place is forgotten."""
    _require(context, name)
    parsed = parse_url(context, url)
    shutil.rmtree(Remote(context, list_remotes(context)[name]).folder, ignore_errors=True)
    return write_remote(context, name, parsed)


def remove(context: Context, name: str) -> None:
    """Remove a remote, the refs that follow it, and what branches say of it."""
    _require(context, name)
    folder = open_remote(context, name).folder
    history, stamp = context.history, context.stamp()
    for ref, commit in history.list_refs(f"{REMOTES}{name}/").items():
        history.delete_ref(ref, expected=commit, stamp=stamp)
    for key, value in history.read_config().items():
        section, _, rest = key.partition(".")
        if section == "remote" and rest.rpartition(".")[0] == name:
            history.unset_config(key)
        elif section == "branch" and rest.endswith(".remote") and value == name:
            history.unset_config(key)
            with contextlib.suppress(NotFoundError):
                history.unset_config(key.removesuffix("remote") + "merge")
    shutil.rmtree(folder, ignore_errors=True)


def rename(context: Context, old: str, new: str) -> RemoteSettings:
    """Rename a remote, with the refs that follow it and what branches say of it."""
    _require(context, old)
    check_remote_name(new)
    if new in list_remotes(context):
        raise ConflictError(f"remote {new!r} already exists")
    history, stamp = context.history, context.stamp()
    config = history.read_config()
    refs = history.list_refs(f"{REMOTES}{old}/")
    source, target = open_remote(context, old).folder, REMOTES + new + "/"
    for key, value in config.items():
        section, _, rest = key.partition(".")
        if section == "remote" and rest.rpartition(".")[0] == old:
            shown = value.replace(f"{REMOTES}{old}/", target)
            history.set_config(f"remote.{new}.{rest.rpartition('.')[2]}", shown)
            history.unset_config(key)
        elif section == "branch" and rest.endswith(".remote") and value == old:
            history.set_config(key, new)
    for ref, commit in refs.items():
        name = target + ref.removeprefix(f"{REMOTES}{old}/")
        history.update_ref(name, commit, expected=None, message="remote: renamed", stamp=stamp)
        history.delete_ref(ref, expected=commit, stamp=stamp)
    if source.is_dir():
        source.rename(source.parent / new)
    return list_remotes(context)[new]


def _require(context: Context, name: str) -> None:
    if name not in list_remotes(context):
        raise NotFoundError(
            f"the repository has no remote {name!r}", hint='"mvc remote" lists them'
        )


def list_refs_there(context: Context, remote: str | None = None) -> tuple[str, dict[str, GitId]]:
    """Return the branch that a clone checks out, and full name → id of all refs of a remote."""
    there = open_remote(context, remote)
    root = there.roots.read()
    if root is None:
        raise NotFoundError(f"nothing was pushed to {there.settings.url} yet")
    return root.head, dict(sorted(root.refs.items()))


def set_upstream(context: Context, branch: str, remote: str, target: str) -> None:
    """Let a branch follow one of a remote, given its full name there."""
    context.history.set_config(f"branch.{branch}.remote", remote)
    context.history.set_config(f"branch.{branch}.merge", target)


def find_upstream(context: Context, branch: str | None) -> Upstream | None:
    """Return what a branch follows, and how far the two are apart, or None."""
    history = context.history
    if branch is None:
        return None
    remote = history.get_config(f"branch.{branch}.remote")
    target = history.get_config(f"branch.{branch}.merge")
    if remote is None or target is None or not target.startswith(HEADS):
        return None
    settings = list_remotes(context).get(remote)
    found = (spec.map(target) for spec in (settings.fetch if settings else ()))
    ref = next((one for one in found if one is not None), None)
    if ref is None:
        return None
    there, here = history.find_ref(ref), history.find_ref(HEADS + branch)
    name = target.removeprefix(HEADS)
    if there is None or here is None or there == here:
        return Upstream(remote, name, ref, there)
    return Upstream(
        remote, name, ref, there, _count(context, here, there), _count(context, there, here)
    )


def _count(context: Context, tip: GitId, other: GitId) -> int:
    """Return how many commits one tip has and the other lacks."""
    from mvc.remotes.history import list_new  # noqa: PLC0415  most branches are where they were

    return sum(kind == "commit" for _, kind in list_new(context, [tip], [other]))
