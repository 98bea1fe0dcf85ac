"""What a worker does with a request: it fetches the samples and makes the batch of them.

It stands in for the dataset of torch's DataLoader and collates as well, so that the request, which
says what was really fetched, comes to the main process together with the batch.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from mvc_hooks.data.randomness import put_back, read_marks, seed_all
from mvc_hooks.data.readers.reader import read_by_owner
from mvc_hooks.parts.rng import keep_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from mvc_hooks.data.sampler import Request


class Fetched:
    """A batch, and what it was made of."""

    __slots__ = ("batch", "request")

    def __init__(self, batch: Any, request: Request) -> None:
        self.batch, self.request = batch, request

    def pin_memory(self) -> Fetched:
        """Return it with its batch in pinned memory, as torch asks."""
        return Fetched(pin_memory(self.batch), self.request)  # type: ignore[no-untyped-call]


class Fetcher:
    """Makes batches of samples of some datasets.

    Attributes:
        seeds: whether generators are seeded for each sample; None: once they are seen to be used.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        collate: Callable[[Any], Any],
        seed: int,
        *,
        seeds: bool | None,
    ) -> None:
        self.datasets, self._collate, self._seed, self.seeds = datasets, collate, seed, seeds
        self._has_looked = False

    def __len__(self) -> int:
        return sum(len(one) for one in self.datasets)

    def __getitems__(self, request: Request) -> Fetched:
        """Return the batch of a request; torch calls it so."""
        first = self.datasets[0]
        if getattr(first, "is_endless", False):
            first.check_reach((request.stop - 1) % len(first))
        if self.seeds is False:
            return Fetched(self._make(request), request)
        if self.seeds:
            return Fetched(self._make_seeded(request), request)
        if not self._has_looked:
            # A normal number that was kept back would hide the first draw.
            self._has_looked = True
            with _apart():
                seed_all(self._seed)
                batch, is_drawn = self._watch(request)
        else:
            batch, is_drawn = self._watch(request)
        if is_drawn:
            self.seeds = True
            batch = self._make_seeded(request)
        return Fetched(batch, request)

    def _watch(self, request: Request) -> tuple[Any, bool]:
        """Return the batch, and whether generators were drawn from; then they are put back."""
        before = read_marks()
        batch = self._make(request)
        is_drawn = read_marks() != before
        if is_drawn:
            put_back(before)
        return batch, is_drawn

    def _make(self, request: Request) -> Any:
        located = request.located
        if len(self.datasets) == 1:
            return self._collate(_fetch(self.datasets[0], located.index.tolist()))

        def fetch(source: int, places: NDArray[np.int64]) -> list[Any]:
            return _fetch(self.datasets[source], located.index[places].tolist())

        return self._collate(read_by_owner(located.source, fetch))

    def _make_seeded(self, request: Request) -> Any:
        located = request.located
        seeds = located.make_seeds(self._seed)
        samples = []
        with _apart():
            for source, index, seed in zip(
                located.source.tolist(), located.index.tolist(), seeds, strict=True
            ):
                seed_all(seed)
                samples += _fetch(self.datasets[source], [index])
            seed_all(seeds[0] ^ 1)
            return self._collate(samples)


def _apart() -> Any:
    """Return what keeps the generators of the main process; a worker's are for samples alone."""
    return keep_rng(with_devices=False) if get_worker_info() is None else nullcontext()


def _fetch(dataset: Any, indices: list[int]) -> list[Any]:
    if hasattr(dataset, "__getitems__") and dataset.__getitems__ is not None:
        found: list[Any] = dataset.__getitems__(indices)
        return found
    return [dataset[index] for index in indices]
