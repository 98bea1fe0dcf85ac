"""What writers say to each other: frames on connections whose ends have proved that they belong.

A frame is two lengths, a message (msgpack) and bytes that belong to it; over a Unix socket a
descriptor may come along. Before the first frame each end proves that it knows the secret of the
run, without telling it; who cannot is told nothing but a random number.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from mvc_hooks.lingering import Held  # noqa: TC001  msgspec needs it
from mvc_hooks.writer.messages import Answer  # noqa: TC001  msgspec needs it

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc_hooks.writer.messages import RankCrew

MAX_MESSAGE_BYTES = 2**20
MAX_PAYLOAD_BYTES = 2**28
_SMALL_BYTES = 2**14
_HEAD = struct.Struct("!II")
_RANKS = struct.Struct("!II")
_TIME = struct.Struct("@ll")
_MAGIC = b"mvcmesh1"
_NONCE_BYTES = 32
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))


class GetImage(msgspec.Struct, frozen=True, tag="image"):
    """Pass the memory of a turn; the answer waits until the turn has come."""

    turn: int
    digest: bytes


class GetPart(msgspec.Struct, frozen=True, tag="part"):
    """Send this rank's part of a chunk of a turn; the answer waits until the turn has come.

    With ``is_checked``, send what the rank checks of a chunk that others keep.
    """

    turn: int
    digest: bytes
    array: int
    chunk: int
    is_checked: bool = False


class GetForm(msgspec.Struct, frozen=True, tag="form"):
    """Send the form of the share that a rank of an earlier run had of a commit."""

    commit: str
    rank: int


class GetHeld(msgspec.Struct, frozen=True, tag="held"):
    """Send the part of a chunk that a rank of an earlier run had of a commit."""

    commit: str
    rank: int
    array: int
    chunk: int


class Keep(msgspec.Struct, frozen=True, tag="keep"):
    """Hold a piece of the image of the sender's newest commit, the bytes that follow; answered by ``Here``."""

    held: Held
    offset: int


class Here(msgspec.Struct, frozen=True, tag="here"):
    """What was asked for: bytes that follow, or memory of that length."""

    size_bytes: int


class Join(msgspec.Struct, frozen=True, tag="join"):
    """A rank takes part in a turn, which is about this step and branch and a state of this form."""

    turn: int
    step: int
    branch: str
    digest: bytes


class Gathered(msgspec.Struct, frozen=True, tag="gathered"):
    """All ranks have come to a turn."""

    turn: int


class Stored(msgspec.Struct, frozen=True, tag="stored"):
    """A rank has stored its share, and says in the bytes that follow what that is."""

    turn: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """What a rank says of itself: the turn whose number the answer has came to nothing there."""

    answer: Answer


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """What became of the turn whose number the answer has."""

    answer: Answer


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """A sign of life, from a rank that has come to this turn."""

    turn: int


Message = (
    GetImage
    | GetPart
    | GetForm
    | GetHeld
    | Keep
    | Here
    | Join
    | Gathered
    | Stored
    | Failed
    | Settled
    | Beat
)
_parse = msgspec.msgpack.Decoder(Message).decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Frame:
    """A message, the bytes that came with it, and perhaps a descriptor, which is the receiver's."""

    message: Message
    payload: bytearray
    descriptor: int = -1


@dataclass(slots=True)
class Counts:
    """What was sent: frames other than signs of life, and their bytes."""

    frames: int = 0
    sent_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size_bytes: int) -> None:
        """Count one more frame."""
        with self._lock:
            self.frames += 1
            self.sent_bytes += size_bytes


class RankLink:
    """One connection to another rank's writer. Any thread may send; one at a time may receive.

    Everything that goes wrong is an OSError, and the link is of no use after it.
    """

    def __init__(self, channel: socket.socket, rank: int, counts: Counts) -> None:
        self.rank = rank
        self._channel, self._counts = channel, counts
        self._sending = threading.Lock()
        self._takes_descriptors = channel.family == socket.AF_UNIX
        self._check: Callable[[], None] | None = None

    def listen(self, every_s: float, check: Callable[[], None] | None) -> None:
        """Call ``check`` every so many seconds while waiting for a frame; it may raise OSError."""
        _set_wait(self._channel, socket.SO_RCVTIMEO, every_s)
        self._check = check

    def send(
        self, message: Message, payload: bytes | memoryview = b"", descriptor: int = -1
    ) -> None:
        """Send a frame."""
        data = _encode(message)
        size_bytes = memoryview(payload).nbytes
        if len(data) > MAX_MESSAGE_BYTES or size_bytes > MAX_PAYLOAD_BYTES:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        start = _HEAD.pack(len(data), size_bytes) + data
        if size_bytes <= _SMALL_BYTES:
            start, payload = start + bytes(payload), b""
        if not isinstance(message, Beat):
            self._counts.add(_HEAD.size + len(data) + size_bytes)
        with self._sending:
            if descriptor >= 0:
                start = start[socket.send_fds(self._channel, [start], [descriptor]) :]
            self._channel.sendall(start)
            if payload:
                self._channel.sendall(payload)

    def receive(self) -> Frame:
        """Wait for the next frame."""
        descriptors: list[int] = []
        try:
            length, size_bytes = _HEAD.unpack(self._read(_HEAD.size, descriptors))
            if length > MAX_MESSAGE_BYTES or size_bytes > MAX_PAYLOAD_BYTES:
                raise ConnectionError("a frame is too long")
            message = _parse(self._read(length, descriptors))
            payload = self._read(size_bytes, descriptors)
            return Frame(message, payload, descriptors.pop() if descriptors else -1)
        except msgspec.MsgspecError as error:
            raise ConnectionError("a frame is not what it should be") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _read(self, size_bytes: int, descriptors: list[int]) -> bytearray:
        data = bytearray(size_bytes)
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._read_some(rest, descriptors) :]
            except BlockingIOError:
                if self._check is not None:
                    self._check()
        return data

    def _read_some(self, into: memoryview, descriptors: list[int]) -> int:
        if self._takes_descriptors and not descriptors:
            came, more, _, _ = socket.recv_fds(self._channel, min(len(into), _SMALL_BYTES), 1)
            descriptors += more
            into[: len(came)] = came
            count = len(came)
        else:
            count = self._channel.recv_into(into)
        if not count:
            raise ConnectionResetError(errno.ECONNRESET, "the other end closed the connection")
        return count

    def stop(self) -> None:
        """End it, from any thread; who waits for a frame hears it, and closes the link."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free it; no other thread may be using it."""
        self._channel.close()

    # The proof, from both sides.

    def introduce(self, crew: RankCrew) -> None:
        """Prove to the accepting end that this is a rank of the crew, and check its proof in turn."""
        challenge = bytes(self._read(len(_MAGIC) + _NONCE_BYTES, []))
        if not challenge.startswith(_MAGIC):
            raise ConnectionError("this is not a writer")
        nonces = challenge + secrets.token_bytes(_NONCE_BYTES)
        key, ranks = crew.make_key(), _RANKS.pack(crew.rank, self.rank)
        mine = _prove(key, b"from", ranks, nonces)
        self._channel.sendall(ranks + nonces[len(challenge) :] + mine)
        if not hmac.compare_digest(self._read(len(mine), []), _prove(key, b"to", ranks, nonces)):
            raise ConnectionError("this is not the writer that it should be")

    def welcome(self, crew: RankCrew) -> None:
        """Check the proof of the connecting end, which says its rank in the crew, and answer with this end's."""
        challenge = _MAGIC + secrets.token_bytes(_NONCE_BYTES)
        self._channel.sendall(challenge)
        ranks = bytes(self._read(_RANKS.size, []))
        nonces = challenge + bytes(self._read(_NONCE_BYTES, []))
        key = crew.make_key()
        theirs = _prove(key, b"from", ranks, nonces)
        self.rank, to = _RANKS.unpack(ranks)
        is_right = hmac.compare_digest(self._read(len(theirs), []), theirs)
        is_other = self.rank < crew.ranks and self.rank != crew.rank
        if not is_right or to != crew.rank or not is_other:
            raise ConnectionError("a stranger")
        self._channel.sendall(_prove(key, b"to", ranks, nonces))


def open_link(channel: socket.socket, rank: int, counts: Counts, send_s: float) -> RankLink:
    """Return a link over a connected socket; a send that gets nothing through for so long fails."""
    if channel.family != socket.AF_UNIX:
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds a machine that died
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                channel.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    channel.setblocking(True)  # noqa: FBT003
    _set_wait(channel, socket.SO_SNDTIMEO, send_s)
    return RankLink(channel, rank, counts)


def fall_silent() -> None:
    """End the wait for a frame: for a link from which something should have come."""
    raise TimeoutError(errno.ETIMEDOUT, "nothing was heard")


def _set_wait(channel: socket.socket, option: int, seconds: float) -> None:
    whole = int(seconds)
    value = _TIME.pack(whole, int((seconds - whole) * 1e6))
    channel.setsockopt(socket.SOL_SOCKET, option, value)


def _prove(key: bytes, way: bytes, ranks: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, way + ranks + nonces, "sha256")
