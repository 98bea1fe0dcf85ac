"""A DataLoader that training iterates, though no loader is part of the run."""

from __future__ import annotations

import gc
import warnings
import weakref

from torch.utils.data.dataloader import _BaseDataLoaderIter

_STACK_LEVEL = 4
"""Frames from here to the caller of ``Checkpointer.step``."""


class StrayWatch:
    """Looks at the ends of the first two steps: an iterator that moved in between feeds the training."""

    def __init__(self) -> None:
        """Begin before the first step."""
        self._looks = 0
        self._seen: list[tuple[weakref.ref[_BaseDataLoaderIter], int]] = []

    def look(self) -> None:
        """Note where all iterators stand, or warn of one that went on since."""
        self._looks += 1
        if self._looks == 1:
            self._seen = [(weakref.ref(one), one._num_yielded) for one in _find_iterators()]  # noqa: SLF001  there is no public way to ask
        elif self._seen:
            live = [(one(), before) for one, before in self._seen]
            self._seen = []
            if any(one is not None and one._num_yielded > before for one, before in live):  # noqa: SLF001
                warnings.warn(
                    "a DataLoader is being iterated, but the checkpointer was given none: after a "
                    "resume it starts from its beginning; pass dataloader=... and draw the batches "
                    "with next_batch()",
                    stacklevel=_STACK_LEVEL,
                )


def _find_iterators() -> list[_BaseDataLoaderIter]:
    return [one for one in gc.get_objects() if issubclass(type(one), _BaseDataLoaderIter)]
