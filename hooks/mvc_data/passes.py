"""What draws from a ConsistentDataLoader: its iterators, and the part that a run takes it as.

A loader and its iterators share the loader's position, so they reach into each other.
"""

# ruff: noqa: SLF001

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from mvc import MvcError, UsageError
from mvc_data.fetching import unwrap_error
from mvc_data.iterables import StreamEndedError
from mvc_data.sampler import MicroBatch, find_end
from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.tree import Difference, Steps
from mvc_hooks.parts.watch import PASSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class LoaderPass:
    """The live iterator of a loader, over the rest of an epoch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.loading: Any = None
        self._num_yielded = self._end = 0
        self._is_over = False

    def __iter__(self) -> LoaderPass:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if self._is_over:
            raise StopIteration
        if loader._find_pass() is not self:
            raise UsageError(
                "this iterator of the loader ended when another one was made",
                hint="draw from one iterator at a time",
            )
        if self.loading is None:
            self.loading = loader._open()
            self._end = find_end(loader.plan, loader.cursor)
        try:
            batch = next(self.loading)
        except StopIteration:
            self._is_over = True
            loader._end(self._end)
            raise
        except StreamEndedError as error:
            self._is_over = True
            self._give_up()
            # The positions of the epoch that the stream does not fill are passed over.
            reason = unwrap_error(error).message[-200:]
            loader.skips = loader.skips.add_window(loader.cursor, self._end, reason=reason)
            loader._end(self._end)
            raise StopIteration from None
        except MvcError as error:
            self._give_up()
            raise unwrap_error(error) from None
        except BaseException:
            self._give_up()
            raise
        loader._hand_out()
        self._num_yielded += 1
        return batch

    def _give_up(self) -> None:
        """Make the batch that failed the next one again: torch would go on after it."""
        failed = self.loading
        self.restart()
        # The traceback is in a circle of references, and workers that end with it are waited for.
        end = getattr(failed, "_shutdown_workers", None)
        if end is not None and not failed._persistent_workers:
            end()

    def restart(self) -> None:
        """Leave what is prefetched: the next batch is that of the loader's position."""
        self.loading = None


PASSES.append(LoaderPass)


class HiddenLoader:
    """Keeps torch's loader from code that looks for loaders to watch: it knows no position."""

    __slots__ = ("loader",)

    def __init__(
        self, owner: object, fetcher: Any, num_workers: int, options: Mapping[str, Any]
    ) -> None:
        # A generator of its own: a pass more or less moves none that the training uses.
        options = {"generator": torch.Generator(), **options}
        try:
            self.loader = DataLoader[Any](
                fetcher,
                batch_sampler=LoaderRequests(owner),  # type: ignore[arg-type]  # what the fetcher takes
                collate_fn=return_fetched,
                num_workers=num_workers,
                **options,
            )
        except (TypeError, ValueError) as error:
            raise UsageError(f"torch's DataLoader refuses the options: {error}") from None


class LoaderRequests:
    """What torch takes for a batch sampler."""

    def __init__(self, loader: Any) -> None:
        self._find: Any = weakref.ref(loader)

    def __iter__(self) -> Iterator[MicroBatch]:
        requests: Iterator[MicroBatch] = self._find()._requests()
        return requests

    def __len__(self) -> int:
        return len(self._find())


def return_fetched(fetched: Any) -> Any:
    """Return a batch, which is made already: a function that workers can import."""
    return fetched


class OrderPart(DataPart):
    """Its position is computed: nothing is drawn again, and it can always go back."""

    is_shared = True
    skips_unread = True

    def __init__(self, name: str, loader: Any) -> None:
        self.name, self.loader = name, loader
        self._drawing_from: Any = None

    def next_batch(self) -> Any:
        """Return the next batch, going on to the next epoch when one is over."""
        for _ in range(2):
            if self._drawing_from is None:
                self._drawing_from = iter(self.loader)
            try:
                return next(self._drawing_from)
            except StopIteration:
                self._drawing_from = None
                if not self.is_endless:
                    raise
        raise self.empty_error()

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """Passes that are complete."""
        return int(self.loader.epoch)

    @property
    def batches_drawn(self) -> int:  # type: ignore[override]
        """Global batches that were handed out whole, whatever iterates the loader."""
        return int(self.loader.batches_drawn)

    @property
    def iterator(self) -> object:
        """The iterator of the loader that is at work, or None."""
        return self.loader.iterator

    @property
    def position(self) -> str:
        """How the position comes back."""
        return "exact"

    @property
    def can_rewind(self) -> bool:
        """Whether the run can go back: always, a live iterator goes along."""
        return True

    def leave_out(self, first: int, last: int, reason: str) -> None:
        """Leave out batches, counted from 1, that are yet to come."""
        after = first - 1 - self.batches_drawn
        self.loader.skip_batches(last - first + 1, reason=reason, after=after)

    def describe(self) -> dict[str, dict[str, object]]:
        """Return what its batches depend on besides the plan."""
        return {self.name: {"num_workers": self.loader.num_workers}}

    def generators(self) -> Mapping[str, object]:  # type: ignore[override]
        """Return none: those of samples are seeded for each."""
        return {}

    def remove(self) -> None:
        """Do nothing: nothing is watched."""

    def check_known(self) -> None:
        """Do nothing: the loader knows its position."""

    def check_drawn(self) -> None:
        """Do nothing: the loader counts what it hands out."""

    def capture(self) -> dict[str, object]:
        """Return the loader's state."""
        state: dict[str, object] = self.loader.state_dict()
        return state

    def restore(self, stored: Any) -> None:
        """Go to a stored position."""
        self.loader.load_state_dict(stored)

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare the plans, field by field."""
        plan = stored.get("plan") if isinstance(stored, dict) else None
        if not isinstance(plan, dict):
            yield Difference(path, "a ConsistentDataLoader", "another loader")
            return
        for name, value in live["plan"].items():
            if plan.get(name) != value:
                yield Difference((*path, "plan", name), repr(value), repr(plan.get(name)))
