"""A *case* is a comparison sorted for its verdicts: the changes, and words for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mvc.comparison.kinds import is_state, kind_of
from mvc.dtypes import get_dtype

if TYPE_CHECKING:
    from mvc.comparison.pairs import TensorChange
    from mvc.numbers.spectral import Spectrum
    from mvc.numbers.statistics import TensorStatistics

    Measured = list[tuple[TensorChange, TensorStatistics]]

_Key = TypeVar("_Key", bound="str | tuple[object, ...]")
_SHOWN = 3
_OUTLIERS = 4  # which widen the steps of their whole block
_WHOLE = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"}


@dataclass(frozen=True, slots=True)
class ComparisonVerdict:
    """One sentence on a comparison.

    Attributes:
        kind: what it says, as one word for programs.
        text: the sentence.
        level: ``bad`` if something is probably wrong with the new model, ``warning`` if it may be,
            ``good`` if it is sure that nothing is, else ``note``.
        tensors: names of the tensors that it rests on.
    """

    kind: str
    text: str
    level: str = "note"
    tensors: tuple[str, ...] = ()


class Case:
    """The changes of a model, sorted by what can be said of them.

    Attributes:
        changes: every tensor of both sides.
        spectra: spectra of differences by tensor name, where they were asked for.
        rearranged: how elements moved within a tensor, by name.
        measured: modified tensors with figures.
        weights: those of them whose values moved and that are parts of the model.
    """

    def __init__(
        self,
        changes: Sequence[TensorChange],
        spectra: Mapping[str, Spectrum],
        rearranged: Mapping[str, str],
    ) -> None:
        self.changes, self.spectra, self.rearranged = changes, spectra, rearranged
        self.measured: Measured = [
            (change, change.statistics)
            for change in self.having("modified")
            if change.statistics is not None
            and change.statistics.is_numeric
            and change.statistics.elements
        ]
        self.weights: Measured = [
            (change, two)
            for change, two in self.measured
            if is_weight(change) and not (two.is_cast or is_quantised(change, two))
        ]

    def having(self, status: str) -> list[TensorChange]:
        """Return the tensors of a status."""
        return [change for change in self.changes if change.status == status]


def is_part(change: TensorChange) -> bool:
    """Return whether a tensor is a part of the model, not of an optimizer or a running average."""
    return not is_state(kind_of(change))


def is_weight(change: TensorChange) -> bool:
    """Return whether it is a part that training moves: whole numbers and scalars only count."""
    whole = _WHOLE.issuperset(dtypes_of(change)) or change.pair.shown.elements == 1
    return is_part(change) and not whole


def is_matrix(change: TensorChange) -> bool:
    """Return whether it has two dimensions or more."""
    return len(change.pair.shown.view.shape) > 1


def is_quantised(change: TensorChange, two: TensorStatistics) -> bool:
    """Return whether a packed type explains the difference: b bits an element err by about 2^(1 - b)."""
    types = {get_dtype(name) for name in dtypes_of(change)}
    bits = [8 * one.block_bytes / one.block_elements for one in types if one.block_elements > 1]
    if len(types) == 1 or not bits or two.relative_l2 is None:
        return False
    return two.relative_l2 < _OUTLIERS * 2 ** (1 - min(bits))


def dtypes_of(change: TensorChange) -> tuple[str, ...]:
    """Return the dtypes of its sides, the old one first."""
    return tuple(one.view.dtype for one in (change.pair.old, change.pair.new) if one is not None)


def group(some: Iterable[tuple[TensorChange, _Key]]) -> list[tuple[_Key, list[TensorChange]]]:
    """Group tensors by the second item."""
    groups: dict[_Key, list[TensorChange]] = {}
    for change, key in some:
        groups.setdefault(key, []).append(change)
    return list(groups.items())


def tell(
    kind: str, text: str, some: Iterable[TensorChange], rest: str = "", *, level: str = "note"
) -> ComparisonVerdict:
    """Return a verdict that names the first of its tensors between ``text`` and ``rest``."""
    names = names_of(some)
    return ComparisonVerdict(kind, f"{text}{enumerate_words(names)}{rest}", level, names)


def names_of(some: Iterable[TensorChange]) -> tuple[str, ...]:
    """Return their names."""
    return tuple(change.name for change in some)


def enumerate_words(words: Sequence[str]) -> str:
    """Return the first three words and how many more there are."""
    shown = ", ".join(words[:_SHOWN])
    return f"{shown} and {len(words) - _SHOWN:,} more" if len(words) > _SHOWN else shown


def count(number: int, noun: str) -> str:
    """Return "1 row" or "2 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
