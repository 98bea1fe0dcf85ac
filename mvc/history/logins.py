"""Who to be on a Git host that asks: found where Git finds it, never kept or shown."""

from __future__ import annotations

import netrc
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.history.host_urls import GitUrl

_HELPER_TIMEOUT_S = 300  # somebody may have to type


@dataclass(frozen=True, slots=True)
class Login:
    """A user and a password or token; ``is_helped`` if a credential helper of Git gave it."""

    user: str
    password: str = field(repr=False)
    is_helped: bool


def find_logins(url: GitUrl) -> Iterator[Login]:
    """Yield what to try on a host, in Git's order: ``~/.netrc``, then the credential helpers.

    On a terminal, Git itself may ask for them.
    """
    with suppress(OSError, netrc.NetrcParseError):
        found = netrc.netrc().authenticators(url.host)
        if found is not None:
            yield Login(found[0], found[2] or "", is_helped=False)
    told = _ask_git("fill", url)
    if told.get("username"):
        yield Login(told["username"], told.get("password", ""), is_helped=True)


def report_login(url: GitUrl, login: Login, *, is_good: bool) -> None:
    """Tell the credential helpers whether the host took what they gave."""
    if login.is_helped:
        _ask_git("approve" if is_good else "reject", url, login)


def _ask_git(verb: str, url: GitUrl, login: Login | None = None) -> dict[str, str]:
    """Run ``git credential``; without a Git, or an answer, it gives nothing.

    It runs where no repository is, so that only the config of user and machine can name helpers.
    """
    port = f":{url.port}" if url.port else ""
    told = {"protocol": url.scheme, "host": f"{url.host}{port}", "path": url.path.lstrip("/")}
    if login is not None:
        told |= {"username": login.user, "password": login.password}
    environment = {key: value for key, value in os.environ.items() if key != "GIT_DIR"}
    if not (sys.stdin and sys.stdin.isatty()):
        environment["GIT_TERMINAL_PROMPT"] = "0"
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(  # noqa: S603  a fixed command
            ["git", "credential", verb],  # noqa: S607  that of the user
            input="".join(f"{key}={value}\n" for key, value in told.items()) + "\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            encoding="utf-8",
            errors="replace",
            timeout=_HELPER_TIMEOUT_S,
            check=False,
        )
        lines = (line.partition("=") for line in answer.stdout.splitlines())
        return {key: value for key, _, value in lines}
    return {}
