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
from typing import TYPE_CHECKING, Any

import msgspec

from mvc import GateError, MvcError, Repo
from mvc.training import CommitRequest, RunStore, parse_stored_share
from mvc_hooks.writer.holding import Holding, Replicator, open_image
from mvc_hooks.writer.mesh import Mesh
from mvc_hooks.writer.messages import GONE, Answer, Commit, Open
from mvc_hooks.writer.turns import Offer
from mvc_hooks.writer.wire import Join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mvc.training import Share, StoredShare, WriteCounts
    from mvc_hooks.lingering import Held


FAILURES = (MvcError, OSError, MemoryError, RuntimeError, ValueError)
"""What a request may end with; anything else is a bug, and ends the writer."""


class _StoredHere(msgspec.Struct, frozen=True):
    """What a rank tells rank 0 once it has stored its share; ``seen`` as in its request."""

    share: bytes
    seen: tuple[int, int]


_decode_stored = msgspec.msgpack.Decoder(_StoredHere).decode


class CommitAccount:
    """What a commit is made with, and what it cost; ``seen`` are what the other ranks saw."""

    def __init__(self, request: Commit, began_s: float, *seen: tuple[int, int]) -> None:
        self._request, self._began_s, self._seen = request, began_s, seen
        self._written_bytes = 0

    def spell(self, parent: str | None) -> CommitRequest:
        """Return what the commit says and where it goes."""
        request = self._request
        return CommitRequest(
            request.message,
            request.step,
            {name: float(value) for name, value in request.metrics.items()},
            request.meta,
            request.branch,
            parent,
            request.no_gate,
            delta=request.delta,
            describe=self._describe,
            texts=request.texts,
        )

    def _describe(self, counts: WriteCounts) -> Mapping[str, str]:
        self._written_bytes = counts.stored_bytes
        return self._request.describe(time.monotonic() - self._began_s, counts, *self._seen)

    def answer(self, number: int, result: Any) -> Answer:
        """Return the answer to the request."""
        return Answer(
            number,
            result.commit,
            time.monotonic() - self._began_s,
            self._written_bytes,
            result.plain_bytes,
            result.failed_gates,
            unsent=result.unsent,
            agreement=result.agreement,
        )


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
        account = CommitAccount(request, began_s, *(answer.seen for answer in answers))
        result = RunStore(self._open_repo()).commit_shares(
            share, [stored, *others], account.spell(parent)
        )
        answer = account.answer(request.turn, result)
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
    return Answer.of(number, error, where)


_MOST_IN_FLIGHT = 64


def recall_commit(
    worktree: str,
    request: Commit,
    tip: str | None,
    facts: Mapping[str, str],
    *,
    on_store: bool = False,
) -> Answer | None:
    """Look for the commit of a lost writer on its branch; return the answer that is owed, or None.

    A writer may die after the commit and before its answer. The commit is recognised by step and
    subject, by ``facts`` that it records (down to the duration of the stall, if they are known), and
    by the tip that it follows: "" for no commit, None if that is not known. A rank that has only a store in
    common with rank 0 looks ``on_store``.
    """
    says = request.step, request.message.partition("\n")[0]
    # As after any crash, the first command on the repository finishes a commit that was begun.
    with contextlib.suppress(MvcError, OSError):
        repo = Repo.open(worktree)
        repo.status(untracked=False)
        store = repo.config().get("mvc.store") if on_store else None
        if store is not None:
            repo.fetch(store, content=False)
        ref = f"refs/{'heads' if store is None else f'remotes/{store}'}/{request.branch}"
        for entry in repo.log(ref, first_parent=True, limit=_MOST_IN_FLIGHT):
            if entry.info.id == tip:
                return None
            meta, parent = dict(entry.annotations.meta or {}), "".join(entry.info.parents[:1])
            # Git may have broken the lines of a trailer elsewhere.
            records = all(
                name in meta and meta[name].split() == text.split() for name, text in facts.items()
            )
            said = entry.annotations.step, entry.info.message.partition("\n")[0]
            if said == says and records and tip in (None, parent):
                return Answer(
                    request.number,
                    entry.info.id,
                    write_s=float(meta.get("write_s", "0")),
                    written_bytes=int(meta.get("written_bytes", "0")),
                    plain_bytes=sum(size for _, size in request.places.values()),
                    failed_gates=entry.failed_gates,
                    agreement=entry.agreement,
                )
    return None
