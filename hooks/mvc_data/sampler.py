"""The requests that one rank makes of its dataset, batch after batch, from a position on.

A rank takes a contiguous slice of each global batch, nearly equal to the others', in one or more
micro-batches. Slices and micro-batches are as many on all ranks and never empty, so no rank waits
for another in a collective.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import distributed

from mvc import UsageError
from mvc.sampling import Ahead, Located, draw_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mvc.sampling import GlobalBatch, SamplePlan, Skips


_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """The samples of a micro-batch."""

    positions: NDArray[np.int64]  # of the samples; workers do not get them
    located: Located
    stop: int  # the position after the global batch
    is_last: bool  # whether the global batch ends with it on this rank

    def __len__(self) -> int:
        return len(self.located)

    def __reduce__(self) -> tuple[Any, ...]:
        # As bytes: arrays take longer to travel than the samples of a cheap dataset.
        located = self.located
        packed = np.concatenate((located.source, located.epoch, located.index)).tobytes()
        return _unpack, (packed, self.stop, self.is_last)


def _unpack(packed: bytes, stop: int, is_last: bool) -> MicroBatch:  # noqa: FBT001  from __reduce__
    source, epoch, index = np.frombuffer(packed, np.int64).reshape(3, -1)
    return MicroBatch(_NONE, Located(source, epoch, index), stop, is_last)


@dataclass(frozen=True, slots=True)
class RankShare:
    """Which part of every global batch a rank takes."""

    rank: int = 0
    ranks: int = 1
    most: int | None = None  # samples of a micro-batch; None: the slice is one

    def count(self, samples: int) -> int:
        """Return how many micro-batches a global batch of this many samples has."""
        if self.most is None:
            return 1
        # A slice that is one shorter than others may not have an empty micro-batch.
        longest, shortest = -(-samples // self.ranks), samples // self.ranks
        return max(1, min(-(-longest // self.most), shortest))

    def cut(self, batch: GlobalBatch) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of a global batch; UsageError if it has too few samples."""
        size = len(batch)
        if size < self.ranks:
            raise UsageError(
                f"a batch of {size} samples is left at the end of an epoch, for {self.ranks} ranks",
                hint='pass drop_last=True, or drop_last="wrap" to fill it up from the next epoch',
            )
        if self.ranks == 1 and self.most is None:
            yield MicroBatch(batch.positions, batch.located, batch.stop, is_last=True)
            return
        start, stop = (size * at // self.ranks for at in (self.rank, self.rank + 1))
        count = self.count(size)
        for number in range(count):
            part = slice(
                start + (stop - start) * number // count,
                start + (stop - start) * (number + 1) // count,
            )
            located = batch.located.take(part)
            yield MicroBatch(batch.positions[part], located, batch.stop, number == count - 1)


def draw_micro_batches(
    plan: SamplePlan, skips: Skips, share: RankShare, cursor: int, micro: int = 0
) -> Iterator[MicroBatch]:
    """Yield what is left of an epoch, without the first ``micro`` micro-batches."""
    end, ahead = find_end(plan, cursor), Ahead(plan)
    while cursor < end and (batch := draw_batch(plan, skips, cursor, ahead)) is not None:
        for number, request in enumerate(share.cut(batch)):
            if number >= micro:
                yield request
        cursor, micro = batch.stop, 0


def find_batch(plan: SamplePlan, skips: Skips, cursor: int) -> tuple[int, GlobalBatch] | None:
    """Return the next global batch and from where it is drawn, in whichever epoch; None: all is skipped.

    Beyond all windows and stages, two epochs without a batch say that there is none.
    """
    windows = (window.stop for window in skips.windows)
    stages = (stage.until or 0 for stage in plan.stages)
    last = max(cursor, *windows, *stages, 0) + 2 * plan.epoch_length
    while (batch := draw_batch(plan, skips, cursor)) is None:
        cursor = skips.leave_window(find_end(plan, cursor))
        if cursor >= last:
            return None
    return cursor, batch


def pass_batches(plan: SamplePlan, skips: Skips, cursor: int, count: int) -> int:
    """Return the position after ``count`` global batches, across epochs; UsageError if there are none."""
    for _ in range(count):
        place = find_batch(plan, skips, cursor)
        if place is None:
            raise UsageError("all samples are skipped")
        cursor = place[1].stop
    return cursor


def find_end(plan: SamplePlan, cursor: int) -> int:
    """Return where the epoch of a position ends."""
    return (cursor // plan.epoch_length + 1) * plan.epoch_length


def find_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return which rank this is, and of how many: as it is said, or as torch.distributed says."""
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size belong together", hint="pass both, or none")
    if rank is None or world_size is None:
        if not has_ranks():
            return 0, 1
        return distributed.get_rank(), distributed.get_world_size()
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise UsageError(f"rank {rank!r} is not a rank of {world_size!r}")
    return rank, world_size


def has_ranks() -> bool:
    """Return whether torch.distributed says which rank this is."""
    return distributed.is_available() and distributed.is_initialized()


def check_share(plan: SamplePlan, share: RankShare) -> None:
    """Check that every rank has a sample of every global batch; UsageError if not."""
    if share.most is not None and (type(share.most) is not int or share.most < 1):
        raise UsageError(f"micro_batch_size is {share.most!r}, not a whole number of 1 or more")
    if plan.batch < share.ranks:
        raise UsageError(
            f"a global batch of {plan.batch} samples is too small for {share.ranks} ranks"
        )
    rest = plan.epoch_length % plan.batch
    if plan.tail == "short" and 0 < rest < share.ranks:
        raise UsageError(
            f"the last batch of an epoch has {rest} samples, for {share.ranks} ranks",
            hint='pass drop_last=True, or drop_last="wrap" to fill it up from the next epoch',
        )
    if plan.batch % share.ranks:
        warnings.warn(
            f"{share.ranks} ranks share global batches of {plan.batch} samples unequally: "
            "an average over ranks is not an average over samples",
            stacklevel=3,
        )
