"""Rounding: how a working copy of weights is made from its master copy.

Mixed-precision training keeps the weights twice, as F32 and rounded to sixteen bits. The second is
a function of the first, and this is the function; the kind is the ``words`` byte of a reference
block (docs/format.md, section 3).

These are torch's conversions on an x86 processor, bit for bit. Elsewhere torch gives the NaNs of
BF16 other bits; there a chunk that holds one is simply not stored as a cast, since a writer compares
first. Nothing here depends on the machine: NaNs are found and made by integer arithmetic,
and all other numbers have one right answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import FormatError

if TYPE_CHECKING:
    from mvc.dtypes import DType
    from mvc.formats.planes import Bytes, Words

CAST_F32_BF16, CAST_F32_F16 = 1, 2

_KINDS = {("F32", "BF16"): CAST_F32_BF16, ("F32", "F16"): CAST_F32_F16}
_BLOCK_BYTES = 1 << 20
_BLOCK_WORDS = _BLOCK_BYTES // 4
_F16_NORMAL, _F16_INFINITE = 0x38800000, 0x477FF000
"""The smallest F32 words that are a normal number and infinity in F16."""
_F16_REBIAS = 0xFFF - (112 << 23) + (1 << 32)
"""Half a unit less one, and the difference of the exponents' biases, modulo 2**32."""
_TWICE_INFINITY = 0xFF000000
"""An F32 infinity shifted left by one: larger than any number, smaller than any NaN."""


def find_cast(master: DType, working: DType) -> int | None:
    """Return the kind of the cast from one dtype to the other, or None if there is none."""
    return _KINDS.get((master.name, working.name))


def round_words(kind: int, master: Bytes, plain: Bytes, arena: Bytes) -> None:
    """Fill ``plain`` with the rounded F32 words of ``master``; the arena has at least 2 MiB."""
    if kind not in _KINDS.values():
        raise FormatError(f"unknown cast {kind}")
    if master.size != 2 * plain.size or plain.size % 2:
        raise FormatError(f"{master.size} bytes are not the words of a cast to {plain.size} bytes")
    words, rounded = master.view("<u4"), plain.view("<u2")
    round_block = _round_to_bf16 if kind == CAST_F32_BF16 else _round_to_f16
    for start in range(0, words.size, _BLOCK_WORDS):
        block = slice(start, start + _BLOCK_WORDS)
        round_block(words[block], rounded[block], arena)


def _round_to_bf16(words: Words, rounded: Words, arena: Bytes) -> None:
    temporary = arena[: words.nbytes].view("<u4")
    np.add(words, words, out=temporary)
    has_nan = int(temporary.max()) > _TWICE_INFINITY
    nans = np.flatnonzero(temporary > _TWICE_INFINITY) if has_nan else None
    np.right_shift(words, 16, out=temporary)
    np.bitwise_and(temporary, 1, out=temporary)
    np.add(temporary, words, out=temporary)
    np.add(temporary, 0x7FFF, out=temporary)
    np.right_shift(temporary, 16, out=temporary)
    np.copyto(rounded, temporary, casting="unsafe")
    if nans is not None:
        rounded[nans] = 0xFFFF


def _round_to_f16(words: Words, rounded: Words, arena: Bytes) -> None:
    """Round numbers that are normal in F16 all at once, the few others one by one."""
    temporary = arena[: words.nbytes].view("<u4")
    spare = arena[_BLOCK_BYTES : _BLOCK_BYTES + words.nbytes].view("<u4")
    np.bitwise_and(words, 0x7FFFFFFF, out=temporary)
    np.subtract(temporary, _F16_NORMAL, out=temporary)
    others = np.flatnonzero(temporary >= _F16_INFINITE - _F16_NORMAL)
    if others.size > words.size // 8:
        rounded[:] = _round_any_to_f16(words)
        return
    np.right_shift(words, 13, out=temporary)
    np.bitwise_and(temporary, 1, out=temporary)
    np.add(temporary, words, out=temporary)
    np.add(temporary, _F16_REBIAS, out=temporary)
    np.right_shift(temporary, 13, out=temporary)
    np.bitwise_and(temporary, 0x7FFF, out=temporary)
    np.right_shift(words, 16, out=spare)
    np.bitwise_and(spare, 0x8000, out=spare)
    np.bitwise_or(temporary, spare, out=temporary)
    np.copyto(rounded, temporary, casting="unsafe")
    rounded[others] = _round_any_to_f16(words[others])


def _round_any_to_f16(words: Words) -> Words:
    with np.errstate(all="ignore"):
        rounded: Words = words.view("<f4").astype("<f2").view("<u2")
    nans = np.flatnonzero((words & 0x7FFFFFFF) > _TWICE_INFINITY >> 1)
    payloads = words[nans]
    rounded[nans] = payloads >> 16 & 0x8000 | 0x7E00 | payloads >> 13 & 0x1FF
    return rounded
