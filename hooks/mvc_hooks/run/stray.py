"""A DataLoader that training iterates, though no loader is part of the run."""

from __future__ import annotations

import gc
import weakref

from torch.utils.data.dataloader import _BaseDataLoaderIter


class StrayWatch:
    """Looks at the ends of the first two steps: an iterator that moved in between feeds the training."""

    def __init__(self) -> None:
        """Begin before the first step."""
        self._looks = 0
        self._seen: list[tuple[weakref.ref[_BaseDataLoaderIter], int]] = []

    def look(self) -> bool:
        """Note where all iterators stand, or return whether one went on since."""
        self._looks += 1
        if self._looks == 1:
            self._seen = [(weakref.ref(one), one._num_yielded) for one in _find_iterators()]  # noqa: SLF001  there is no public way to ask
            return False
        live = [(one(), before) for one, before in self._seen]
        self._seen = []
        return any(one is not None and one._num_yielded > before for one, before in live)  # noqa: SLF001


def _find_iterators() -> list[_BaseDataLoaderIter]:
    return [one for one in gc.get_objects() if issubclass(type(one), _BaseDataLoaderIter)]
