"""The handle of a remote that is configured, or given by its URL."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError, UsageError
from mvc.history.host_urls import GitUrl
from mvc.remotes.remote_packs import RemotePacks
from mvc.remotes.root_store import RootStore
from mvc.remotes.settings import DEFAULT_REMOTE, RemoteSettings, list_remotes, parse_urls
from mvc.storage.limited import RateLimit, limit_storage
from mvc.storage.opening import open_store
from mvc.storage.urls import StoreOptions
from mvc.workspace.settings import check_trust

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.remotes.hosted import HostedRoots
    from mvc.remotes.root import Root
    from mvc.storage.protocol import SharedStorage
    from mvc.workspace.context import Context

_FOLDER = "remotes"
_UNNAMED = "unnamed"


class Remote:
    """A remote to push to and fetch from; nothing is asked of it before it is used."""

    def __init__(
        self, context: Context, settings: RemoteSettings, limit_bytes_s: int | None = None
    ) -> None:
        self.settings = settings
        self._limit_bytes_s = limit_bytes_s
        self.context = context

    @property
    def folder(self) -> Path:
        """What is kept here about it: a cache."""
        return self.context.git_dir / _FOLDER / (self.settings.name or _UNNAMED)

    @cached_property
    def storage(self) -> SharedStorage:
        """Its store; UsageError if it is a Git host that has none."""
        url = self.settings.store
        if url is None:
            raise UsageError(
                f"{self.settings.url} is a Git host: it takes history, but no content of checkpoints",
                hint='name the store that has it: "mvc clone URL --content STORE", '
                'or "mvc remote set-url NAME URL --content STORE"',
            )
        storage = open_store(url, self.settings.options)
        if self._limit_bytes_s is None:
            return storage
        return limit_storage(storage, RateLimit(self._limit_bytes_s))

    @property
    def is_hosted(self) -> bool:
        """Whether its history is on a Git host."""
        return isinstance(self.settings.url, GitUrl)

    @cached_property
    def hosted(self) -> HostedRoots:
        """What a Git host and the store of its content hold together."""
        from mvc.remotes.hosted import HostedRoots  # noqa: PLC0415  most remotes are stores

        settings = self.settings
        assert isinstance(settings.url, GitUrl)
        content = RootStore(self.storage, is_hosted=True) if settings.content else None
        return HostedRoots(settings.url, content, timeout_s=settings.options.timeout_s)

    @cached_property
    def roots(self) -> RootStore | HostedRoots:
        """Its root."""
        return self.hosted if self.is_hosted else RootStore(self.storage)

    def read_root(self, hint: str | None = None) -> Root:
        """Return what its root says now; NotFoundError with the hint if nothing was pushed to it yet."""
        root = self.roots.read()
        if root is None:
            raise NotFoundError(f"nothing was pushed to {self.settings.url} yet", hint=hint)
        return root

    @cached_property
    def packs(self) -> RemotePacks:
        """Its packs."""
        return RemotePacks(self.storage, self.folder / "indexes", self.context.here.storage)


def open_remote(
    context: Context, name: str | None = None, *, limit_bytes_s: int | None = None
) -> Remote:
    """Return a remote by its name, URL or path; ``origin``, or the only one, by default.

    With a limit no more bytes of packs travel in a second.
    """
    if limit_bytes_s is not None and limit_bytes_s < 1:
        raise UsageError(f"{limit_bytes_s} bytes per second is not a valid rate")
    check_trust(context.history.config.read_all())
    remotes = list_remotes(context)
    if name is None:
        name = (
            DEFAULT_REMOTE
            if DEFAULT_REMOTE in remotes or len(remotes) != 1
            else next(iter(remotes))
        )
    if name in remotes:
        return Remote(context, remotes[name], limit_bytes_s)
    if "/" not in name and ":" not in name:
        known = f"it has {', '.join(remotes)}" if remotes else "it has none"
        raise NotFoundError(
            f"the repository has no remote {name!r}; {known}",
            hint=f'"mvc remote add {name} URL" adds it',
        )
    url, _ = parse_urls(name, None, context.worktree)
    return Remote(context, RemoteSettings(None, url, (), StoreOptions()), limit_bytes_s)
