"""``python -m mvc_hooks.writer DESCRIPTOR``: the writer's side, started by the training process.

It takes requests, one after the other, until the training process is gone. The threads that hash
and encode step back behind the training, but not while it waits for them: another thread listens.

A request is finished even if the training was killed: the memory of the image lives as long as a
process holds it, so a last commit survives its run. The writer does not import torch.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from mvc import Identity, Repo
from mvc.training import RunStore
from mvc_hooks.lingering import Held, linger
from mvc_hooks.writer.holding import Holding, open_image
from mvc_hooks.writer.messages import (
    GROUP_SIGNALS,
    MAX_LINE_BYTES,
    READ_BYTES,
    Answer,
    AwaitCopy,
    Bye,
    Commit,
    Hurry,
    MarkHealthy,
    Open,
    encode_line,
    parse_request,
)
from mvc_hooks.writer.sharing import FAILURES, CommitAccount, SharedCommits, describe_failure

if TYPE_CHECKING:
    from collections.abc import Iterator

_NICENESS = 10


class _Pace:
    """How far the workers step back: not at all while the training waits for them."""

    def __init__(self) -> None:
        self.at = self.awaited = (
            0  # numbers: of the request in hand, and of the newest that is waited for
        )
        self.has_ended = False  # whether the run said so

    def niceness(self) -> int:
        """Return by how much the workers are to be nicer than the training."""
        return 0 if self.at <= self.awaited else _NICENESS


_Work = SimpleQueue[tuple[Open | Commit | MarkHealthy | AwaitCopy, int] | BaseException | None]


def serve(channel: socket.socket) -> list[tuple[Held, int]]:
    """Answer requests until the other end of a Unix stream socket closes.

    If it said no goodbye, return what the newest commits were made of, and the descriptors of that memory.
    """
    # Leave signals to the training; they go to the whole process group.
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)  # blocked by the training until here
    if sys.platform != "linux":  # where only whole processes step back
        os.nice(_NICENESS)
    work: _Work = SimpleQueue()
    pace = _Pace()
    threading.Thread(target=_listen, args=(channel, work, pace), daemon=True).start()
    writer: _Writer | None = None
    while (item := work.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        request, descriptor = item
        if isinstance(request, Open):
            writer = _Writer(request, pace)
        elif writer is not None:
            pace.at = request.number
            answer = writer.answer(request, descriptor)
            with contextlib.suppress(OSError):  # the training is gone; the commit is not
                channel.sendall(encode_line(answer))
    if writer is None:
        return []
    writer.close()
    return [] if pace.has_ended else writer.find_held()


def _listen(channel: socket.socket, work: _Work, pace: _Pace) -> None:
    """Take requests as they come; those that are sent before the end are still work."""
    end: BaseException | None = None
    try:
        for line, descriptors in _read_lines(channel):
            request = parse_request(line)
            if isinstance(request, Hurry):
                pace.awaited = request.number
            elif isinstance(request, Bye):
                pace.has_ended = True
            else:
                has_memory = isinstance(request, Commit) and request.settled is None
                work.put((request, descriptors.pop(0) if has_memory else -1))
    except BaseException as error:  # noqa: BLE001  raised again where the work is done
        end = error
    pace.awaited = sys.maxsize  # the run ends and waits, or has died, and the next one waits
    work.put(end)


def _read_lines(channel: socket.socket) -> Iterator[tuple[bytes, list[int]]]:
    """Yield each line with the descriptors that came so far and were not taken."""
    rest, descriptors = b"", []
    while True:
        data, came, _, _ = socket.recv_fds(channel, READ_BYTES, 16)
        descriptors += came
        if not data:
            return
        rest += data
        if len(rest) > MAX_LINE_BYTES:
            return
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield line, descriptors


@contextlib.contextmanager
def _mapped(descriptor: int, size_bytes: int) -> Iterator[memoryview]:
    """Map shared memory; the mapping ends with the last view of it."""
    try:
        yield memoryview(mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)


class _Writer:
    """The repository, where each branch was left, and what the newest commit was made of."""

    def __init__(self, opening: Open, pace: _Pace) -> None:
        self._opening, self._pace = opening, pace
        self._repo: Repo | None = None
        self._tips: dict[str, str] = {}
        self._holding = Holding()
        self._shared: SharedCommits | None = None
        if opening.crew is not None:
            self._shared = SharedCommits(opening, self._open_repo, self._holding)

    def close(self) -> None:
        """Tidy up after the run."""
        if self._shared is not None:
            self._shared.close()

    def answer(self, request: Commit | MarkHealthy | AwaitCopy, descriptor: int) -> Answer:
        """Carry out a request, a commit of the memory of a descriptor; failures become answers."""
        try:
            if isinstance(request, MarkHealthy):
                self._open_repo().runs.mark_healthy(request.commit, note=request.note)
                return Answer(request.number, request.commit)
            if isinstance(request, AwaitCopy):
                why = None if self._shared is None else self._shared.wait_copied()
                return Answer(request.number, uncopied=why)
            answer = self._answer(request, descriptor)
        except FAILURES as error:
            return describe_failure(request.number, error)
        if answer.commit is not None:
            self._tips[request.branch] = answer.commit
        return answer

    def _answer(self, request: Commit, descriptor: int) -> Answer:
        parent = request.parent if request.parent is not None else self._tips.get(request.branch)
        if parent is not None:
            self._tips[request.branch] = parent  # should this commit fail, the next one follows it
        if self._shared is not None and request.settled is not None:
            return self._shared.tell(request, parent)
        with _mapped(descriptor, request.size_bytes) as memory:
            if self._shared is not None:
                answer = self._shared.commit(request, parent, memory, descriptor)
            else:
                answer = self._commit(request, parent, memory)
            if answer.commit is not None:
                with contextlib.suppress(OSError):  # the commit is made, whatever can be held of it
                    uncopied = self._hold(request, answer.commit, descriptor)
                    return msgspec.structs.replace(answer, uncopied=uncopied)
            return answer

    def _hold(self, request: Commit, commit: str, descriptor: int) -> str | None:
        """Hold what a commit was made of; return why another machine does not hold the last one's."""
        crew = self._opening.crew
        held = Held(
            git_dir=str(self._open_repo().git_dir),
            branch=request.branch,
            commit=commit,
            rank=0 if crew is None else crew.rank,
            size_bytes=request.size_bytes,
            form=request.form,
            places=request.places,
        )
        self._holding.keep(open_image(held, descriptor))
        return None if self._shared is None else self._shared.replicate(held, descriptor)

    def find_held(self) -> list[tuple[Held, int]]:
        """Return what the next run can go on from, and the descriptors of that memory."""
        try:
            return self._holding.find_intact(str(self._open_repo().git_dir))
        except FAILURES:  # without the repository it is of no use
            return []

    def _open_repo(self) -> Repo:
        if self._repo is None:
            # Only now, so that a repository that cannot be opened fails a request, not the writer.
            to = self._opening
            identity = None if to.name is None else Identity(to.name, to.email or "")
            pace = self._pace.niceness
            self._repo = Repo.open(
                to.worktree, identity=identity, threads=to.threads, niceness=pace
            )
        return self._repo

    def _commit(self, request: Commit, parent: str | None, memory: memoryview) -> Answer:
        account = CommitAccount(request, time.monotonic())
        files = {
            path: memory[offset : offset + size] for path, (offset, size) in request.places.items()
        }
        store = RunStore(self._open_repo())
        result = store.commit_image(files, account.spell(parent))
        return account.answer(request.number, result)


if __name__ == "__main__":
    left = serve(socket.socket(fileno=int(sys.argv[1])))
    if left and sys.platform == "linux":
        linger(left)
