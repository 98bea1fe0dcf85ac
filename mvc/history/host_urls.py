"""What the URL of a repository on a Git host says. Pure.

As those of stores, it never holds a password or token: these come from where Git finds them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from mvc.errors import UsageError
from mvc.storage.urls import check_characters, hide_secrets, resolve_folder

if TYPE_CHECKING:
    from pathlib import Path

HostScheme = Literal["https", "http", "ssh", "git", "file"]

_SCHEMES: dict[str, HostScheme] = {
    "https": "https", "http": "http", "ssh": "ssh", "git": "git",
    "git+ssh": "ssh", "git+file": "file", "file": "file",
}  # fmt: skip
_GIT_ONLY = _SCHEMES.keys() - {"file"}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SHORT = re.compile(
    r"(?:([A-Za-z0-9._-]+)@)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]):(?!//)(.+)"
)
_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:-]*\Z")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")
_HINT = "use https://, ssh://, git://, user@host:path or git+file:///folder"
_CREDENTIALS_HINT = "Git's credential helpers, ~/.netrc and the ssh agent are asked for credentials"


@dataclass(frozen=True, slots=True)
class GitUrl:
    """Where a Git repository is, on a host or in a folder."""

    scheme: HostScheme  # how it is reached
    host: str  # name or address; empty for a folder
    port: int | None  # if it is not the usual one
    user: str | None  # of ssh; None elsewhere
    path: str  # on the host, relative to the home folder unless it begins with a slash
    text: str  # the whole URL, as it was given

    def __str__(self) -> str:
        return self.text

    @property
    def identity(self) -> str:
        """Host and path, which most hosts keep the same for all ways to reach a repository."""
        return f"{self.host}/{self.path.strip('/').removesuffix('.git')}".lower()


def is_git_url(text: str) -> bool:
    """Return whether a text looks like the URL of a Git host; it may still be refused."""
    scheme = _URL.match(text)
    return scheme[1].lower() in _GIT_ONLY if scheme else _match_short(text) is not None


def _match_short(text: str) -> re.Match[str] | None:
    """Return the parts of ``user@host:path``, or None; ``https:/host`` is a URL that lost a slash."""
    match = _SHORT.match(text)
    return None if match is None or match[2] in _SCHEMES else match


def parse_git_url(text: str, *, base: Path | None = None) -> GitUrl:
    """Return what a URL, ``user@host:path`` or the path of a folder says; UsageError if it holds a password."""
    check_characters(text, "a Git host")
    scheme = _URL.match(text)
    if scheme is not None:
        return _parse_url(text, scheme[1].lower())
    short = _match_short(text)
    if short is None:
        return _folder(resolve_folder(text, base))
    user, host, path = short.groups()
    return _checked(GitUrl("ssh", host.strip("[]"), None, user, path, text))


def _parse_url(text: str, scheme: str) -> GitUrl:
    shown = hide_secrets(text)
    if scheme not in _SCHEMES:
        raise UsageError(f"{shown!r} is not the URL of a Git host", hint=_HINT)
    kind = _SCHEMES[scheme]
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise UsageError(f"{shown!r} is not a valid URL") from error
    if parts.password is not None or (parts.username is not None and kind != "ssh"):
        raise UsageError(f"the URL {shown!r} holds credentials", hint=_CREDENTIALS_HINT)
    if parts.query or parts.fragment:
        raise UsageError(f"the URL {shown!r} has more than a host and a path")
    if kind == "file":
        if host not in ("", "localhost") or port is not None or len(parts.path) < 2:  # noqa: PLR2004
            raise UsageError(f"{shown!r} does not name a folder of this machine")
        return _folder(unquote(parts.path))
    path = unquote(parts.path) if kind in ("ssh", "git") else parts.path
    return _checked(GitUrl(kind, host, port, parts.username, path, text))


def _folder(path: str) -> GitUrl:
    return GitUrl("file", "", None, None, path, f"git+file://{path}")


def _checked(url: GitUrl) -> GitUrl:
    """Return the URL if no part of it could be mistaken for an option by ssh or Git."""
    is_named = _HOST.match(url.host) and (url.user is None or _USER.match(url.user))
    if not is_named or not url.path.strip("/") or url.path.startswith("-"):
        raise UsageError(f"{url.text!r} does not name a repository on a host", hint=_HINT)
    return url
