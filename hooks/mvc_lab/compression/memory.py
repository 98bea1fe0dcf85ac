"""What a hook remembers of each parameter, as flat tensors of the buckets that DDP has at the moment.

Hooks want one tensor per bucket. But DDP makes new buckets after its first backward pass, and another
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
class BucketPiece:
    """The share of one parameter in the flat tensor of a bucket."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return torch.Size(self.shape).numel()


Layout = tuple[BucketPiece, ...]


class BucketMemory:
    """One tensor per parameter, in flat tensors of buckets."""

    def __init__(self, flats: dict[int, torch.Tensor] | None = None) -> None:
        """Keep the flat tensors in this dict, or in a new one."""
        # Bucket → its flat tensor; hooks may replace them by others of the same size.
        self.flats = {} if flats is None else flats
        self._layouts: dict[int, Layout] = {}
        self._loose: dict[str, torch.Tensor] = {}

    def fit(self, bucket: int, layout: Layout, make: Callable[[BucketPiece], torch.Tensor]) -> bool:
        """Bring the flat tensor of a bucket into this layout; ``make`` returns what is not remembered.

        Returns:
            Whether it was so already.
        """
        if self._layouts.get(bucket) == layout:
            return True
        names = {piece.name for piece in layout}
        for other, pieces in list(self._layouts.items()):
            if other == bucket or not names.isdisjoint(piece.name for piece in pieces):
                del self._layouts[other]
                self._loose.update(split(self.flats.pop(other), pieces))
        parts = []
        for piece in layout:
            tensor = self._loose.pop(piece.name, None)
            parts.append((make(piece) if tensor is None else tensor).reshape(-1))
        self.flats[bucket] = torch.cat(parts) if parts else torch.empty(0)
        self._layouts[bucket] = layout
        return False

    def by_name(self) -> dict[str, torch.Tensor]:
        """Return the tensor of each parameter, a view where it is in a bucket; sorted by name."""
        tensors = dict(self._loose)
        for bucket, layout in self._layouts.items():
            tensors.update(split(self.flats[bucket], layout))
        return dict(sorted(tensors.items()))

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Remember these tensors and no others."""
        self._loose = dict(tensors)
        self._layouts.clear()
        self.flats.clear()


def split(flat: torch.Tensor, layout: Layout) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the view of each piece in a flat tensor, with its name."""
    at = 0
    for piece in layout:
        yield piece.name, flat[at : at + piece.size].view(piece.shape)
        at += piece.size
