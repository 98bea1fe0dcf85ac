"""The order of a run's samples as one sequence of positions 0, 1, 2, ..., each computed alone.

*Sources without weights* are one after another, and shuffled as one: of N samples in all, position p
is in epoch p // N, and its sample is number permute(p mod N, N, key(seed, epoch)).

*Sources with weights* are mixed. Positions come in blocks of L slots, of which each source has a
whole number, proportional to its weight; a keyed permutation of each block says which slots these are.
The c-th slot of a source takes, in the source's own order, sample c mod n of its epoch c // n: so no
sample comes twice before each of the source has come once. L is the number from 512 to 1024 (twice as
many, and so on, if a source would have no slot) with which the shares come nearest to the weights.
The epoch of the whole is ``epoch_size`` positions, as many as there are samples by default.

*Stages* give the sources other weights from some position on. A source goes on in its own order.

A source that is read in order (``Source.order``) is shuffled by blocks instead (``blocks.py``); sources
one after another are, if one of them is.

Without shuffling, samples come in the order of the sources, and the slots of a block are spread evenly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from json import dumps
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from blake3 import blake3

from mvc.errors import FormatError, UsageError
from mvc.mixing import STEP, mix_words
from mvc.sampling.blocks import BlockOrder
from mvc.sampling.mixture import Mix, choose_slots, split
from mvc.sampling.permutation import MAX_SIZE, is_whole, permute, unpermute
from mvc.sampling.sources import (
    MAX_SOURCES,
    Source,
    Stage,
    check_weight,
    parse_source,
    parse_stage,
    read_fields,
    read_list,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

TAILS = ("short", "drop", "wrap")
_MAX_STAGES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """The samples at some positions: number of the source, its epoch, index in the source."""

    source: Positions
    epoch: Positions
    index: Positions

    def __len__(self) -> int:
        return len(self.source)

    def take(self, chosen: Any) -> Located:
        """Return some of them: by a slice, a mask or numbers."""
        return Located(self.source[chosen], self.epoch[chosen], self.index[chosen])

    def make_seeds(self, seed: int) -> list[int]:
        """Return 64 bits for the random numbers of each sample, by the seed of a run and what it is."""
        mixed = np.full(len(self), seed & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
        for values in (self.source, self.epoch, self.index):
            mixed = mix_words((mixed ^ mix_words(values.astype(np.uint64) + STEP)) + STEP)
        seeds: list[int] = mixed.tolist()
        return seeds


@dataclass(frozen=True)
class SamplePlan:
    """What fixes the order of samples, and how they are cut into global batches.

    Attributes:
        batch: samples in a global batch.
        tail: what becomes of the last samples of an epoch if they fill no batch: they are a
            ``short`` one, dropped (``drop``), or filled up from the next epoch (``wrap``).
        epoch_size: positions in an epoch; None: as many as there are samples, which alone is
            possible without weights.
    """

    sources: tuple[Source, ...]
    seed: int = 0
    batch: int = 1
    shuffle: bool = True
    tail: Tail = "short"
    stages: tuple[Stage, ...] = ()
    epoch_size: int | None = None

    def __post_init__(self) -> None:
        _check_plan(self)

    @cached_property
    def id(self) -> str:
        """64 hex digits that only an equal plan has."""
        text = dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return blake3(text.encode("ascii")).hexdigest()

    @cached_property
    def samples(self) -> int:
        """Samples of all sources."""
        return sum(source.size for source in self.sources)

    @property
    def epoch_length(self) -> int:
        """Positions in an epoch."""
        return self.samples if self.epoch_size is None else self.epoch_size

    @property
    def is_mixture(self) -> bool:
        """Whether sources have weights."""
        return bool(self.stages) or self.sources[0].weight is not None

    def locate(self, positions: Positions) -> Located:
        """Return the samples at some positions, which are not negative and below 2^62."""
        positions = np.asarray(positions, np.int64)
        if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < MAX_SIZE:
            raise UsageError("a position is negative, or 2^62 or more")
        if self.is_mixture:
            return self._locate_mixed(positions)
        epochs, places = np.divmod(positions, self.samples)
        numbers = self._order(0, self.samples, epochs, places)
        if len(self.sources) == 1:
            return Located(np.zeros_like(positions), epochs, numbers)
        sources = np.searchsorted(self._starts, numbers, "right") - 1
        return Located(sources, epochs, numbers - self._starts[sources])

    def find(self, source: int, indices: Positions, epoch: Positions | int) -> Positions:
        """Return where samples of a source come in an epoch of it; -1 where they never do."""
        size = self.sources[source].size
        indices = np.asarray(indices, np.int64)
        epochs = np.broadcast_to(np.asarray(epoch, np.int64), indices.shape)
        is_known = (indices >= 0) & (indices < size) & (epochs >= 0) & (epochs <= MAX_SIZE // size)
        found = np.full(indices.shape, -1, np.int64)
        indices, epochs = indices[is_known], epochs[is_known]
        if self.is_mixture:
            counts = epochs * size + self._order(source, size, epochs, indices, is_inverse=True)
            found[is_known] = self._find_mixed(source, counts)
        else:
            numbers = indices + self._starts[source]
            places = self._order(0, self.samples, epochs, numbers, is_inverse=True)
            found[is_known] = epochs * self.samples + places
        return np.where(found < MAX_SIZE, found, -1)

    def epochs(self, source: int, start: int, stop: int) -> range:
        """Return the epochs of a source that the positions from ``start`` until before ``stop`` touch."""
        size, bounds = self.samples, (start, stop)
        if self.is_mixture:
            ends = [mix.until for mix in self._mixes]
            at = (self._mixes[bisect_right(ends, bound)].count_until(bound) for bound in bounds)
            size, bounds = self.sources[source].size, tuple(int(counts[source]) for counts in at)  # type: ignore[assignment]  # a pair
        return range(bounds[0] // size, -(-bounds[1] // size))

    @cached_property
    def _starts(self) -> Positions:
        """Where each source begins if they are one after another."""
        return np.cumsum([0, *(source.size for source in self.sources[:-1])], dtype=np.int64)

    def _order(
        self,
        source: int,
        size: int,
        epochs: Positions,
        places: Positions,
        *,
        is_inverse: bool = False,
    ) -> Positions:
        if not self.shuffle:
            return places
        blocks = self.sources[source].order if self.is_mixture else self._joint_order
        found = np.empty_like(places)
        for epoch, chosen in split(epochs):
            key = b"samples %d %d %d" % (self.seed, source, epoch)
            if blocks is None:
                found[chosen] = (unpermute if is_inverse else permute)(places[chosen], size, key)
            else:
                find = blocks.find_places if is_inverse else blocks.find_indices
                found[chosen] = find(places[chosen], key)
        return found

    @cached_property
    def _joint_order(self) -> BlockOrder | None:
        """The order of sources that are one after another, if one of them is read in order."""
        orders = [source.order for source in self.sources]
        if len(orders) == 1 or not any(orders):
            return orders[0]
        sizes = [
            np.array([source.size]) if source.order is None else source.order.sizes
            for source in self.sources
        ]
        return BlockOrder(np.concatenate(sizes), max(order.block for order in orders if order))

    # Mixtures.

    @cached_property
    def _mixes(self) -> tuple[Mix, ...]:
        stages = self.stages or (
            Stage(None, tuple(source.weight or 0.0 for source in self.sources)),
        )
        mixes: list[Mix] = []
        start, counts = 0, np.zeros(len(self.sources), np.int64)
        for number, stage in enumerate(stages):
            until = MAX_SIZE if stage.until is None else stage.until
            key = b"slots %d %d" % (self.seed, number) if self.shuffle else None
            mix = Mix(start, until, choose_slots(stage.weights), counts, key)
            mixes.append(mix)
            start, counts = until, mix.count_until(until)
        return tuple(mixes)

    def _locate_mixed(self, positions: Positions) -> Located:
        sources, counts = np.empty_like(positions), np.empty_like(positions)
        ends = np.array([mix.until for mix in self._mixes], np.int64)
        stages = np.searchsorted(ends, positions, "right")
        for stage, chosen in split(stages):
            sources[chosen], counts[chosen] = self._mixes[stage].locate(positions[chosen])
        epochs, indices = np.empty_like(positions), np.empty_like(positions)
        for source, chosen in split(sources):
            size = self.sources[source].size
            epochs[chosen], places = np.divmod(counts[chosen], size)
            indices[chosen] = self._order(source, size, epochs[chosen], places)
        return Located(sources, epochs, indices)

    def _find_mixed(self, source: int, counts: Positions) -> Positions:
        found = np.full(counts.shape, -1, np.int64)
        starts = np.array([mix.counts[source] for mix in self._mixes], np.int64)
        # Of stages in which the source has no slots, so that they begin alike, the last counts.
        stages = np.searchsorted(starts, counts, "right") - 1
        for stage, chosen in split(stages):
            found[chosen] = self._mixes[stage].find(source, counts[chosen])
        return found

    # Stored.

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, which ``parse`` takes."""
        sources = [source.to_json() for source in self.sources]
        stages = [{"until": stage.until, "weights": list(stage.weights)} for stage in self.stages]
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"version": _VERSION, **plain, "sources": sources, "stages": stages}

    @classmethod
    def parse(cls, value: object) -> SamplePlan:
        """Return a stored plan; FormatError if it is malformed."""
        names = {field.name for field in fields(cls)}
        given = read_fields("a plan of samples", value, {"version"} | names)
        if given.pop("version") != _VERSION:
            raise FormatError("a plan of samples has a version that this mvc does not know")
        try:
            sources = tuple(parse_source(part) for part in read_list(given.pop("sources")))
            stages = tuple(parse_stage(part) for part in read_list(given.pop("stages")))
            return cls(sources=sources, stages=stages, **given)
        except UsageError as error:
            raise FormatError(f"a stored plan of samples: {error.message}") from None

    def differences(self, other: SamplePlan) -> Iterator[str]:
        """Yield a line for everything in which another plan differs: here, there."""
        for field in fields(self):
            mine, its = getattr(self, field.name), getattr(other, field.name)
            if mine == its:
                continue
            if field.name != "sources" or len(mine) != len(its):
                shown = (len(mine), len(its)) if field.name == "sources" else (mine, its)
                yield f"{field.name}: {shown[0]!r}, there {shown[1]!r}"
                continue
            for left, right in zip(mine, its, strict=True):
                for part in fields(left):
                    ours, theirs = getattr(left, part.name), getattr(right, part.name)
                    if ours != theirs:
                        yield f"{part.name} of {left.name}: {ours!r}, there {theirs!r}"


# What a plan must hold: checked when one is made, by a user or from a commit, so its fields may be anything.


def _check_plan(plan: Any) -> None:
    """Check that the parts of a plan go together; UsageError if they do not."""
    if not isinstance(plan.sources, tuple) or not 0 < len(plan.sources) <= MAX_SOURCES:
        raise UsageError(f"a plan has 1 to {MAX_SOURCES} sources")
    if len({source.name for source in plan.sources}) < len(plan.sources):
        raise UsageError("two sources have one name")
    if not is_whole(plan.seed, 0, (1 << 64) - 1):
        raise UsageError(f"seed is {plan.seed!r}, not a whole number from 0 to 2^64 - 1")
    if not is_whole(plan.batch, 1, 1 << 40):
        raise UsageError(
            f"the global batch size is {plan.batch!r}, not a whole number of 1 or more"
        )
    if type(plan.shuffle) is not bool:
        raise UsageError(f"shuffle is {plan.shuffle!r}, neither True nor False")
    if plan.tail not in TAILS:
        raise UsageError(f"tail is {plan.tail!r}, not one of {', '.join(TAILS)}")
    if plan.samples > MAX_SIZE:
        raise UsageError("the sources have more than 2^62 samples")
    _check_mixture(plan)


def _check_mixture(plan: Any) -> None:
    weighted = sum(source.weight is not None for source in plan.sources)
    if weighted not in (0, len(plan.sources)):
        name = next(source.name for source in plan.sources if source.weight is None)
        raise UsageError(
            f"source {name!r} has no weight, but others have", hint="give each a weight, or none"
        )
    if plan.stages and weighted:
        raise UsageError("sources have weights, and so have stages", hint="leave out the sources'")
    if plan.epoch_size is not None:
        if not is_whole(plan.epoch_size, 1, MAX_SIZE):
            raise UsageError(f"epoch_size is {plan.epoch_size!r}, not a number of samples")
        if not plan.is_mixture:
            raise UsageError("epoch_size is for sources with weights only")
    _check_stages(plan)
    if plan.is_mixture:
        for stage in plan.stages:
            choose_slots(stage.weights)
        if weighted:
            choose_slots(tuple(source.weight or 0.0 for source in plan.sources))


def _check_stages(plan: Any) -> None:
    if not isinstance(plan.stages, tuple) or len(plan.stages) > _MAX_STAGES:
        raise UsageError(f"a plan has at most {_MAX_STAGES} stages")
    start = 0
    for number, stage in enumerate(plan.stages):
        is_last = number == len(plan.stages) - 1
        if is_last != (stage.until is None):
            raise UsageError("each stage but the last, and only these, says until which position")
        if not is_last and not is_whole(stage.until, start + 1, MAX_SIZE - 1):
            raise UsageError(
                f"stage {number + 1} ends at {stage.until!r}, where it begins or before"
            )
        start = stage.until or 0
        if len(stage.weights) != len(plan.sources):
            raise UsageError(f"stage {number + 1} does not have one weight per source")
        for source, weight in zip(plan.sources, stage.weights, strict=True):
            check_weight(source.name, weight, 0.0)
        if not any(stage.weights):
            raise UsageError(f"in stage {number + 1} every weight is 0")


Tail = Literal["short", "drop", "wrap"]
_VERSION = 1
