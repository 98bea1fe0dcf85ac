"""What commits say, as Git trailers: facts of the training, health of checkpoints, agreement of replicas.

This module is part of ``log`` and loads nothing heavy.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UsageError
from mvc.history.revisions import STEP_TRAILER

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo


METRIC_TRAILER = "Metric"
META_TRAILER = "Meta"
FACT_TRAILERS = frozenset({STEP_TRAILER, METRIC_TRAILER, META_TRAILER})
_MAX_STEP_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Annotations:
    """What a commit says about the training.

    Attributes:
        step: training step, or None.
        metrics: name → number.
        meta: name → text.
    """

    step: int | None = None
    metrics: Mapping[str, float] | None = None
    meta: Mapping[str, str] | None = None

    def trailers(self) -> list[tuple[str, str]]:
        """Return the trailers."""
        trailers: list[tuple[str, str]] = []
        if self.step is not None:
            trailers.append((STEP_TRAILER, str(check_steps("a step", self.step))))
        for name, value in (self.metrics or {}).items():
            trailers.append((METRIC_TRAILER, f"{_checked(name)}={_checked_number(name, value)}"))
        for name, text in (self.meta or {}).items():
            trailers.append((META_TRAILER, f"{_checked(name)}={text}"))
        return trailers


def _checked(name: str) -> str:
    if not name or "=" in name or any(sign.isspace() for sign in name):
        raise UsageError(f"{name!r} is not a valid name: it must not contain spaces or '='")
    return name


def check_steps(what: str, value: int) -> int:
    """Return a step, or a number of steps, as an int."""
    try:
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{what} is a whole number, not {value!r}") from None
    if not 0 <= number < 10**_MAX_STEP_DIGITS:
        fact = "negative" if number < 0 else f"not a number of at most {_MAX_STEP_DIGITS} digits"
        raise UsageError(f"{what} is {fact}")
    return number


def _checked_number(name: str, value: float) -> str:
    """Return a number as text that reads back to the same bits."""
    try:
        return str(int(value)) if isinstance(value, int) else repr(float(value))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"metric {name!r} is a {type(value).__name__}, not a number", hint="meta takes text"
        ) from None


def read_annotations(info: CommitInfo) -> Annotations:
    """Return what the trailers of a commit say; malformed ones are skipped."""
    step: int | None = None
    metrics: dict[str, float] = {}
    meta: dict[str, str] = {}
    for key, value in info.trailers:
        name, equals, text = value.partition("=")
        if key == STEP_TRAILER:
            # Anyone may write a message, and Python refuses to read numbers of thousands of digits.
            if value.isascii() and value.isdigit() and len(value) <= _MAX_STEP_DIGITS:
                step = int(value)
        elif key == METRIC_TRAILER and equals:
            number = parse_number(text)
            if number is not None:
                metrics[name] = number
        elif key == META_TRAILER and equals:
            meta[name] = text
    return Annotations(step, metrics, meta)


def parse_number(text: str) -> float | None:
    """Return the number a text spells, or None; whole numbers stay whole."""
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return None


_UNSAFE = re.compile(r"[\s%\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPED = re.compile(r"(?:%[0-9A-F]{2})+")


def escape_word(text: str) -> str:
    """Return a name without white space, control characters and plain ``%``."""
    return _UNSAFE.sub(
        lambda match: "".join(
            f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape")
        ),
        text,
    )


def unescape_word(text: str) -> str:
    """Return what ``escape_word`` was given."""
    return _ESCAPED.sub(
        lambda match: bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "surrogateescape"),
        text,
    )


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
    """A chunk that two ranks should hold with the same bytes, and do not.

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
        trailers = [(CHECK_TRAILER, counts)]
        for dispute in self.disputes:
            where = (
                f"{escape_word(dispute.path)} {escape_word(dispute.tensor)} chunk={dispute.chunk}"
            )
            stored, checked = (
                ",".join(map(str, ranks)) for ranks in (dispute.stored, dispute.checked)
            )
            trailers.append((DISPUTE_TRAILER, f"{where} stored={stored} checked={checked}"))
        return trailers


def _name_ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


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
