"""The sockets at which the writers of a rank listen: held by its training, inherited by each writer.

So an address outlives a writer, and what connects while there is none waits for the next one. A
connection is refused once both training and writer are gone: then no writer will come any more. One more
socket is the training's alone: who connects to it sees its end, whatever its writer still has to do.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import shutil
import socket
import tempfile
import uuid
from pathlib import Path

from mvc import StorageError
from mvc_hooks.snapshot.memory import keep_from_children
from mvc_hooks.writer.messages import Address

_BACKLOG = 4096
_LOOPBACK = "127.0.0.1"
_ELSEWHERE = "192.0.2.1"  # a documentation address: asked for its route only, never sent to
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Listeners:
    """Listening sockets and their address, which the other ranks need."""

    def __init__(
        self,
        address: Address,
        sockets: list[socket.socket],
        presence: socket.socket,
        folder: str | None,
    ) -> None:
        self.address = address
        self._sockets, self._presence, self._folder = sockets, presence, folder
        keep_from_children(self)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors of the sockets, for a writer to inherit."""
        return tuple(listening.fileno() for listening in self._sockets)

    def close(self) -> None:
        """Stop listening, and remove what was made for it."""
        self.drop_in_child()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def drop_in_child(self) -> None:
        """Close the sockets in a forked child; they are the parent's."""
        self._presence.close()
        while self._sockets:
            self._sockets.pop().close()


def open_listeners(master: str | None = None) -> Listeners:
    """Listen where the other ranks can reach this one.

    ``master`` is the name by which all ranks know the machine of rank 0, by default $MASTER_ADDR. If
    that is this machine by definition, or nothing is known, only processes of this machine can connect.
    """
    master = master or os.environ.get("MASTER_ADDR") or _LOOPBACK
    is_local = _is_loopback(master)
    try:
        tcp, presence = _listen(is_local=is_local), _listen(is_local=is_local)
    except OSError as error:
        raise StorageError(f"cannot listen for the other ranks: {error.strerror}") from error
    sockets, (folder, path) = [tcp], ("", "")
    with contextlib.suppress(OSError):  # a path may be too long; then TCP does it
        folder = tempfile.mkdtemp(prefix="mvc-")
        sockets.append(_listen_at(f"{folder}/writer"))
        path = f"{folder}/writer"
    hosts = (_LOOPBACK,) if is_local else _find_hosts(master)
    port, present = (listening.getsockname()[1] for listening in (tcp, presence))
    address = Address(hosts, port, path, name_node(), secrets.token_hex(32), present)
    return Listeners(address, sockets, presence, folder or None)


def _listen(*, is_local: bool) -> socket.socket:
    if is_local:
        return socket.create_server((_LOOPBACK, 0), backlog=_BACKLOG)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be switched off
            return socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server(("", 0), backlog=_BACKLOG)


def _listen_at(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _find_hosts(master: str) -> tuple[str, ...]:
    """Return how this machine may be reached: as the master knows it, and as the world does."""
    routes = [_find_route(master), _find_route(_ELSEWHERE)]
    if routes[0] is not None and _is_loopback(routes[0]):
        routes[0] = master  # this is its machine, whose name others know by another number
    return tuple(dict.fromkeys(route for route in routes if route)) or (socket.gethostname(),)


def _find_route(host: str) -> str | None:
    """Return this machine's address on the way to another one; nothing is sent."""
    with contextlib.suppress(OSError):
        for family, kind, proto, _, to in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, proto) as probe:
                probe.connect(to)
                return str(probe.getsockname()[0])
    return None


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def name_node() -> str:
    """Return what names this machine since it was started."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return f"{socket.gethostname()} {uuid.getnode():x}"
