"""The values of a tensor as text and as JSON; only ``mvc cat`` loads this, and NumPy with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.cli.output import pick
from mvc.cli.render.text import count_text, number_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mvc.cli.output import Output

_BLOCK_VALUES = 1 << 20
_EDGE_VALUES = 3
_SUMMARISE_FROM = 200


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """A tensor and statistics of its values.

    ``smallest`` and ``largest`` ignore NaN and are None if no value has an order; ``mean`` is that
    of the finite values; the others are counts.
    """

    values: NDArray[Any]
    smallest: float | None
    largest: float | None
    mean: float | complex | None
    nan: int
    inf: int
    zero: int


def numbers_of(values: NDArray[Any]) -> TensorSummary:
    """Look at all values, block by block, so that the tensor is never copied as a whole."""
    smallest = largest = None
    total: Any = 0
    finite = nan = inf = zero = 0
    for block in _blocks(values):
        is_nan, is_finite = np.isnan(block), np.isfinite(block)
        nan += int(is_nan.sum())
        inf += int((~is_finite & ~is_nan).sum())
        zero += int((block == 0).sum())
        finite += int(is_finite.sum())
        total += _sum(block[is_finite])
        known = block[~is_nan]
        if known.size and not np.iscomplexobj(block):
            low, high = known.min().item(), known.max().item()
            smallest = low if smallest is None else min(smallest, low)
            largest = high if largest is None else max(largest, high)
    mean = total / finite if finite else None
    return TensorSummary(values, smallest, largest, mean, nan, inf, zero)


def _sum(block: NDArray[Any]) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        if block.dtype.kind in "iu":
            # Summed in 32-bit halves: int64 could overflow, and these cannot in 2**20 values.
            return (int((block >> 32).sum()) << 32) + int((block & 0xFFFFFFFF).sum())
        return block.sum().item()


def _blocks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield all values as 64-bit integers, doubles or complex doubles."""
    flat = values.reshape(-1)
    kind = values.dtype.kind
    wide: Any = {"b": np.int64, "i": np.int64, "u": np.uint64, "c": np.complex128}.get(
        kind, np.float64
    )
    for start in range(0, flat.size, _BLOCK_VALUES):
        yield flat[start : start + _BLOCK_VALUES].astype(wide)


def value_fields(numbers: TensorSummary, limit: int | None) -> dict[str, object]:
    """Return the statistics and the first ``limit`` values for ``--json``."""
    flat = numbers.values.reshape(-1)
    shown = flat if limit is None else flat[:limit]
    return {
        **pick(numbers, "min=smallest max=largest"),
        "mean": _plain(numbers.mean),
        **pick(numbers, "nan inf zero"),
        "values": [_plain(_scalar(value)) for value in shown],
        "truncated": shown.size < flat.size,
    }


def _scalar(value: Any) -> Any:
    """Return one value as a Python number; those of ml_dtypes become float."""
    number = value.item() if isinstance(value, np.generic) else value
    return number if isinstance(number, (bool, int, float, complex)) else float(number)


def _plain(value: Any) -> Any:
    return [value.real, value.imag] if isinstance(value, complex) else value


def write_values(out: Output, numbers: TensorSummary, *, everything: bool) -> None:
    """Write the range of the values, then the values as NumPy prints them."""
    if numbers.values.size == 0:
        out.line("no values")
        return
    facts = [
        f"{name} {_text(value)}"
        for name, value in (
            ("min", numbers.smallest), ("max", numbers.largest), ("mean", numbers.mean),
        )
        if value is not None
    ]  # fmt: skip
    counts = ((numbers.zero, "zero"), (numbers.nan, "nan"), (numbers.inf, "inf"))
    facts += [count_text(count, name, name) for count, name in counts if count]
    out.line("  ".join(facts))
    text = np.array2string(
        numbers.values,
        max_line_width=out.width or 100,
        threshold=numbers.values.size if everything else _SUMMARISE_FROM,
        edgeitems=_EDGE_VALUES,
        separator=", ",
        formatter={"all": lambda value: _text(_scalar(value))},
    )
    out.line(text)


def _text(value: Any) -> str:
    if isinstance(value, complex):
        return f"{value.real:.6g}{value.imag:+.6g}j"
    return str(value) if isinstance(value, (bool, int)) else number_text(value)
