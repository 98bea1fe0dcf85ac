"""Clients of dulwich, each made for one exchange with a Git host, within bounds; and logins for them.

Logins are looked for where Git finds them, and never kept or shown.
"""

from __future__ import annotations

import netrc
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urljoin, urlsplit

from dulwich.client import (
    GitClient,
    SSHGitClient,
    SubprocessGitClient,
    TCPGitClient,
    TraditionalGitClient,
    Urllib3HttpGitClient,
)
from dulwich.errors import GitProtocolError
from dulwich.protocol import TCP_GIT_PORT
from dulwich.protocol import Protocol as GitProtocol

from mvc.errors import FormatError

if TYPE_CHECKING:
    from dulwich.config import StackedConfig

    from mvc.history.host_urls import GitUrl

_MAX_TALK_BYTES = 64 * 2**20
"""All that a host may say beside packs: as much as the root of a store may have."""
_MAX_MOVES = 5
_HELPER_TIMEOUT_S = 300  # a person may have to type


class Closable(Protocol):
    """What holds a connection open."""

    def close(self) -> None:
        """Close it."""


def make_client(
    url: GitUrl,
    config: StackedConfig,
    meter: Meter,
    login: tuple[str, str] | None,
    timeout_s: int,
) -> tuple[GitClient, str, list[Closable]]:
    """Return what speaks to a host, the path to name to it, and what to close at the end."""
    opened: list[Closable] = []
    common: dict[str, Any] = {"thin_packs": False, "quiet": True}
    if url.scheme in ("http", "https"):
        user, password = login or (None, None)
        web = _HttpClient(
            str(url), config=config, username=user, password=password, timeout=timeout_s, **common
        )
        web.meter = meter
        manager = _Manager(web.pool_manager, str(url))
        opened.append(manager)
        web.pool_manager = cast("Any", manager)
        return web, "", opened
    common["report_activity"] = meter.take
    client: _SshClient | _TcpClient | _PipeClient
    if url.scheme == "ssh":
        client = _SshClient(
            url.host, port=url.port, username=url.user, config=config,
            ssh_command=_choose_ssh(config, timeout_s), **common,
        )  # fmt: skip
    elif url.scheme == "git":
        client = _TcpClient(url.host, port=url.port, **common)
        client.timeout_s = timeout_s
    else:
        client = _PipeClient(**common)
    client.opened = opened
    return client, url.path, opened


class Meter:
    """Bounds what a host may say: FormatError once it says too much."""

    def __init__(self, url: GitUrl) -> None:
        self._url = url
        self.left_bytes = _MAX_TALK_BYTES

    def take(self, size_bytes: int, what: str = "read") -> None:
        """Count bytes that came."""
        if what == "read":
            self.left_bytes -= size_bytes
            if self.left_bytes < 0:
                raise FormatError(f"{self._url} says more than {_MAX_TALK_BYTES:,} bytes")


def _choose_ssh(config: StackedConfig, timeout_s: int) -> str | None:
    """Return what to run for ssh, or None if the config says it; ssh itself would wait forever."""
    command = os.environ.get("GIT_SSH_COMMAND")
    with suppress(KeyError):
        config.get((b"core",), b"sshCommand")
        return command
    patience = f"-o ConnectTimeout={timeout_s} -o ServerAliveInterval={timeout_s}"
    return command or f"ssh {patience} -o ServerAliveCountMax=1"


class _Manager:
    """Sends requests to one host, wherever that leads, and can close all that they opened."""

    def __init__(self, manager: Any, base_url: str) -> None:
        self.headers = manager.headers
        self._manager = manager
        self._base = urlsplit(base_url)
        self._answers: list[Any] = []

    def request(self, method: str, url: str, **options: Any) -> Any:
        """Return the answer; what has moved on the same host is followed, as Git does it."""
        from urllib3 import Retry  # noqa: PLC0415  dulwich loads it for this, too

        options |= {"redirect": False, "retries": Retry(connect=1, read=0)}
        for _ in range(_MAX_MOVES):
            parts = urlsplit(url)
            is_safe = parts.scheme == "https" or (parts.scheme == "http" == self._base.scheme)
            if parts.hostname != self._base.hostname or not is_safe:
                raise GitProtocolError(f"it leads elsewhere, to {parts.scheme}://{parts.netloc}")
            answer = self._manager.request(method, url, **options)
            self._answers.append(answer)
            target = answer.get_redirect_location() if method == "GET" else None
            if not target:
                answer.geturl = lambda url=url: url  # where dulwich goes on
                return answer
            url = urljoin(url, target)
            if urlsplit(url)[:2] != parts[:2]:
                options["headers"].pop("authorization", None)
        raise GitProtocolError("it leads from one place to the next")

    def close(self) -> None:
        """Close all connections."""
        for answer in self._answers:
            answer.close()
        self._manager.clear()


class _HttpClient(Urllib3HttpGitClient):
    """Speaks only Git's smart protocol, and is metered."""

    meter: Meter

    def _http_request(
        self,
        url: str,
        headers: dict[str, str] | None = None,
        data: bytes | Iterator[bytes] | None = None,
        raise_for_status: bool = True,  # noqa: FBT001, FBT002  dulwich's
    ) -> Any:
        answer, read = super()._http_request(url, headers, data, raise_for_status)
        content_type = cast("Any", answer).content_type  # an attribute that dulwich puts on it
        if not (content_type or "").startswith("application/x-git-"):
            raise GitProtocolError("it answers, but not as a Git server does")

        def metered(size_bytes: int) -> bytes:
            part = read(size_bytes)
            self.meter.take(len(part))
            return part

        return answer, metered


class _Tracked(TraditionalGitClient):
    """Notes the connections that it opens: dulwich leaves them open when something fails."""

    opened: list[Closable]

    def _connect(self, cmd: bytes, path: str | bytes, protocol_version: int | None = None) -> Any:
        connection = super()._connect(cmd, path, protocol_version)
        self.opened.append(connection[0])
        return connection


class _SshClient(_Tracked, SSHGitClient):
    pass


class _PipeClient(_Tracked, SubprocessGitClient):
    pass


class _TcpClient(TCPGitClient):
    """As dulwich's, but it does not wait forever, and writes all of what it is given."""

    opened: list[Closable]
    timeout_s: int

    def _connect(self, cmd: bytes, path: str | bytes, *_: object) -> Any:
        link = socket.create_connection((self._host, self._port), timeout=self.timeout_s)
        reader = link.makefile("rb")

        def close() -> None:
            reader.close()
            link.close()

        def end() -> None:
            with suppress(OSError):
                link.shutdown(socket.SHUT_WR)

        protocol = GitProtocol(reader.read, link.sendall, close, self._report_activity, end)
        self.opened.append(protocol)
        name = path.encode() if isinstance(path, str) else path
        port = "" if self._port == TCP_GIT_PORT else f":{self._port}"
        host = f"host={self._host}{port}".encode()
        version = b"\0\0version=2\0" if cmd == b"upload-pack" else b""
        protocol.send_cmd(
            b"git-" + cmd,
            name.removeprefix(b"/") if name.startswith(b"/~") else name,
            host + version,
        )
        return protocol, lambda: bool(select.select([link], [], [], 0)[0]), None


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
        entry = netrc.netrc().authenticators(url.host)
        if entry is not None:
            yield Login(entry[0], entry[2] or "", is_helped=False)
    answer = _ask_git("fill", url)
    if answer.get("username"):
        yield Login(answer["username"], answer.get("password", ""), is_helped=True)


def report_login(url: GitUrl, login: Login, *, is_good: bool) -> None:
    """Tell the credential helpers whether the host took what they gave."""
    if login.is_helped:
        _ask_git("approve" if is_good else "reject", url, login)


def _ask_git(verb: str, url: GitUrl, login: Login | None = None) -> dict[str, str]:
    """Run ``git credential``; without a Git, or an answer, it gives nothing.

    It runs where no repository is, so that only the config of user and machine can name helpers.
    """
    port = f":{url.port}" if url.port else ""
    request = {"protocol": url.scheme, "host": f"{url.host}{port}", "path": url.path.lstrip("/")}
    if login is not None:
        request |= {"username": login.user, "password": login.password}
    environment = {key: value for key, value in os.environ.items() if key != "GIT_DIR"}
    if not (sys.stdin and sys.stdin.isatty()):
        environment["GIT_TERMINAL_PROMPT"] = "0"
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(  # noqa: S603  a fixed command
            ["git", "credential", verb],  # noqa: S607  that of the user
            input="".join(f"{key}={value}\n" for key, value in request.items()) + "\n",
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
