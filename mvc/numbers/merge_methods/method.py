"""What a merge method is: its parameters, how many tensors it takes, and the function itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from mvc.errors import UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray


T = TypeVar("T")
Value: TypeAlias = float | int | bool
Array: TypeAlias = "NDArray[np.floating[Any]]"

PIECE_ELEMENTS = 2**15
"""Elements of a piece. Its arrays stay in a core's cache, and in memory that the allocator has at hand:
larger ones cost more page faults than arithmetic. Fixed, for sums are formed by pieces."""
MAX_ROW_ELEMENTS = 2**24
"""Longest row of a method that looks at whole rows: it is in memory a few times."""


@dataclass(frozen=True, slots=True)
class MergePiece:
    """A run of elements of all tensors of a merge, in C order, as float32 or float64."""

    first: int  # index of its first element in the tensor
    base: Array | None  # elements of the base; None where the method uses none
    inputs: tuple[Array, ...]  # elements of the inputs, in their order

    @property
    def deltas(self) -> list[Array]:
        """The task vectors: what every input adds to the base."""
        assert self.base is not None
        return [tensor - self.base for tensor in self.inputs]

    @property
    def vectors(self) -> list[Array]:
        """The task vectors where there is a base, else the inputs themselves."""
        return list(self.inputs) if self.base is None else self.deltas


class MergePieces(Protocol):
    """All pieces of a tensor, which can be gone through any number of times."""

    shape: tuple[int, ...]

    def map(self, function: Callable[[MergePiece], T], every: int = 1) -> Iterator[T]:
        """Yield the result of a function for every piece, in order; it may run in any thread.

        With ``every``, pieces hold a sample: one element in ``every``, or one row where rows are whole.
        """
        ...


@dataclass(frozen=True, slots=True)
class MethodSettings:
    """The settings of a method, beside the elements."""

    name: str  # the tensor's name
    common: Mapping[str, Value]  # parameters of the whole merge
    each: tuple[Mapping[str, Value], ...]  # parameters of every input, in their order
    seed: int = 0  # of the random numbers

    def of_inputs(self, name: str) -> list[float]:
        """Return one parameter of every input."""
        return [float(one[name]) for one in self.each]


Apply: TypeAlias = Callable[[MergePiece], Array]
Prepare: TypeAlias = Callable[[MergePieces, MethodSettings], Apply]


@dataclass(frozen=True, slots=True)
class MethodParameter:
    """One parameter of a method, by mergekit's name."""

    name: str  # as in a recipe
    kind: type[bool | int | float] = float  # what its values are; a whole number is a float, too
    default: Value | None = None  # its value where a recipe says nothing; None if the recipe has to
    usual: Value | None = None  # its value in a merge without a recipe, where that differs
    low: float = -math.inf
    high: float = math.inf
    is_open: bool = False  # whether ``low`` itself is too small
    per_input: bool = False  # whether every input has its own

    def find_fault(self, value: object) -> str | None:
        """Return what is wrong with a value, or None."""
        if self.kind is bool or isinstance(value, bool):
            return None if isinstance(value, bool) is (self.kind is bool) else self._wanted()
        numbers = (int,) if self.kind is int else (int, float)
        if not isinstance(value, numbers) or not math.isfinite(value):
            return self._wanted()
        if not self.low <= value <= self.high or (self.is_open and value == self.low):
            return self._wanted()
        return None

    def _wanted(self) -> str:
        if self.kind is bool:
            return "must be true or false"
        word = "whole number" if self.kind is int else "number"
        low = f" {'above' if self.is_open else 'from'} {self.low:g}"
        high = f" {'up ' if math.isfinite(self.low) else ''}to {self.high:g}"
        return (
            f"must be a {word}"
            f"{low if math.isfinite(self.low) else ''}{high if math.isfinite(self.high) else ''}"
        )


@dataclass(frozen=True, slots=True)
class Method:
    """One merge method."""

    name: str  # as in a recipe
    prepare: Prepare  # looks at all pieces if it has to, and returns the function that merges one
    # whether it merges into a base: always, if there is one, or never
    base: Literal["needed", "optional", "none"]
    fewest: int = 1  # inputs that it needs, beside the base
    most: int | None = None  # inputs that it takes; None for any number
    parameters: tuple[MethodParameter, ...] = ()  # what can be set
    # says what is wrong with settings whose single values are right
    find_fault: Callable[[MethodSettings], str | None] = lambda _: None
    # whether a piece has to consist of whole rows (runs of the last dimension)
    needs_rows: Callable[[MethodSettings], bool] = lambda _: False
    # whether equal tensors give just that tensor, so that they need not be read
    keeps_equal: Callable[[MethodSettings], bool] = lambda _: True
    is_seeded: bool = False  # whether it draws random numbers


def check_finite(name: str, *values: float) -> None:
    """Check sums over a whole tensor: NaN or infinity in one element would spoil all others."""
    if not all(map(math.isfinite, values)):
        raise UnsupportedError(
            f"tensor {name!r} has elements that are NaN, infinite or too large, "
            "and this method needs the norm of the whole tensor",
            hint="take that tensor from one side with a rule",
        )


def keep(values: Array, mask: NDArray[np.bool_]) -> Array:
    """Return values where the mask is set, and 0 elsewhere, even for NaN and infinity.

    On bits: ``np.where`` branches at every element, which costs ten times as much.
    """
    words = values.view(f"i{values.itemsize}")
    chosen: Array = (words & -mask.astype(words.dtype)).view(values.dtype)
    return chosen


def choose(mask: NDArray[np.bool_], values: Array, others: Array) -> Array:
    """Return ``np.where(mask, values, others)``, faster; see ``keep``."""
    words, rest = (one.view(f"i{one.itemsize}") for one in (values, others))
    chosen: Array = (rest ^ ((words ^ rest) & -mask.astype(words.dtype))).view(values.dtype)
    return chosen


def total(values: Array) -> float:
    """Return a sum in float64."""
    return float(np.sum(values, dtype=np.float64))


Gram: TypeAlias = "NDArray[np.float64]"


def gram_of(
    pieces: MergePieces,
    name: str,
    vectors: Callable[[MergePiece], Sequence[Array]] = lambda piece: piece.vectors,
) -> Gram:
    """Return the dot products of the task vectors, or of the inputs if there is no base.

    A tensor without elements has zeros. One with NaN or infinity is an UnsupportedError.
    """
    gram: Gram | None = None
    for part in pieces.map(lambda piece: _gram_of_piece(vectors(piece))):
        gram = part if gram is None else gram + part
    assert gram is not None
    check_finite(name, *gram.ravel())
    return gram


def _gram_of_piece(vectors: Sequence[Array]) -> Gram:
    # No BLAS: its sums depend on the processor.
    exact = [vector.astype(np.float64) for vector in vectors]
    gram = np.zeros((len(exact), len(exact)))
    for i, one in enumerate(exact):
        for j, other in enumerate(exact[: i + 1]):
            gram[i, j] = gram[j, i] = np.sum(one * other)
    return gram


def weighted_sum(weights: Sequence[Any], arrays: Sequence[Array]) -> Array:
    """Return the sum of arrays, each times its weight."""
    result: Array = arrays[0] * weights[0]
    for weight, array in zip(weights[1:], arrays[1:], strict=True):
        result += array * weight
    return result


def agreeing(parts: Sequence[Array]) -> list[NDArray[np.bool_]]:
    """Return which elements of each have the sign of the sum of all; a sum of 0 is positive."""
    positive = sum(parts[1:], parts[0]) >= 0
    return [(part > 0) & positive | (part < 0) & ~positive for part in parts]
