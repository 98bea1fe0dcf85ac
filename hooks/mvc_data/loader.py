"""A loader whose order of samples is computed from a seed and one position.

    loader = ConsistentDataLoader(dataset, 64, seed=1, num_workers=4)
    ckpt = Checkpointer("run", model=model, optimizer=optimizer, dataloader=loader)

torch's DataLoader does the loading: workers, prefetching, pinning. This one tells it what to fetch,
and counts what it handed out. All ranks have the same position, whatever is prefetched, so a run goes
on exactly with another number of ranks or workers.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch.utils.data import default_collate

from mvc import ConflictError, FormatError, UsageError
from mvc.sampling import Located, SamplePlan, Skips
from mvc_data.fetching import Fetcher
from mvc_data.options import (
    BATCH_HINT,
    check_options,
    check_skips,
    find_endless,
    find_tail,
    make_sources,
    make_stage,
    name_checks,
)
from mvc_data.passes import HiddenLoader, LoaderPass, OrderPart
from mvc_data.sampler import (
    MicroBatch,
    RankShare,
    check_share,
    draw_micro_batches,
    find_batch,
    find_end,
    find_ranks,
    has_ranks,
    pass_batches,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mvc_data.shards import ShardCheck, ShardSource

    Watcher: TypeAlias = Callable[[NDArray[np.int64], Located], object]

_END = 1 << 62  # positions are below it
_FIELDS = ("batches_drawn", "cursor", "micro", "plan", "skips")


class ConsistentDataLoader:
    """Loads batches of map-style datasets in an order that nothing but its plan decides.

    Iterating yields what is left of the current epoch; the next ``iter()`` goes on with the next one.
    One iterator is live at a time: a new one goes on where the last stood, and ends it.

    Attributes:
        plan: what fixes the order.
        skips: what is left out, and why.
        cursor: the next position; all before it were handed out, on all ranks together, or skipped.
        batches_drawn: global batches that were handed out whole.
        shards: how the shard maps of the datasets are checked, by name.
        is_step_end: whether the latest micro-batch was the last one of its global batch.

    Args:
        dataset: one with ``__len__`` and ``__getitem__``, or several as name → dataset.
        global_batch_size: samples of a batch, over all ranks.
        seed: fixes the order, and the random numbers of each sample.
        shuffle: False: samples come in the order of the datasets.
        drop_last: what becomes of samples at the end of an epoch that fill no batch: False, they
            are a smaller one; True, they are dropped; "wrap", the next epoch fills it up.
        micro_batch_size: most samples that a rank gets at once; None: its whole slice.
        rank: of this process; by default that of torch.distributed, or 0 if that is not
            initialised before the first batch.
        world_size: number of ranks; by default that of torch.distributed, or 1.
        weights: of datasets that are mixed, by name.
        stages: weights that change: (position where they end, weights by name), the last with None.
        epoch_size: samples in an epoch of a mixture; by default as many as the datasets have.
        shards: the shard map that the dataset reads (a path, ``ShardMap`` or ``ShardCheck``), or by
            name of dataset. A ``Checkpointer`` checks it before the first step.
        skip: samples and positions to leave out.
        seed_samples: whether Python's, NumPy's and torch's generators are seeded for each sample;
            None: once the dataset is seen to draw from them.
        num_workers: as for torch's DataLoader.
        collate_fn: as for torch's DataLoader.
        **options: others of torch's DataLoader.

    Raises:
        UsageError: something contradicts.
        NotFoundError, FormatError: there is no such shard map, or it is damaged.
    """

    def __init__(
        self,
        dataset: Any,
        global_batch_size: int | None = None,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool | Literal["wrap"] = False,
        micro_batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        weights: Mapping[str, float] | None = None,
        stages: Sequence[tuple[int | None, Mapping[str, float]]] = (),
        epoch_size: int | None = None,
        shards: ShardSource | ShardCheck | Mapping[str, ShardSource | ShardCheck] | None = None,
        skip: Skips | None = None,
        seed_samples: bool | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        check_options(options)
        if global_batch_size is None:
            raise UsageError("no global_batch_size", hint=BATCH_HINT)
        datasets = dict(dataset) if isinstance(dataset, Mapping) else {"data": dataset}
        tail = find_tail(drop_last)
        self._is_endless = find_endless(datasets)
        self.shards = name_checks(datasets, shards)
        if self._is_endless and tail == "short":
            tail = "drop"  # no batch is begun that the stream may not fill
        self.plan = SamplePlan(
            make_sources(datasets, weights, self.shards),
            seed,
            global_batch_size,
            shuffle,
            tail,
            tuple(make_stage(stage, tuple(datasets)) for stage in stages),
            epoch_size,
        )
        if seed_samples not in (None, True, False):
            raise UsageError(f"seed_samples is {seed_samples!r}, not True, False or None")
        self.dataset, self.num_workers = dataset, num_workers
        # A training library may begin torch.distributed after this.
        self._awaits_ranks = rank is None and not has_ranks()
        self._share = RankShare(*find_ranks(rank, world_size), micro_batch_size)
        check_share(self.plan, self._share)
        self.skips = Skips()
        self._coming = check_skips(self.plan, Skips() if skip is None else skip)
        self.cursor = self.batches_drawn = self._micro = 0
        self.is_step_end = True
        self._watchers: list[Watcher] = []
        # No circle of references: torch's iterators, freed late, wait seconds for their workers.
        self._find_pass: Callable[[], LoaderPass | None] = _find_none
        self._sent: deque[MicroBatch] = deque()
        self._fetcher = Fetcher(
            list(datasets.values()), collate_fn or default_collate, seed, seeds=seed_samples
        )
        self._loading = HiddenLoader(self, self._fetcher, num_workers, options)

    # Drawing.

    def __iter__(self) -> Iterator[Any]:
        """Begin with what is left of the epoch, or with the next one."""
        begun = LoaderPass(self)
        self._find_pass = weakref.ref(begun)
        return begun

    def __len__(self) -> int:
        """Return the micro-batches of a whole epoch, as if none were skipped."""
        if self._is_endless:
            raise TypeError("how many batches there are is not known before the stream ends")
        self._find_share()
        whole, rest = divmod(self.plan.epoch_length, self.plan.batch)
        count = whole * self._share.count(self.plan.batch)
        if not rest or self.plan.tail == "drop":
            return count
        return count + self._share.count(rest if self.plan.tail == "short" else self.plan.batch)

    @property
    def rank(self) -> int:
        """Which slice of each global batch comes here."""
        return self._share.rank

    @property
    def world_size(self) -> int:
        """Of how many slices."""
        return self._share.ranks

    @property
    def epoch(self) -> int:
        """Number of the epoch of the next position."""
        return self.cursor // self.plan.epoch_length

    @property
    def iterator(self) -> object:
        """The iterator that is at work, or None."""
        return self._find_pass()

    def watch(self, callback: Watcher) -> None:
        """Have ``callback(positions, located)`` called for each batch that this rank hands out."""
        self._watchers.append(callback)

    def set_epoch(self, epoch: int) -> None:
        """Go on to an epoch, if it is yet to come.

        The position says which epoch it is, so a loop need not call this. The current epoch goes on
        where it is; an earlier one is refused with a warning, since its samples were seen.
        """
        if type(epoch) is not int or not 0 <= epoch * self.plan.epoch_length < _END:
            raise UsageError(f"epoch is {epoch!r}, not a whole number of 0 or more")
        if epoch < self.epoch:
            warnings.warn(
                f"set_epoch({epoch}) does not go back: the data is in epoch {self.epoch}; "
                "begin the loop at loader.epoch",
                stacklevel=2,
            )
        elif epoch > self.epoch:
            self._go_to(epoch * self.plan.epoch_length)

    # Skipping.

    def skip(self, skips: Skips) -> None:
        """Leave out more from the next global batch on; all ranks must do the same.

        Raises:
            UsageError: in the middle of a global batch.
        """
        self._check_between()
        self._coming = self._coming.join(check_skips(self.plan, skips))
        self._settle()
        self._go_to(self.cursor)

    def skip_batches(self, count: int, *, reason: str, after: int = 0) -> tuple[int, int]:
        """Leave out global batches: ``count`` of them, once ``after`` others were handed out.

        Nothing is loaded. All ranks must do the same.

        Returns:
            The window of positions: first, and the one after the last.

        Raises:
            UsageError: in the middle of a global batch.
        """
        for name, value in (("count", count), ("after", after)):
            if type(value) is not int or value < 0:
                raise UsageError(f"{name} is {value!r}, not a whole number of 0 or more")
        self._check_between()
        self._settle()
        start = pass_batches(self.plan, self.skips, self.cursor, after)
        stop = pass_batches(self.plan, self.skips, start, count)
        if stop > start:
            self.skips = self.skips.add_window(start, stop, reason=reason)
            self._go_to(self.cursor)
        return start, stop

    def _check_between(self) -> None:
        if self._micro:
            raise UsageError(
                f"{self._micro} micro-batches of a global batch were drawn already",
                hint="skip between two steps",
            )

    def _settle(self) -> None:
        """Let what was asked to be skipped count, now that a new batch may begin."""
        self.skips, self._coming = self.skips.join(self._coming), Skips()

    # State.

    def state_dict(self) -> dict[str, Any]:
        """Return the position, which is the same on all ranks, and what it is a position in."""
        return {
            "batches_drawn": self.batches_drawn,
            "cursor": self.cursor,
            "micro": self._micro,
            "plan": self.plan.to_json(),
            "skips": self.skips.to_json(),
        }

    def load_state_dict(self, state: Any) -> None:
        """Go to a position; a live iterator goes on from there. What is skipped here stays so.

        Raises:
            FormatError: not a state of such a loader.
            ConflictError: it is a position in another plan.
        """
        if not isinstance(state, Mapping) or set(state) != set(_FIELDS):
            raise FormatError("not a state of a ConsistentDataLoader")
        counts = [state[name] for name in ("cursor", "batches_drawn", "micro")]
        if any(type(count) is not int or not 0 <= count < _END for count in counts):
            raise FormatError("the position of a loader is not whole numbers")
        plan, skips = SamplePlan.parse(state["plan"]), Skips.parse(state["skips"])
        if plan != self.plan:
            different = "; ".join(self.plan.differences(plan))
            raise ConflictError(
                f"the stored position belongs to another order of samples: {different}"
            )
        self._coming = self.skips.join(self._coming)
        self.skips = skips
        _, self.batches_drawn, self._micro = counts
        self.is_step_end = not self._micro
        self._go_to(counts[0], micro=self._micro)

    def make_part(self, name: str) -> OrderPart:
        """Return what a Checkpointer takes it as."""
        return OrderPart(name, self)

    # What the pass does.

    def _go_to(self, cursor: int, micro: int = 0) -> None:
        self.cursor, self._micro = cursor, micro
        live = self._find_pass()
        if live is not None:
            live.restart()

    def _open(self) -> Any:
        """Return torch's iterator from the position on, in the next epoch if this one is over."""
        self._find_share()
        if not self._micro:
            self._settle()
            batch = find_batch(self.plan, self.skips, self.cursor)
            self.cursor = batch[0] if batch else find_end(self.plan, self.cursor)
        loader = self._loading.loader
        if loader.num_workers == 0 and not loader.pin_memory:
            # All that torch's iterator does then; it takes 20 us a batch for it.
            return map(self._fetcher.__getitems__, self._requests())
        return iter(loader)

    def _find_share(self) -> None:
        """Take the rank of torch.distributed, if that was initialised only after the loader was made."""
        if self._awaits_ranks and has_ranks():
            self._awaits_ranks = False
            self._share = RankShare(*find_ranks(None, None), self._share.most)
            check_share(self.plan, self._share)

    def _hand_out(self) -> None:
        """Move on past the oldest request: batches come in the order in which they were asked for."""
        request = self._sent.popleft()
        self.is_step_end = request.is_last
        self._micro = 0 if request.is_last else self._micro + 1
        if request.is_last:
            self.cursor, self.batches_drawn = request.stop, self.batches_drawn + 1
        for callback in self._watchers:
            callback(request.positions, request.located)

    def _requests(self) -> Iterator[MicroBatch]:
        sent = self._sent = deque()
        requests = draw_micro_batches(self.plan, self.skips, self._share, self.cursor, self._micro)
        for request in requests:
            sent.append(request)
            yield request

    def _end(self, end: int) -> None:
        self.cursor, self._find_pass = max(self.cursor, end), _find_none


def _find_none() -> None:
    return None
