"""What a hook remembers of each parameter, as flat tensors of the buckets that DDP has at the moment.

Hooks want one tensor per bucket. But DDP makes its buckets anew after its first backward pass, and another
process may have others, so what lasts is known by the name of the parameter. When a bucket comes with
other parameters than before, the memory of all that had some of them is taken apart by name, and put
together as buckets come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Piece:
    """The share of one parameter in the flat tensor of a bucket."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return torch.Size(self.shape).numel()


Layout = tuple[Piece, ...]


class Memory:
    """One tensor per parameter, in flat tensors of buckets.

    Attributes:
        flats: bucket → its flat tensor; hooks may replace them by others of the same size.
    """

    def __init__(self, flats: dict[int, torch.Tensor] | None = None) -> None:
        """Take the dict in which the flat tensors are to be, or make one."""
        self.flats = {} if flats is None else flats
        self._layouts: dict[int, Layout] = {}
        self._loose: dict[str, torch.Tensor] = {}

    def fit(self, bucket: int, layout: Layout, make: Callable[[Piece], torch.Tensor]) -> bool:
        """Have the flat tensor of a bucket in this layout; ``make`` returns what is not remembered.

        Returns:
            Whether it was so already.
        """
        if self._layouts.get(bucket) == layout:
            return True
        names = {one.name for one in layout}
        for other, pieces in list(self._layouts.items()):
            if other == bucket or not names.isdisjoint(one.name for one in pieces):
                del self._layouts[other]
                self._loose.update(split(self.flats.pop(other), pieces))
        found = [self._loose.pop(one.name, None) for one in layout]
        parts = [
            (make(one) if part is None else part).reshape(-1)
            for one, part in zip(layout, found, strict=True)
        ]
        self.flats[bucket] = torch.cat(parts) if parts else torch.empty(0)
        self._layouts[bucket] = layout
        return False

    def by_name(self) -> dict[str, torch.Tensor]:
        """Return the tensor of each parameter, a view where it is in a bucket; sorted by name."""
        found = dict(self._loose)
        for bucket, layout in self._layouts.items():
            found.update(split(self.flats[bucket], layout))
        return dict(sorted(found.items()))

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Remember these tensors and no others."""
        self._loose = dict(tensors)
        self._layouts.clear()
        self.flats.clear()


def split(flat: torch.Tensor, layout: Layout) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the view of each piece in a flat tensor, with its name."""
    at = 0
    for one in layout:
        yield one.name, flat[at : at + one.size].view(one.shape)
        at += one.size
