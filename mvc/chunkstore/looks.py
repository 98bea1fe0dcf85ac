"""Which chunks to compare with their bases by sample, and what that means for the others.

A look costs as much as storing the chunk, so looks are a fraction of the chunks: a session that
gains nothing loses next to nothing. Groups of spans change alike, so a few chunks speak for a group,
and where no look saw a change, all other groups of the same type do, if they are of one mind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING

from mvc.formats.deltas import MIN_DELTA_BYTES
from mvc.formats.pack import MAX_DEPTH

if TYPE_CHECKING:
    from mvc.chunkstore.values import ChunkSpan
    from mvc.dtypes import DType
    from mvc.ids import ChunkId

PROMISING = 0.75
"""By default chunks are stored as differences if a sample takes at most this share of the bytes.

Encoding a difference, with reading and checking its base, takes more than twice as long as encoding
the chunk, and what is not written makes up for some of it: measured, a commit takes 1.1 to 1.6 times
as long on a fast disk, and less time on a slow one.
"""
_WORTH_A_LINK = 0.03
"""A base that is a difference itself is taken only if that saves this share of the chunk."""
LIGHT = 1 / 64
"""Differences up to this share of the chunk cost a reader so little that many may stand in a row."""
_WORTH_A_LIGHT_LINK = 0.2
"""Of such a difference: what it must save to be one more in the row."""
STEP_SHARE = 0.014
"""What light differences may take of the chunks, together with those that fold."""
FOLDED_SHARE = 0.7
"""Measured: what one difference takes of the bytes of the eight or more that it replaces, at most."""
_FOLD_LINKS = 8
"""Fewer in a row are not worth folding."""
_CHUNKS_PER_LOOK = 20
_LOOKS_PER_GROUP = 3


@dataclass(frozen=True, slots=True)
class Look:
    """Shares of its bytes that a sample of a span takes: whole, and as differences.

    These are to the nearest chunk that may be its base, and to the last one in the row of bases.
    """

    span: ChunkSpan
    whole: float
    near: float
    last: float


@dataclass(frozen=True, slots=True)
class DeltaVerdict:
    """What to do with chunks.

    ``whole`` is the share that they take whole; ``gains`` whether differences gain enough, and
    ``to_last`` whether those to the last base do. ``light`` is the share that differences to the
    nearest take, if that is little.
    """

    whole: float
    gains: bool
    to_last: bool
    light: float | None = None


def choose_looks(spans: Sequence[ChunkSpan]) -> list[ChunkSpan]:
    """Return the spans to look at: of large groups first, since there a gain counts."""
    groups: dict[int, list[ChunkSpan]] = {}
    for span in spans:
        if span.base is not None and span.size_bytes >= MIN_DELTA_BYTES:
            groups.setdefault(span.group, []).append(span)
    count = sum(map(len, groups.values()))
    if count <= 1:
        return []  # its base would be read twice
    looks = max(1, count // _CHUNKS_PER_LOOK)
    each = max(1, min(_LOOKS_PER_GROUP, looks // len(groups)))
    chosen: list[ChunkSpan] = []
    by_size = sorted(groups.values(), key=lambda group: -sum(span.size_bytes for span in group))
    for members in by_size:
        # Spread evenly over the group, away from its ends if possible.
        number = min(looks - len(chosen), each, len(members))
        chosen += [
            members[(2 * place + 1) * len(members) // (2 * number)] for place in range(number)
        ]
    return chosen


def judge_groups(spans: Iterable[ChunkSpan], looks: Iterable[Look]) -> dict[int, DeltaVerdict]:
    """Return what to do with each group of spans; groups without a verdict are left out."""
    seen: dict[int, list[Look]] = {}
    for look in looks:
        seen.setdefault(look.span.group, []).append(look)
    verdicts = {group: judge(many) for group, many in seen.items()}
    dtypes = {span.group: span.dtype for span in spans}
    alike: dict[DType | None, list[DeltaVerdict]] = {}
    for group, verdict in verdicts.items():
        alike.setdefault(dtypes[group], []).append(verdict)
    for group, dtype in dtypes.items():
        known = alike.get(dtype, [])
        if len({verdict.gains for verdict in known}) == 1:
            verdicts.setdefault(group, known[0])
    return verdicts


def judge(looks: Sequence[Look]) -> DeltaVerdict:
    """Return what to do with chunks that change as those of one or more looks did."""
    whole = fmean(look.whole for look in looks)
    near, last = fmean(look.near for look in looks), fmean(look.last for look in looks)
    light = near if near <= LIGHT else None
    to_last = last - near < (_WORTH_A_LINK * whole if light is None else _WORTH_A_LIGHT_LINK * near)
    return DeltaVerdict(whole, (last if to_last else near) <= PROMISING * whole, to_last, light)


def may_grow(chain: Mapping[ChunkId, int], size_bytes: int) -> bool:
    """Return whether one more light difference may be taken to the first of a chain.

    The chain is chunk → bytes as a difference; the last one is whole, unless that is below zero.
    """
    links = list(chain.values())
    return len(links) <= MAX_DEPTH and links[-1:] == [0] and sum(links) <= size_bytes


def plan_folds(
    chains: Iterable[Mapping[ChunkId, int]], spare_bytes: float
) -> dict[ChunkId, ChunkId]:
    """Return the first chunk of some chains → one as far down as the bytes to spare allow.

    The longest chains come first. A difference that takes the place of several is not longer than
    they are together.
    """
    folds: dict[ChunkId, ChunkId] = {}
    for chain in sorted(chains, key=len, reverse=True):
        below = list(chain)
        costs = list(accumulate(chain.values()))
        links = bisect_right(costs, spare_bytes, hi=max(0, len(below) - 1))
        if links >= _FOLD_LINKS and below[0] not in folds:
            folds[below[0]] = below[links]
            spare_bytes -= costs[links - 1]
    return folds
