"""The training's side of the writer: starts it, hands images over, collects answers.

The process is a new interpreter, never a fork: a forked child would share CUDA handles, locks held
by other threads, and pages whose later change it may or may not see. It gets the memory as
descriptors over a socket, so the model is never serialised.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING

import msgspec

from mvc import StorageError
from mvc.interpreter import module_command
from mvc_hooks.snapshot.memory import keep_from_children
from mvc_hooks.writer.messages import (
    GROUP_SIGNALS,
    LOST,
    READ_BYTES,
    Answer,
    AwaitCopy,
    Bye,
    Commit,
    Hurry,
    MarkHealthy,
    Open,
    Request,
    encode_line,
    parse_answer,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAST_WORDS_BYTES = 2000
_DEATH_S = 60.0


class WriterProcess:
    """A running writer, though it may not be ready yet.

    ``poll`` and ``wait`` return answers in the order of the requests. If the process is gone, they
    return an error for every request that was still open.
    """

    def __init__(self, opening: Open, held: Sequence[int] = ()) -> None:
        self._open: list[int] = []
        self._rest = b""
        self._awaited = 0
        self.is_lost = False
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            with theirs, contextlib.ExitStack() as undo:
                undo.enter_context(ours)
                self._words: IO[bytes] = undo.enter_context(tempfile.TemporaryFile())
                self._process = _start(theirs, self._words, held)
                undo.pop_all()
            self._channel = ours
        except OSError as error:
            why = error.strerror or error
            raise StorageError(f"cannot start the writer process: {why}") from error
        keep_from_children(self)
        self._send(opening)

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return len(self._open)

    def ask(self, request: Commit | MarkHealthy | AwaitCopy, *descriptors: int) -> None:
        """Send a request, and the memory of a commit, which must not change before the answer."""
        self._open.append(request.number)
        self._send(request, descriptors)

    def hurry(self, number: int) -> None:
        """Say that the training waits for the requests up to a number."""
        if number > self._awaited:
            self._awaited = number
            self._send(Hurry(number))

    def poll(self) -> list[Answer]:
        """Return the answers that have arrived; never waits."""
        return self._receive(0.0)

    def wait(self, timeout_s: float | None = None) -> list[Answer]:
        """Wait for the next answer, for ever by default; return those that have arrived."""
        return self._receive(timeout_s) if self._open else []

    def close(self, timeout_s: float | None = None, *, has_ended: bool = True) -> list[Answer]:
        """Let it finish its requests, and end it; return the last answers.

        Unless the run ``has_ended`` as it should, it goes on to hold the newest snapshot for the next one.
        """
        answers: list[Answer] = []
        if has_ended:
            self._send(Bye())
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
        while self._open:
            came = self._receive(timeout_s)
            if not came:
                break
            answers += came
        self._channel.close()
        if has_ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self._words.close()
        return answers

    def _send(self, request: Request, descriptors: Sequence[int] = ()) -> None:
        line = encode_line(request)
        try:
            if descriptors:
                sent = socket.send_fds(self._channel, [line], descriptors)
                line = line[sent:]
            self._channel.sendall(line)
        except OSError:
            return  # it is gone; reading finds its last answers first, and then its end

    def _receive(self, timeout_s: float | None) -> list[Answer]:
        answers: list[Answer] = []
        while not answers and not self.is_lost:
            readable, _, _ = select.select([self._channel], [], [], timeout_s)
            if not readable:
                return []
            answers = self._read()
        if self.is_lost:
            cause = self._cause_of_death() if self._open else ""
            answers += [
                Answer(
                    number,
                    error=LOST,
                    message=f"the writer process ended ({cause})",
                    hint="the last good commit stays good; signal 9 often means out of memory",
                )
                for number in self._open
            ]
            self._open.clear()
        return answers

    def _read(self) -> list[Answer]:
        try:
            data = self._channel.recv(READ_BYTES)
        except OSError:  # as good as the end: a killed writer may reset the connection
            data = b""
        if not data:
            self.is_lost = True
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            answers = [parse_answer(line) for line in lines]
        except msgspec.DecodeError:
            self.is_lost = True
            return []
        for answer in answers:
            self._open.remove(answer.number)
        return answers

    def _cause_of_death(self) -> str:
        try:
            status = self._process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # two writers must never write one branch
            self._process.wait()
            return "it closed its channel"
        if status < 0:
            return f"killed by signal {-status}"
        self._words.seek(0)
        words = self._words.read()[-_LAST_WORDS_BYTES:].decode("utf-8", "replace").strip()
        lines = [line for line in words.splitlines() if not line.startswith("hint: ")]
        return f"exit status {status}" + (f": {lines[-1]}" if lines else "")

    def drop_in_child(self) -> None:
        """Close the channel in a forked child; it is the parent's."""
        self._channel.close()
        self.is_lost = True


def _start(
    channel: socket.socket, words: IO[bytes], held: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start the process, with group signals blocked until it ignores them by itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)  # a child inherits the mask
    try:
        return subprocess.Popen(  # noqa: S603  our own interpreter and module
            module_command("mvc_hooks.writer", str(channel.fileno())),
            pass_fds=(channel.fileno(), *held),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=words,
            # A group of its own, since signals go to groups; but the session is the training's:
            # where the scheduler shares out by session, the writer may use what the training leaves.
            process_group=0,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
