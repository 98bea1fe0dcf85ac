"""publish: a channel moves to a commit, once all of that is on the remote."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, UnsupportedError, UsageError
from mvc.history.names import is_ref_name
from mvc.history.transfer import list_tree
from mvc.operations.sending import send
from mvc.remotes.remote import open_remote
from mvc.remotes.root import Channel, Root
from mvc.remotes.sweeping import plan_until_it_holds
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.recovery import recover

if TYPE_CHECKING:
    from mvc.ids import GitId


_PATIENCE = 8
"""A step sends what it changed, not now and then all steps before it; a push joins them sooner."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What is published under a name.

    Attributes:
        url: of the remote.
        channel: the name.
        commit: what it names now.
        number: how often it has moved.
        previous: what it named before; None if it is new.
        sent_bytes: of packs that were sent for it.
    """

    url: str
    channel: str
    commit: GitId
    number: int
    previous: GitId | None
    sent_bytes: int

    @property
    def is_new(self) -> bool:
        """Whether the channel moved."""
        return self.previous != self.commit


def check_channel(name: str) -> str:
    """Return a name that a channel can have."""
    if name.startswith("-") or not is_ref_name(f"refs/channels/{name}"):
        raise UsageError(f"{name!r} is not a valid name for a channel")
    return name


@holds_sweep_lock
def publish(
    context: Context,
    channel: str,
    revision: str = "HEAD",
    *,
    remote: str | None = None,
    limit_bytes_s: int | None = None,
) -> Publication:
    """Send a commit to a remote and let a channel name it, for those who follow that.

    Args:
        channel: its name, such as ``prod``.
        revision: an older one takes the channel back; its number goes on counting.
        remote: where to.
        limit_bytes_s: how many bytes of packs may travel in a second; any number by default.

    Raises:
        ConflictError: the channel moved meanwhile.
        NotFoundError: there is no such revision or remote.
        StorageError: the store cannot be reached, or refuses.
    """
    recover(context)
    check_channel(channel)
    commit = context.history.resolve_commit(revision)
    there = open_remote(context, remote, limit_bytes_s=limit_bytes_s)
    if there.is_hosted:
        raise UnsupportedError(
            f"{there.settings.url} is a Git host, which has no channels",
            hint="publish to a remote that is a store",
        )
    needed = list_tree(context.history.objects, context.history.read_commit(commit).tree)
    url = str(there.settings.url)

    def attempt() -> Publication:
        root = there.roots.read() or Root()
        old = root.channels.get(channel)
        if old is not None and old.commit == commit:
            return Publication(url, channel, commit, old.number, commit, 0)
        new = Channel(commit, 1 if old is None else old.number + 1)

        def move(now: Root) -> Root:
            if now.channels.get(channel) != old:
                raise ConflictError(
                    f"channel {channel!r} moved on the remote meanwhile",
                    hint="look at what was published, then publish again",
                )
            return replace(now, channels={**now.channels, channel: new})

        sent_bytes = send(
            context, there, root, [], tips=[commit], needed=needed, update=move, patience=_PATIENCE
        )
        previous = None if old is None else old.commit
        return Publication(url, channel, commit, new.number, previous, sent_bytes)

    return plan_until_it_holds(attempt)
