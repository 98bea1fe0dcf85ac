"""The merged bytes of one tensor, computed when they are read.

A ``Blend`` is a ``ByteSource``, so the store cuts, hashes and encodes it like a file, on all cores,
and no more than a few pieces is in memory. What its method has to know of the whole tensor it finds
when the first byte is asked for.

Elements of 8 and 16 bits are merged in float32, wider ones in float64, and rounded once, to the
nearest, ties to even; what is too large for fp8 becomes its largest value. A NaN or infinity spoils
just its own element; methods that need a norm of the whole tensor refuse it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mvc.dtypes import DType, count_elements, get_dtype, numpy_dtype, size_in_bytes
from mvc.errors import UnsupportedError, UsageError
from mvc.formats.layout import single_tensor
from mvc.numbers.elements import largest_finite, read_values
from mvc.numbers.merge_methods.method import (
    MAX_ROW_ELEMENTS,
    PIECE_ELEMENTS,
    MergePiece,
    MethodSettings,
)
from mvc.numbers.merge_methods.table import get_method
from mvc.sources import ByteSource, FileSource
from mvc.workspace.tensors import ModelTensor

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from mvc.numbers.elements import Numbers
    from mvc.numbers.merge_methods.method import Apply, Array, Method, MethodParameter, Value
    from mvc.workspace.tensors import Reader

T = TypeVar("T")

_SPAN_ELEMENTS = 2**21  # a chunk of 16-bit elements
_READ_ELEMENTS = 2**16  # of a plain file: new memory of more has to be cleared by the kernel
_NARROW_BYTES = 2  # of the widest elements that are merged in float32


def can_blend(dtype: str) -> bool:
    """Return whether elements of a type can be averaged: all floats of one number each."""
    scalar = numpy_dtype(get_dtype(dtype))
    is_float = dtype.startswith(("F", "BF")) and dtype != "F8_E8M0"  # a scale, never a weight
    return scalar is not None and is_float


@dataclass(frozen=True, slots=True)
class Strategy:
    """How tensors are merged: a method and its parameters, checked before anything is read.

    Make one with ``make_strategy``.
    """

    method: Method
    common: Mapping[str, Value]
    each: tuple[Mapping[str, Value], ...]
    seed: int = 0


def make_strategy(
    name: str,
    common: Mapping[str, object],
    each: Sequence[Mapping[str, object]],
    *,
    has_base: bool = True,
    seed: int = 0,
    is_recipe: bool = False,
) -> Strategy:
    """Check a method and its parameters.

    A parameter in ``common`` that each input has its own of holds for all; ``each`` has as many as there are
    inputs. For a recipe, what mergekit requires has to be given.

    Raises:
        NotFoundError: there is no such method.
        UsageError: a parameter is unknown, missing or out of range, or the number of inputs wrong.
    """
    method = get_method(name)
    _check_inputs(method, len(each), has_base=has_base)
    known = {parameter.name: parameter for parameter in method.parameters}
    for given in (common, *each):
        for key in given:
            if key not in known:
                raise UsageError(
                    f"{name} has no parameter {key!r}",
                    hint=f"it has {', '.join(known)}" if known else "it has none",
                )
    chosen = {
        key: _choose(name, one, [common], is_recipe=is_recipe)
        for key, one in known.items()
        if not one.per_input
    }
    own = tuple(
        {
            key: _choose(name, one, [given, common], is_recipe=is_recipe)
            for key, one in known.items()
            if one.per_input
        }
        for given in each
    )
    fault = method.find_fault(MethodSettings("", chosen, own, seed))
    if fault is not None:
        raise UsageError(f"{name}: {fault}")
    return Strategy(method, chosen, own, seed)


def _check_inputs(method: Method, count: int, *, has_base: bool) -> None:
    if method.base == "needed" and not has_base:
        raise UsageError(
            f"{method.name} needs a base to merge into", hint="name it as `base_model`"
        )
    if count < method.fewest or (method.most is not None and count > method.most):
        exact = method.fewest == method.most
        wanted = f"{'exactly' if exact or count < method.fewest else 'at most'} "
        wanted = wanted if exact or count > method.fewest else "at least "
        number = method.fewest if count < method.fewest else method.most
        beside = " beside the base" if method.base == "needed" else ""
        raise UsageError(
            f"{method.name} merges {wanted}{number} model{'' if number == 1 else 's'}{beside}, "
            f"not {count}"
        )


def _choose(
    method: str,
    parameter: MethodParameter,
    given: Sequence[Mapping[str, object]],
    *,
    is_recipe: bool,
) -> Value:
    for values in given:
        value = values.get(parameter.name)
        if value is None:
            continue
        fault = parameter.find_fault(value)
        if fault is not None:
            raise UsageError(f"`{parameter.name}` of {method} {fault}, not {value!r}")
        assert isinstance(value, int | float)
        return value
    value = parameter.default
    if value is None and not is_recipe:
        value = parameter.usual
    if value is None:
        of_each = " or of each model" if parameter.per_input else ""
        raise UsageError(
            f"{method} needs the parameter `{parameter.name}`",
            hint=f"set it in the parameters of the whole recipe{of_each}" if is_recipe else None,
        )
    return value


class Blend(ByteSource):
    """The bytes of one merged tensor; any threads may read any part of it at once.

    Attributes:
        base: what the inputs are merged into, or None.
        inputs: what is merged.
        dtype: of the result.
        shape: of all of them.
    """

    def __init__(
        self,
        strategy: Strategy,
        name: str,
        inputs: Sequence[ModelTensor],
        base: ModelTensor | None = None,
        *,
        dtype: str | None = None,
        threads: int = 1,
    ) -> None:
        """Check that the tensors fit together; nothing is read yet.

        Random numbers depend on the ``name``. ``dtype`` is that of the result: by default the base's, or the
        first input's. ``threads`` look at the whole tensor, where the method has to.

        Raises:
            UsageError: shapes differ.
            UnsupportedError: elements that cannot be averaged, or rows too long for the method.
        """
        method = strategy.method
        self.base = None if method.base == "none" else base
        self.inputs = tuple(inputs)
        tensors = [*([self.base] if self.base else []), *self.inputs]
        self.dtype = get_dtype(dtype or tensors[0].view.dtype)
        self.shape = tensors[0].view.shape
        self._settings = MethodSettings(name, strategy.common, strategy.each, strategy.seed)
        _check_tensors(name, tensors, self.dtype)
        needs_rows = self.shape and method.needs_rows(self._settings)
        self._row = max(self.shape[-1], 1) if needs_rows else 1
        if self._row > MAX_ROW_ELEMENTS:
            raise UnsupportedError(
                f"rows of tensor {name!r} have {self._row:,} elements, "
                f"{method.name} takes {MAX_ROW_ELEMENTS:,} at most"
            )
        self._step = max(PIECE_ELEMENTS // self._row, 1) * self._row
        self._span = max(_SPAN_ELEMENTS // self._step, 1) * self._step
        is_plain = all(isinstance(tensor.source, FileSource) for tensor in tensors)
        self._read_at_once = (
            max(_READ_ELEMENTS // self._step, 1) * self._step if is_plain else self._span
        )
        wide = [*(get_dtype(tensor.view.dtype) for tensor in tensors), self.dtype]
        is_narrow = all(one.block_bytes <= _NARROW_BYTES for one in wide)
        self._work: np.dtype[Any] = np.dtype(np.float32 if is_narrow else np.float64)
        self._method, self._threads = method, threads
        self._lock, self._apply, self._readers = threading.Lock(), None, None
        self._elements = count_elements(self.shape)

    _apply: Apply | None
    _readers: tuple[Reader | None, list[Reader]] | None

    @property
    def size_bytes(self) -> int:
        """Bytes of the merged tensor."""
        return size_in_bytes(self.dtype, self.shape)

    def as_tensor(self, path: str) -> ModelTensor:
        """Return it as a tensor of a file, whose chunks are not known yet."""
        segment = single_tensor(self._settings.name, self.dtype.name, self.shape, 0)
        return ModelTensor(path, segment.tensors[0], segment, self, 0, None, 0)

    def find_equal(self) -> ModelTensor | None:
        """Return the tensor that this is, if that is known without reading any of them."""
        tensors = [*([self.base] if self.base else []), *self.inputs]
        first = tensors[0]
        same = len(tensors) == 1 or (
            first.id is not None and all(tensor.id == first.id for tensor in tensors)
        )
        if (
            same
            and first.view.dtype == self.dtype.name
            and self._method.keeps_equal(self._settings)
        ):
            return first
        return None

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from that offset of the merged tensor."""
        if offset < 0 or offset + len(buffer) > self.size_bytes:
            raise UsageError(f"bytes {offset}..{offset + len(buffer)} of {self.size_bytes}")
        width = self.dtype.block_bytes
        start, end = offset // width, -(-(offset + len(buffer)) // width)
        apply = self._prepare()
        if self._row > 1:
            end = min(-(-end // self._row) * self._row, self._elements)
        with np.errstate(all="ignore"):
            for piece in self._read(start // self._step * self._step, end):
                raw = _round(apply(piece), self.dtype)
                at = piece.first * width
                begin, stop = max(at, offset), min(at + raw.size, offset + len(buffer))
                buffer[begin - offset : stop - offset] = raw[begin - at : stop - at].data

    def map(self, function: Callable[[MergePiece], T], every: int = 1) -> Iterator[T]:
        """Yield what a function says of every piece, in their order, computed by some threads.

        With ``every``, of a sample instead: one element, or row, in ``every``.
        """

        def work(first: int) -> list[T]:
            with np.errstate(all="ignore"):
                end = min(first + self._span, self._elements)
                pieces = self._read(first, end, every)
                return [function(piece) for piece in pieces]

        self._open()
        firsts = range(0, max(self._elements, 1), self._span)
        if self._threads == 1 or len(firsts) == 1:
            yield from chain.from_iterable(map(work, firsts))
            return
        with ThreadPoolExecutor(self._threads, "mvc-merge") as crew:
            left = iter(firsts)
            waiting = deque(crew.submit(work, first) for first in islice(left, 2 * self._threads))
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(crew.submit(work, first) for first in islice(left, 1))
                yield from result

    def _prepare(self) -> Apply:
        with self._lock:
            if self._apply is None:
                self._open()
                with np.errstate(all="ignore"):
                    self._apply = self._method.prepare(self, self._settings)
            return self._apply

    def _open(self) -> None:
        if self._readers is None:
            base = None if self.base is None else self.base.open()
            self._readers = base, [tensor.open() for tensor in self.inputs]

    def _read(self, start: int, end: int, every: int = 1) -> Iterator[MergePiece]:
        """Yield the pieces of a range; of stored tensors a chunk is read at once: decoded once."""
        assert self._readers is not None
        base, inputs = self._readers
        most = self._read_at_once if every == 1 else self._span
        for begin in range(start, max(end, start + 1), most):
            count = min(most, end - begin)
            read = [
                _read_numbers(reader, tensor, begin, count)
                for reader, tensor in zip(inputs, self.inputs, strict=True)
            ]
            old = None
            if base is not None and self.base is not None:
                old = _read_numbers(base, self.base, begin, count)
            step = self._step if every == 1 else self._span
            for at in range(0, max(count, 1), step):
                yield MergePiece(
                    begin + at,
                    None if old is None else self._take(old[at : at + step], every),
                    tuple(self._take(one[at : at + step], every) for one in read),
                )

    def _take(self, values: Numbers, every: int) -> Array:
        chosen = values if every == 1 else values.reshape(-1, self._row)[::every].reshape(-1)
        return chosen.astype(self._work)


def _check_tensors(name: str, tensors: Sequence[ModelTensor], dtype: DType) -> None:
    for tensor in tensors:
        if tensor.view.shape != tensors[0].view.shape:
            raise UsageError(
                f"tensor {name!r} is {list(tensors[0].view.shape)} in {tensors[0].path} "
                f"and {list(tensor.view.shape)} in {tensor.path}",
                hint="take it from one side with a rule, or align a grown vocabulary by its tokens",
            )
    for kind in dict.fromkeys([*(tensor.view.dtype for tensor in tensors), dtype.name]):
        if not can_blend(kind):
            raise UnsupportedError(
                f"tensor {name!r} is {kind}, whose elements cannot be averaged",
                hint="take it from one side with a rule",
            )


def _read_numbers(read: Reader, tensor: ModelTensor, first: int, count: int) -> Numbers:
    dtype = get_dtype(tensor.view.dtype)
    values = read_values(read(first * dtype.block_bytes, count * dtype.block_bytes), dtype)
    assert values is not None
    return values


def _round(values: Array, dtype: DType) -> NDArray[np.uint8]:
    largest = largest_finite(dtype)
    if largest is not None:
        values = np.where(np.isinf(values), values, np.clip(values, -largest, largest))
    scalar = numpy_dtype(dtype)
    assert scalar is not None
    return np.ascontiguousarray(values.astype(scalar)).view(np.uint8)
