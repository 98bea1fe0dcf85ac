"""The messages between the training process and its writer: one JSON object per line.

Tensors are never sent; they are in shared memory, whose descriptor accompanies the ``commit``.

A sharded run has a ``RankCrew``: who takes part, and where each rank's writer is reached.
"""

from __future__ import annotations

import hashlib
import signal
from typing import TYPE_CHECKING, Self

import msgspec

from mvc import MvcError
from mvc.training import Agreement  # noqa: TC001  msgspec needs it

if TYPE_CHECKING:
    from mvc.training import WriteCounts

MAX_LINE_BYTES = 64 * 2**20
READ_BYTES = 2**16
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a terminal or scheduler sends to the whole process group; the writer ignores them."""
LOST = "lost"  # error kind of a request whose writer ended before it could answer
GONE = "gone"  # error kind of a turn that a rank was lost in, or does not take as the others do


class Address(msgspec.Struct, frozen=True):
    """Where the writers of one rank are reached, one after the other."""

    hosts: tuple[str, ...]  # names or numbers to try, the best first
    port: int  # of TCP
    path: str  # of the Unix socket; "" for none
    node: str  # what names the machine; only ranks of one machine can share memory
    token: str  # this rank's part of the secret that all ranks know
    presence: int = 0  # a port of TCP that is open as long as the training of the rank lives


class RankCrew(msgspec.Struct, frozen=True):
    """One rank, and the addresses of all ranks in their order."""

    rank: int
    addresses: tuple[Address, ...]
    grace_s: float = 30.0  # how long a writer that was there may be silent or away
    # How long a rank is waited for that is there, but does not come to a turn.
    patience_s: float = 600.0

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.addresses)

    @property
    def beat_s(self) -> float:
        """How often a writer shows that it is there."""
        return self.grace_s / 5

    def find_neighbour(self) -> int | None:
        """Return the rank of the next machine that holds a copy of this one's image; None if there is none."""
        nodes: dict[str, list[int]] = {}
        for rank, address in enumerate(self.addresses):
            nodes.setdefault(address.node, []).append(rank)
        names, mine = list(nodes), self.addresses[self.rank].node
        there = nodes[names[(names.index(mine) + 1) % len(names)]]
        return None if len(names) == 1 else there[nodes[mine].index(self.rank) % len(there)]

    def make_key(self) -> bytes:
        """Return the secret that only the ranks of this run know."""
        tokens = "\n".join(address.token for address in self.addresses)
        return hashlib.sha256(tokens.encode()).digest()

    def is_near(self, rank: int) -> bool:
        """Return whether another rank may be reached by its Unix socket."""
        mine, theirs = self.addresses[self.rank], self.addresses[rank]
        return bool(theirs.path) and mine.node == theirs.node


class Answer(msgspec.Struct, frozen=True):
    """The result of the request with the same number; ``write_s`` counts from the request.

    Between writers it is what became of a turn, and has the number of that. ``uncopied`` says why the
    memory of an earlier commit did not get to another machine, if it was to and did not.
    """

    number: int
    commit: str | None = None
    write_s: float = 0.0
    written_bytes: int = 0
    plain_bytes: int = 0
    failed_gates: tuple[str, ...] = ()
    error: str | None = None
    message: str = ""
    hint: str | None = None
    unsent: str | None = None
    uncopied: str | None = None
    agreement: Agreement | None = None

    @classmethod
    def of(cls, number: int, error: BaseException, where: str = "") -> Self:
        """Return the answer that an error is; ``where`` comes before its message."""
        if isinstance(error, MvcError):
            return cls(number, error=error.kind, message=f"{where}{error.message}", hint=error.hint)
        return cls(number, error="writer", message=f"{where}{type(error).__name__}: {error}")


class Open(msgspec.Struct, frozen=True, tag="open"):
    """The first message; None means whom Git would name, and all cores.

    In a sharded run ``crew`` are all ranks, and the writer listens at inherited descriptors. It may
    ``send`` what it stores to the store that all machines have in common, and if it ``replicates``, what it
    holds to another machine.
    """

    worktree: str
    name: str | None = None
    email: str | None = None
    threads: int | None = None
    crew: RankCrew | None = None
    listening: tuple[int, ...] = ()
    send: bool = False
    replicates: bool = False


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    """Commit an image; the descriptor of its memory comes with this line.

    ``places`` are name of each file → offset and length. The branch must be at ``parent`` ("" for
    no commit yet); None means where the last commit of this writer left it. ``metrics`` have
    infinities and NaN, which JSON lacks, as text. ``texts`` are small files for the same commit. ``seen`` are number
    and first lane of the digest of the samples that this rank saw.

    In a sharded run every rank commits its part: ``turn`` counts the commits, alike on all ranks, and
    ``form`` is where in the memory the form of the share is. ``settled``, without memory, is what
    the training knows to have become of the turn on this rank already.
    """

    number: int
    size_bytes: int
    places: dict[str, tuple[int, int]]
    branch: str
    parent: str | None
    message: str
    step: int
    metrics: dict[str, float | str]
    meta: dict[str, str]
    delta: bool | None
    no_gate: bool = False
    turn: int = 0
    form: tuple[int, int] = (0, 0)
    settled: Answer | None = None
    texts: dict[str, bytes] = {}
    seen: tuple[int, int] = (0, 0)

    def describe(
        self, seconds: float, counts: WriteCounts, *others: tuple[int, int]
    ) -> dict[str, str]:
        """Return what is known at the end of the commit; ``others`` are ``seen`` of the other ranks."""
        facts = {"write_s": f"{seconds:.3f}", "written_bytes": str(counts.stored_bytes)}
        numbers, lanes = zip(self.seen, *others, strict=True)
        if any(numbers):
            facts |= {
                "data.samples": str(sum(numbers)),
                "data.digest": f"{sum(lanes) % 2**64:016x}",
            }
        return facts


class MarkHealthy(msgspec.Struct, frozen=True, tag="healthy"):
    """Mark a commit as healthy."""

    number: int
    commit: str
    note: str


class AwaitCopy(msgspec.Struct, frozen=True, tag="await"):
    """Answer once another machine has a copy of the newest commit's memory, or will not get one."""

    number: int


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """The run has ended as it should: hold nothing for a next one. It gets no answer."""


class Hurry(msgspec.Struct, frozen=True, tag="hurry"):
    """The training waits for the requests up to this number. It gets no answer."""

    number: int


Request = Open | Commit | MarkHealthy | AwaitCopy | Hurry | Bye


def encode_line(message: Request | Answer) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


parse_request = msgspec.json.Decoder(Request).decode
parse_answer = msgspec.json.Decoder(Answer).decode
