"""What a worker does with a request: it fetches the samples and makes the batch of them.

It stands in for the dataset of torch's DataLoader, and collates as well: some random numbers may come from there.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from operator import getitem
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from mvc_data.randomness import GENERATORS, check_seedable, seed_all
from mvc_data.readers.reader import read_by_owner
from mvc_hooks.parts.rng import keep_host_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from mvc import MvcError
    from mvc.sampling import Located
    from mvc_data.randomness import Generator
    from mvc_data.sampler import Request


class Fetcher:
    """Makes batches of samples of some datasets.

    Generators are seeded for each sample if it ``seeds``; None: those that are seen to be used.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        collate: Callable[[Any], Any],
        seed: int,
        *,
        seeds: bool | None,
    ) -> None:
        self.datasets, self._collate, self._seed = datasets, collate, seed
        every: list[Generator] = [] if seeds is False else [kind() for kind in GENERATORS]
        self._seeded, self._watched = (every, []) if seeds else ([], every)
        self._has_looked = False

    def __len__(self) -> int:
        return sum(len(one) for one in self.datasets)

    def __getitems__(self, request: Request) -> Any:
        """Return the batch of a request; torch calls it so."""
        first = self.datasets[0]
        if getattr(first, "is_endless", False):
            first.check_reach((request.stop - 1) % len(first))
        if self._watched and not self._has_looked:
            self._has_looked = True
            check_seedable()
            with keep_host_rng():
                # A normal number that was kept back would hide the first draw.
                seed_all(self._seed)
                batch = self._watch(request, is_apart=False)
            self._keep_all()
            return batch
        return self._watch(request, is_apart=get_worker_info() is not None)

    def _watch(self, request: Request, *, is_apart: bool) -> Any:
        """Return the batch; ``is_apart``: the generators are for samples alone, so they may be anywhere."""
        if not is_apart:
            self._keep_all()
        batch = self._make(request)
        drawn = [one for one in self._watched if one.has_moved()]
        if not drawn:
            return batch
        for one in () if is_apart else drawn:
            one.put_back()
        self._watched = [one for one in self._watched if one not in drawn]
        self._seeded = [*self._seeded, *drawn]
        return self._watch(request, is_apart=is_apart)

    def _keep_all(self) -> None:
        for one in self._watched:
            one.keep()

    def _make(self, request: Request) -> Any:
        located = request.located
        if self._seeded:
            return self._make_seeded(located)
        if len(self.datasets) == 1:
            return self._collate(_fetch(self.datasets[0], located.index.tolist()))

        def fetch(source: int, places: NDArray[np.int64]) -> list[Any]:
            return _fetch(self.datasets[source], located.index[places].tolist())

        return self._collate(read_by_owner(located.source, fetch))

    def _make_seeded(self, located: Located) -> Any:
        seeds, samples = located.make_seeds(self._seed), []
        reseeds = [one.seed for one in self._seeded]
        fetches = [_fetch_one(one) for one in self.datasets]
        # A worker's generators are for samples alone.
        is_apart = get_worker_info() is not None
        with nullcontext() if is_apart else keep_host_rng([one.kind for one in self._seeded]):
            for source, index, seed in zip(
                located.source.tolist(), located.index.tolist(), seeds, strict=True
            ):
                for reseed in reseeds:
                    reseed(seed)
                samples.append(fetches[source](index))
            for reseed in reseeds:
                reseed(seeds[0] ^ 1)
            return self._collate(samples)


def _fetch_one(dataset: Any) -> Callable[[int], Any]:
    """Return what fetches one sample."""
    if getattr(dataset, "__getitems__", None) is None:
        return partial(getitem, dataset)
    return lambda index: dataset.__getitems__([index])[0]


def _fetch(dataset: Any, indices: list[int]) -> list[Any]:
    if getattr(dataset, "__getitems__", None) is not None:
        found: list[Any] = dataset.__getitems__(indices)
        return found
    return [dataset[index] for index in indices]


def unwrap_error(error: MvcError) -> MvcError:
    """Return an error without the traceback that a worker puts around it; its hint is in a note there."""
    mark = f"{type(error).__name__}: "
    lines = [line for line in str(error).splitlines() if not line.startswith(" ")]
    told = [line.partition(mark)[2] for line in lines if mark in line]
    if not told:
        return error
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    return type(error)(told[-1], hint=hints[-1] if hints else None)
