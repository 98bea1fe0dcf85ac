"""remote: names for places to push to and fetch from."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError
from mvc.history.host_urls import is_git_url
from mvc.history.names import HEADS, REMOTES
from mvc.operations.fetch import RefFetch, find_gone, prune_refs
from mvc.remotes.checked import check_store
from mvc.remotes.remote import Remote, open_remote
from mvc.remotes.settings import (
    check_remote_name,
    list_remotes,
    parse_urls,
    write_remote,
)
from mvc.remotes.tracking import Upstream, find_upstream

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.remotes.root import Channel, Root
    from mvc.remotes.settings import RemoteSettings
    from mvc.storage.probe import ProbeReport
    from mvc.workspace.context import Context


def add(context: Context, name: str, url: str, content_url: str | None = None) -> RemoteSettings:
    """Add a remote; nothing is asked of it yet.

    Args:
        name: such as ``origin``.
        url: as of ``mvc.clone``; credentials are never part of it.
        content_url: if ``url`` is a repository on a Git host: the store that has the content of
            checkpoints. Without one, only history without checkpoints can be pushed there.

    Raises:
        ConflictError: there is one of that name.
        UsageError: not a valid name or URL.
    """
    check_remote_name(name)
    if name in list_remotes(context):
        raise ConflictError(
            f"remote {name!r} already exists", hint='"mvc remote set-url" changes it'
        )
    return write_remote(context, name, *parse_urls(url, content_url, context.worktree))


def set_url(
    context: Context, name: str, url: str, content_url: str | None = None
) -> RemoteSettings:
    """Let a remote be elsewhere; from one Git host to another, the store of its content stays.

    Raises:
        NotFoundError: there is none of that name.
        UsageError: not a valid URL.
    """
    _require(context, name)
    old = list_remotes(context)[name]
    if content_url is None and old.content is not None and is_git_url(url):
        content_url = str(old.content)  # a host moves, its store stays
    parsed = parse_urls(url, content_url, context.worktree)
    shutil.rmtree(Remote(context, old).folder, ignore_errors=True)
    return write_remote(context, name, *parsed)


def remove(context: Context, name: str) -> None:
    """Remove a remote and all that follows it here; nothing changes there.

    Raises:
        NotFoundError: there is none of that name.
    """
    _require(context, name)
    _check_unneeded(context, name)
    folder = open_remote(context, name).folder
    history, stamp = context.history, context.stamp()
    for ref, commit in history.list_refs(f"{REMOTES}{name}/").items():
        history.delete_ref(ref, expected=commit, stamp=stamp)
    for key, value in history.config.read().items():
        section, _, rest = key.partition(".")
        if section == "remote" and rest.rpartition(".")[0] == name:
            history.config.unset(key)
        elif section == "branch" and rest.endswith(".remote") and value == name:
            history.config.unset(key)
            with contextlib.suppress(NotFoundError):
                history.config.unset(key.removesuffix("remote") + "merge")
    shutil.rmtree(folder, ignore_errors=True)


def rename(context: Context, old: str, new: str) -> RemoteSettings:
    """Rename a remote, with all that follows it.

    Raises:
        NotFoundError: there is none of the old name.
        ConflictError: there is one of the new name.
    """
    _require(context, old)
    check_remote_name(new)
    if new in list_remotes(context):
        raise ConflictError(f"remote {new!r} already exists")
    history, stamp = context.history, context.stamp()
    config = history.config.read()
    refs = history.list_refs(f"{REMOTES}{old}/")
    source, target = open_remote(context, old).folder, REMOTES + new + "/"
    for key, value in config.items():
        section, _, rest = key.partition(".")
        if section == "remote" and rest.rpartition(".")[0] == old:
            shown = value.replace(f"{REMOTES}{old}/", target)
            history.config.set(f"remote.{new}.{rest.rpartition('.')[2]}", shown)
            history.config.unset(key)
        elif section == "branch" and rest.endswith(".remote") and value == old:
            history.config.set(key, new)
    for ref, commit in refs.items():
        name = target + ref.removeprefix(f"{REMOTES}{old}/")
        history.update_ref(name, commit, expected=None, message="remote: renamed", stamp=stamp)
        history.delete_ref(ref, expected=commit, stamp=stamp)
    shutil.rmtree(source, ignore_errors=True)  # a cache
    return list_remotes(context)[new]


def _require(context: Context, name: str) -> None:
    if name not in list_remotes(context):
        raise NotFoundError(
            f"the repository has no remote {name!r}", hint='"mvc remote" lists them'
        )


def _check_unneeded(context: Context, name: str) -> None:
    """Check that nothing that history needs is on a remote alone, as far as is known here."""
    if not list_remotes(context)[name].is_promisor:
        return
    from mvc.upkeep.sweep import mark  # noqa: PLC0415  brings NumPy, needed rarely

    needed = mark(context, grace_s=0, expiry=None).needed
    missing = len(needed) - int(context.here.copies().mask(needed).sum())
    if missing:
        raise ConflictError(
            f"{missing:,} chunks that history needs are on {name!r} and not here",
            hint=f'"mvc fetch {name} --content REV" brings those of a revision; '
            f'"mvc config --unset remote.{name}.promisor" gives them up',
        )


def check(context: Context, remote: str | None = None) -> ProbeReport:
    """Ask the store of a remote what it keeps of its promises, and remember if it is enough.

    Small objects are written below ``check/``, and removed. A push asks a store that was not
    checked for what refs need, by itself.

    Raises:
        NotFoundError: there is no such remote.
        StorageError: it cannot be reached, or does not let anything be written.
    """
    return check_store(context, open_remote(context, remote).settings)


@dataclass(frozen=True, slots=True)
class RemoteRefs:
    """The refs of a remote.

    Attributes:
        head: full name of the branch that a clone checks out.
        refs: full name → id of commit or tag.
        channels: name → what is published there, and how often it has moved.
    """

    head: str
    refs: dict[str, GitId]
    channels: dict[str, Channel]


def list_refs_there(context: Context, remote: str | None = None) -> RemoteRefs:
    """Return the refs of a remote as they are there now, and the branch that a clone checks out.

    Raises:
        NotFoundError: there is no such remote, or nothing was pushed to it.
        StorageError: it cannot be reached.
    """
    _, root = _look(context, remote)
    channels = dict(sorted(root.channels.items()))
    return RemoteRefs(root.head, dict(sorted(root.refs.items())), channels)


@dataclass(frozen=True, slots=True)
class RemoteState:
    """A remote as it is now, beside what is known of it here.

    Attributes:
        url: where it is.
        head: the branch that a clone checks out.
        branches: branch there → ``tracked``, ``new`` (not fetched yet) or ``gone`` (but known here).
        followers: branch here → what of this remote it follows.
        channels: name → what is published there, and how often it has moved.
    """

    url: str
    head: str
    branches: dict[str, str]
    followers: dict[str, Upstream]
    channels: dict[str, Channel]


def show(context: Context, remote: str | None = None) -> RemoteState:
    """Compare a remote as it is now with what is known of it here.

    Raises:
        NotFoundError: there is no such remote, or nothing was pushed to it.
        StorageError: it cannot be reached.
    """
    there, root = _look(context, remote)
    specs, known = there.settings.fetch, context.history.list_refs()
    branches = {
        name.removeprefix(HEADS): "tracked"
        if any(one.map(name) in known for one in specs)
        else "new"
        for name in root.refs
        if name.startswith(HEADS)
    }
    gone = find_gone(context, root, specs).values()
    branches |= {name.removeprefix(HEADS): "gone" for name in gone}
    heads = (name.removeprefix(HEADS) for name in context.history.list_refs(HEADS))
    follows = {name: find_upstream(context, name) for name in heads}
    return RemoteState(
        str(there.settings.url),
        root.head.removeprefix(HEADS),
        dict(sorted(branches.items())),
        {name: one for name, one in follows.items() if one and one.remote == there.settings.name},
        dict(sorted(root.channels.items())),
    )


def prune(context: Context, remote: str | None = None) -> list[RefFetch]:
    """Delete the refs here that follow what is gone on a remote; return them.

    Raises:
        NotFoundError: there is no such remote, or nothing was pushed to it.
        StorageError: it cannot be reached.
    """
    there, root = _look(context, remote)
    return prune_refs(context, root, there.settings.fetch)


def _look(context: Context, remote: str | None) -> tuple[Remote, Root]:
    there = open_remote(context, remote)
    return there, there.read_root()
