"""The change of one tensor between two models, and the part of it that can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.dtypes import count_elements, get_dtype

if TYPE_CHECKING:
    from mvc.comparison.pairs import TensorPair
    from mvc.numbers.spectral import Spectrum
    from mvc.numbers.statistics import TensorStatistics

STATUSES = ("unchanged", "modified", "renamed", "added", "removed")


@dataclass(frozen=True, slots=True, eq=False)
class TensorChange:
    """One tensor of two models, compared.

    Attributes:
        pair: the tensor on both sides; readable as long as the models are open.
        status: one of ``STATUSES``. A renamed one has the same bytes; whatever differs in bytes,
            dtype or shape is modified.
        statistics: of the elements that both sides have; None where none were compared: one side
            has no such tensor, nothing differs, or shapes do not fit.
    """

    pair: TensorPair
    status: str
    statistics: TensorStatistics | None = None
    key: bytes | None = None
    spectrum: Spectrum | None = None

    @property
    def name(self) -> str:
        """Its name in the new model, or in the old one if it was removed."""
        return self.pair.shown.name

    @property
    def compared_shape(self) -> tuple[int, ...] | None:
        """Shape of what was compared; None if nothing was."""
        return None if self.statistics is None else find_common_shape(self.pair)


def find_common_shape(pair: TensorPair) -> tuple[int, ...] | None:
    """Return the shape that both sides have: of all, or of the rows that both begin with.

    None if a side has no such tensor, if more than the first dimension differs, or if the common
    part ends within a block of a packed type.
    """
    if pair.old is None or pair.new is None:
        return None
    old, new = pair.old.view.shape, pair.new.view.shape
    if len(old) != len(new) or old[1:] != new[1:]:
        return None
    shape = (min(old[0], new[0]), *old[1:]) if old else ()
    blocks = (get_dtype(side.view.dtype).block_elements for side in (pair.old, pair.new))
    return None if any(count_elements(shape) % block for block in blocks) else shape


def unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the place of a flat index (in C order) in a shape."""
    place = []
    for dim in reversed(shape):
        index, rest = divmod(index, dim)
        place.append(rest)
    return tuple(reversed(place))
