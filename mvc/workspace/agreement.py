"""What a commit says of its replicas: whether two ranks held the same bytes, as Git trailers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.workspace.health import escape_word, unescape_word

if TYPE_CHECKING:
    from collections.abc import Iterable

CHECK_TRAILER = "Replica-Check"
DISPUTE_TRAILER = "Replica-Dispute"
AGREEMENT_TRAILERS = frozenset({CHECK_TRAILER, DISPUTE_TRAILER})
MAX_DISPUTES = 16
_COUNTS = re.compile(r"agreed=(\d{1,18}) of=(\d{1,18})(?: differed=(\d{1,18}))?", re.ASCII)
_DISPUTE = re.compile(
    r"(\S+) (\S+) chunk=(\d{1,18}) stored=(\d{1,9}(?:,\d{1,9})*) checked=(\d{1,9}(?:,\d{1,9})*)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Dispute:
    """A chunk of which two ranks should hold the same bytes, and do not.

    Attributes:
        path: the file that has the tensor.
        tensor: its name.
        chunk: its number in the tensor, from 0.
        stored: the ranks whose bytes were committed.
        checked: the ranks that hold other bytes.
    """

    path: str
    tensor: str
    chunk: int
    stored: tuple[int, ...]
    checked: tuple[int, ...]

    def __str__(self) -> str:
        ranks = f"{_name_ranks(self.stored)} and {_name_ranks(self.checked)}"
        return f"{self.tensor} in {self.path} differs in chunk {self.chunk} between {ranks}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a check of the replicas found.

    Attributes:
        agreed: chunks that have the same id on a second rank.
        chunks: all chunks that a second rank holds; each is checked in one of ``rounds`` commits in a row.
        differed: chunks that have another id there.
        disputes: the first of these, at most 16.
    """

    agreed: int
    chunks: int
    differed: int = 0
    disputes: tuple[Dispute, ...] = ()

    def __str__(self) -> str:
        if not self.differed:
            return f"two ranks agree on {self.agreed:,} of {self.chunks:,} chunks"
        if not self.disputes:
            return f"{self.differed:,} chunks differ between ranks"
        more = f", and {self.differed - 1:,} more" if self.differed > 1 else ""
        return f"{self.disputes[0]}{more}"

    @property
    def rounds(self) -> int:
        """In how many commits in a row every chunk is checked."""
        from mvc.states.cross_check import CHECK_ROUNDS  # noqa: PLC0415  brings NumPy, which a log needs not

        return CHECK_ROUNDS

    def trailers(self) -> list[tuple[str, str]]:
        """Return it as trailers."""
        counts = f"agreed={self.agreed} of={self.chunks}"
        if self.differed:
            counts += f" differed={self.differed}"
        disputes = ((DISPUTE_TRAILER, _spell_dispute(one)) for one in self.disputes)
        return [(CHECK_TRAILER, counts), *disputes]


def _name_ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _spell_dispute(one: Dispute) -> str:
    stored, checked = (",".join(map(str, ranks)) for ranks in (one.stored, one.checked))
    where = f"{escape_word(one.path)} {escape_word(one.tensor)} chunk={one.chunk}"
    return f"{where} stored={stored} checked={checked}"


def read_agreement(trailers: Iterable[tuple[str, str]]) -> Agreement | None:
    """Return what the trailers of a commit say of its replicas; None without a line that does."""
    found: Agreement | None = None
    disputes: list[Dispute] = []
    for key, value in trailers:
        if key == CHECK_TRAILER and (match := _COUNTS.fullmatch(value)):
            agreed, chunks, differed = (int(text or 0) for text in match.groups())
            found = Agreement(agreed, chunks, differed)
        elif key == DISPUTE_TRAILER and (match := _DISPUTE.fullmatch(value)):
            path, tensor, chunk, *both = match.groups()
            ranks = (tuple(map(int, text.split(","))) for text in both)
            disputes.append(Dispute(unescape_word(path), unescape_word(tensor), int(chunk), *ranks))
    if found is None:
        return None
    return Agreement(found.agreed, found.chunks, found.differed, tuple(disputes[:MAX_DISPUTES]))
