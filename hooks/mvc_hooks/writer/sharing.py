"""A commit of a sharded run, as one writer of it makes it together with the others.

Every rank stores its share, durably. Then rank 0, which has heard so of all, makes the commit and tells
what became of it. Whatever fails on a rank fails the commit on all of them.
"""

from __future__ import annotations

import contextlib
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mvc import GateError, MvcError
from mvc.training import RunStore, parse_stored_share
from mvc_hooks.writer.holding import Replicator, open_image
from mvc_hooks.writer.mesh import Mesh
from mvc_hooks.writer.messages import GONE, Answer
from mvc_hooks.writer.recalling import recall_commit
from mvc_hooks.writer.turns import Offer
from mvc_hooks.writer.wire import Join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mvc import Repo
    from mvc.training import Share, StoredShare, WriteCounts
    from mvc_hooks.lingering import Held
    from mvc_hooks.writer.holding import Holding
    from mvc_hooks.writer.messages import Commit, Open

FAILURES = (MvcError, OSError, MemoryError, RuntimeError, ValueError)
"""What a request may end with; anything else is a bug, and ends the writer."""


class _StoredHere(msgspec.Struct, frozen=True):
    """What a rank tells rank 0 once it has stored its share; ``seen`` as in its request."""

    share: bytes
    seen: tuple[int, int]


_decode_stored = msgspec.msgpack.Decoder(_StoredHere).decode


class SharedCommits:
    """This rank's part of the commits of a sharded run."""

    def __init__(self, opening: Open, open_repo: Callable[[], Repo], holding: Holding) -> None:
        assert opening.crew is not None
        self._worktree, self._open_repo = opening.worktree, open_repo
        self._sends = opening.send
        with contextlib.suppress(OSError, ValueError):  # a connection or more for every rank
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._mesh = Mesh(opening.crew, opening.listening, holding)
        neighbour = opening.crew.find_neighbour() if opening.replicates else None
        self._replicator = None if neighbour is None else Replicator(self._mesh.dialer, neighbour)
        self._last: Share | None = None

    def commit(
        self, request: Commit, parent: str | None, memory: memoryview, descriptor: int
    ) -> Answer:
        """Take part in a turn with the memory of a descriptor; return what became of it."""
        with self._mesh.turn(request.turn):
            try:
                answer = self._store(request, parent, memory, descriptor)
            except FAILURES as error:
                answer = self._fail(request.turn, describe_failure(request.turn, error, self._rank))
            if answer is None:
                answer = self._look(request, parent)
        return msgspec.structs.replace(answer, number=request.number)

    def tell(self, request: Commit, parent: str | None) -> Answer:
        """Tell the others what became of a turn on this rank; return what became of it on all."""
        settled = request.settled
        assert settled is not None
        with self._mesh.turn(request.turn):
            answer = self._fail(request.turn, settled)
            if answer is None:
                # A writer that was lost may have stored its share, and rank 0 may have committed it.
                answer = self._look(request, parent) if settled.error == GONE else settled
        return msgspec.structs.replace(answer, number=request.number)

    def replicate(self, held: Held, descriptor: int) -> str | None:
        """Send an image to another machine if that is wanted; return why the last one did not get there."""
        if self._replicator is None:
            return None
        failure = self._replicator.failure
        self._replicator.send(open_image(held, descriptor))
        return failure

    def wait_copied(self) -> str | None:
        """Wait until the last image is on another machine; return why it did not get there."""
        if self._replicator is None:
            return None
        self._replicator.wait()
        return self._replicator.failure

    def close(self) -> None:
        """Remove the socket of a run that has ended; it may have been killed before it could."""
        if self._replicator is not None:
            self._replicator.close()
        path = self._mesh.crew.addresses[self._rank].path
        if path:
            with contextlib.suppress(OSError):
                Path(path).unlink(missing_ok=True)
                Path(path).parent.rmdir()

    @property
    def _rank(self) -> int:
        return self._mesh.crew.rank

    def _store(
        self, request: Commit, parent: str | None, memory: memoryview, descriptor: int
    ) -> Answer | None:
        repo = self._open_repo()
        at, size_bytes = request.form
        share = RunStore(repo).open_share(
            memory[:at], bytes(memory[at : at + size_bytes]), self._last
        )
        self._last = replace(share, image=memoryview(b""))  # its plan; the memory is not kept
        join = Join(request.turn, request.step, request.branch, share.digest)
        peers = self._mesh.bring(Offer(join, share, descriptor, at))
        self._mesh.wait_gathered(request.turn)
        branch = request.branch
        store = RunStore(repo).store_share(
            share, peers, branch=branch, delta=request.delta, send=self._sends
        )
        with store as stored:
            if self._mesh.follower is not None:
                message = msgspec.msgpack.encode(_StoredHere(stored.encode(), request.seen))
                return self._mesh.follower.finish(request.turn, message)
            return self._commit_all(request, parent, share, stored)

    def _commit_all(
        self, request: Commit, parent: str | None, share: Share, stored: StoredShare
    ) -> Answer:
        began_s = self._mesh.turns.began_s
        leader = self._mesh.leader
        assert leader is not None
        answers = [_decode_stored(payload) for payload in leader.collect(request.turn)]
        others = [parse_stored_share(answer.share) for answer in answers]
        written_bytes = 0

        def describe(counts: WriteCounts) -> Mapping[str, str]:
            nonlocal written_bytes
            written_bytes = counts.stored_bytes
            seconds = time.monotonic() - began_s
            return request.describe(seconds, counts, *(answer.seen for answer in answers))

        result = RunStore(self._open_repo()).commit_shares(
            share,
            [stored, *others],
            message=request.message,
            step=request.step,
            metrics={name: float(value) for name, value in request.metrics.items()},
            meta=request.meta,
            branch=request.branch,
            parent=parent,
            describe=describe,
            no_gate=request.no_gate,
            texts=request.texts,
        )
        answer = Answer(
            request.turn,
            result.commit,
            time.monotonic() - began_s,
            written_bytes,
            result.plain_bytes,
            result.failed_gates,
            unsent=result.unsent,
            agreement=result.agreement,
        )
        return leader.settle(answer, is_final=True)

    def _fail(self, turn: int, answer: Answer) -> Answer | None:
        """Return what became of a turn that came to this here; None if that can no longer be heard."""
        if self._mesh.leader is not None:
            return self._mesh.leader.settle(answer, is_final=True)
        assert self._mesh.follower is not None
        return self._mesh.turns.find(turn) or self._mesh.follower.fail(answer)

    def _look(self, request: Commit, parent: str | None) -> Answer:
        """Look whether rank 0, which is gone, has made the commit."""
        lost = self._mesh.turns.lost
        assert lost is not None
        made = recall_commit(self._worktree, request, parent, {}, on_store=self._sends)
        answer = lost if made is None else msgspec.structs.replace(made, number=request.turn)
        return self._mesh.turns.settle(answer, is_final=True)


def describe_failure(number: int, error: BaseException, rank: int | None = None) -> Answer:
    """Return the answer that an error is, naming the rank that it happened on.

    A gate is not of a rank: it refuses what all of them have.
    """
    where = "" if rank is None or isinstance(error, GateError) else f"rank {rank}: "
    if isinstance(error, MvcError):
        return Answer(number, error=error.kind, message=f"{where}{error.message}", hint=error.hint)
    return Answer(number, error="writer", message=f"{where}{type(error).__name__}: {error}")
