"""What the config says of remotes: where they are, what is fetched from them, how they are reached."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UsageError
from mvc.history.config import Config, is_true, last_value
from mvc.history.host_urls import GitUrl, is_git_url, parse_git_url
from mvc.history.refspecs import Refspec, default_fetch, fetch_specs
from mvc.storage.urls import (
    DEFAULT_TIMEOUT_S,
    StoreOptions,
    StoreUrl,
    has_store_scheme,
    hide_secrets,
    parse_store_url,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.workspace.context import Context

RemoteUrl = StoreUrl | GitUrl
DEFAULT_REMOTE = "origin"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_LONGEST_TIMEOUT_S = 3600
_KEYS = (
    "url",
    "fetch",
    "endpoint",
    "region",
    "timeout",
    "content",
    "checked",
    "promisor",
    "partial",
)


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """What the config says of a remote.

    Attributes:
        name: its name; None for one that is given by its URL alone.
        url: where it is: a store, or a repository on a Git host.
        fetch: what a fetch brings and where it goes.
        options: how its store is reached.
        is_checked: whether the store is known to keep what refs need.
        is_promisor: whether reads take from it what is not here.
        is_partial: whether a fetch brings no content.
        content: of a Git host: the store that has the content, if there is one.
    """

    name: str | None
    url: RemoteUrl
    fetch: tuple[Refspec, ...]
    options: StoreOptions
    is_checked: bool = False
    is_promisor: bool = False
    is_partial: bool = False
    content: StoreUrl | None = None

    @property
    def store(self) -> StoreUrl | None:
        """Where the content is; None if nowhere."""
        return self.url if isinstance(self.url, StoreUrl) else self.content

    @property
    def place(self) -> str:
        """Where the store is: the URL, and the server if one is named."""
        return _name_place(self.store, self.options.endpoint) if self.store else ""


def _name_place(url: StoreUrl, endpoint: str | None) -> str:
    server = endpoint or os.environ.get("AWS_ENDPOINT_URL")
    return f"{url} at {hide_secrets(server)}" if server and url.scheme == "s3" else str(url)


def check_remote_name(name: str) -> str:
    """Return a name that a remote can have."""
    if not _NAME.match(name) or name.endswith(".lock") or ".." in name:
        raise UsageError(f"{name!r} is not a valid name for a remote")
    return name


def list_remotes(context: Context) -> dict[str, RemoteSettings]:
    """Return name → settings of all remotes."""
    config = context.history.config.read_all()
    names = {key[7:-4] for key in config if key.startswith("remote.") and key.endswith(".url")}
    return {name: _read_settings(context, config, name) for name in sorted(names)}


def parse_urls(
    url: str, content: str | None, base: Path | None = None
) -> tuple[RemoteUrl, StoreUrl | None]:
    """Return where a remote will be, and its content if that is elsewhere, as users give them.

    A path is that of a Git repository if its content is elsewhere, and else that of a store.
    """
    is_store = has_store_scheme(url)
    if content is None:
        is_git = is_git_url(url) and not is_store
        return (parse_git_url if is_git else parse_store_url)(url, base=base), None
    if is_store and not url.startswith("file:"):
        raise UsageError(f"{parse_store_url(url)} is a store: its content is there, too")
    return parse_git_url(url, base=base), parse_store_url(content, base=base)


def write_remote(
    context: Context, name: str, url: RemoteUrl, content: StoreUrl | None = None
) -> RemoteSettings:
    """Write a remote to the config, with its URLs as they were understood."""
    history = context.history
    if content is None and f"remote.{name}.content" in history.config.read():
        history.config.unset(f"remote.{name}.content")
    history.config.set(f"remote.{name}.url", str(url))
    if content is not None:
        history.config.set(f"remote.{name}.content", str(content))
    history.config.set(f"remote.{name}.fetch", default_fetch(name))
    return list_remotes(context)[name]


def check_remote_setting(key: str, value: str) -> None:
    """Check a setting ``remote.NAME.KEY`` before it is written; other settings pass."""
    section, *name, last = key.split(".")
    if section != "remote" or not name:
        return
    if last not in _KEYS:
        raise UsageError(f"a remote has no setting {last!r}", hint=f"there are {', '.join(_KEYS)}")
    if last == "timeout":
        _check_timeout(key, value)
    if last == "url":
        parse_urls(value, None)
    if last == "content":
        parse_store_url(value)
    if last in ("promisor", "partial"):
        from mvc.workspace.settings import check_switch  # noqa: PLC0415  only to set it

        check_switch(key, value)


def _check_timeout(key: str, value: str) -> None:
    if not (value.isascii() and value.isdigit() and 0 < int(value[:9]) <= _LONGEST_TIMEOUT_S):
        raise UsageError(f"{key} is {value!r}, not seconds from 1 to {_LONGEST_TIMEOUT_S}")


def _read_settings(context: Context, config: Config, name: str) -> RemoteSettings:
    def get(key: str) -> str | None:
        return last_value(config, f"remote.{name}.{key}")

    timeout = get("timeout") or str(DEFAULT_TIMEOUT_S)
    _check_timeout(f"remote.{name}.timeout", timeout)
    spool = context.git_dir / "tmp"
    url, content = parse_urls(get("url") or "", get("content"), context.worktree)
    store = url if isinstance(url, StoreUrl) else content
    # What was found out about another place says nothing about this one.
    tags, _, place = (get("checked") or "").partition(" ")
    is_checked = store is not None and place == _name_place(store, get("endpoint"))
    return RemoteSettings(
        name,
        url,
        fetch_specs(config, name),
        StoreOptions(
            endpoint=get("endpoint"),
            region=get("region"),
            timeout_s=int(timeout),
            spool=spool if spool.is_dir() else None,
            bare_tags=is_checked and tags == "bare",
        ),
        is_checked,
        is_true(get("promisor")),
        is_true(get("partial")),
        content,
    )
