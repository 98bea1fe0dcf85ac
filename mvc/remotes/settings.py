"""What the config says of remotes: where they are, what is fetched from them, how they are reached."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UsageError
from mvc.history.config import is_true, last_value
from mvc.history.refspecs import default_fetch, fetch_specs
from mvc.storage.options import DEFAULT_TIMEOUT_S, StoreOptions
from mvc.storage.urls import hide_secrets, is_store_url, parse_store_url

if TYPE_CHECKING:
    from mvc.history.config import Config
    from mvc.history.refspecs import Refspec
    from mvc.storage.urls import StoreUrl
    from mvc.workspace.context import Context

DEFAULT_REMOTE = "origin"
REMOTES = "refs/remotes/"
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
        url: where it is.
        fetch: what a fetch brings and where it goes.
        options: how its store is reached.
        is_checked: whether the store is known to keep what refs need.
        is_promisor: whether reads take from it what is not here.
        is_partial: whether a fetch brings no content.
    """

    name: str | None
    url: StoreUrl
    fetch: tuple[Refspec, ...]
    options: StoreOptions
    is_checked: bool = False
    is_promisor: bool = False
    is_partial: bool = False

    @property
    def place(self) -> str:
        """Where the store is: the URL, and the server if one is named."""
        return _name_place(self.url, self.options.endpoint)


def _name_place(url: StoreUrl, endpoint: str | None) -> str:
    server = endpoint or os.environ.get("AWS_ENDPOINT_URL")
    return f"{url} at {hide_secrets(server)}" if server and url.scheme == "s3" else str(url)


def check_remote_name(name: str) -> str:
    """Return a name that a remote can have."""
    if not _NAME.match(name) or name.endswith(".lock") or ".." in name:
        raise UsageError(f"{name!r} is not a valid name for a remote")
    return name


def list_remotes(context: Context) -> dict[str, RemoteSettings]:
    """Return name → settings of the remotes that are configured, by name."""
    config = context.history.read_settings()
    names = {key[7:-4] for key in config if key.startswith("remote.") and key.endswith(".url")}
    return {name: _read_settings(context, config, name) for name in sorted(names)}


def parse_url(context: Context, url: str) -> StoreUrl:
    """Return where a remote is to be, given as a user does."""
    if not is_store_url(url):
        raise UsageError(f"{hide_secrets(url)!r} is not the URL of a store")
    return parse_store_url(url, base=context.worktree)


def write_remote(context: Context, name: str, url: StoreUrl) -> RemoteSettings:
    """Write a remote to the config, with its URL as it was understood."""
    context.history.set_config(f"remote.{name}.url", str(url))
    context.history.set_config(f"remote.{name}.fetch", default_fetch(name))
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
    url = parse_store_url(get("url") or "", base=context.worktree)
    # What was found out about another place says nothing about this one.
    tags, _, place = (get("checked") or "").partition(" ")
    is_checked = place == _name_place(url, get("endpoint"))
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
    )
