"""Differences of words, cut into planes of signed digits, and added back.

The difference of two words of w bytes is taken modulo 2**(8 w): it always exists, always undoes
itself, and for two floats of the same sign that lie close together it is a small integer. It is cut
into bytes so that a small one of either sign leaves the high bytes zero. The low half of a word is
read as a *signed* number, and the high half is what remains of the word:

    low  = difference mod 2**(4 w), as a number from -2**(4 w - 1) to 2**(4 w - 1) - 1
    high = (difference - low) / 2**(4 w), modulo 2**(4 w)

and each half of more than one byte is cut again in the same way. Plane 0 holds the highest bytes.

Zig-zag, the usual way to fold the sign in, was measured against this. Size: on weights of a trained
model after 1, 10 and 100 steps signed digits are up to 3 % smaller (F32) or 1 % larger (BF16), on
synthetic weights up to 1 % larger. Time to undo 4 MiB: 0.5 ms against 0.9 (BF16, both planes), 0.9
against 1.2 (F32, all planes), 0.25 against 1.4 where only the lowest plane is not zero, since a
plane of zeros costs nothing here and zig-zag has to join all planes first.

For the size of blocks see ``mvc.formats.planes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mvc.formats.planes import ARENA_BYTES, UINT, Bytes, Words

if TYPE_CHECKING:
    from collections.abc import Sequence

_BLOCK_BYTES = ARENA_BYTES // 4


def split_difference(
    plain: Bytes, base: Bytes, word_bytes: int, planes: Sequence[Bytes], arena: Bytes
) -> None:
    """Cut ``plain - base`` into planes.

    Args:
        plain: whole words.
        base: as many words, to be subtracted.
        word_bytes: 1, 2, 4 or 8.
        planes: where the planes go, one byte per word each.
        arena: ``ARENA_BYTES`` of temporary memory.
    """
    minuend, subtrahend = plain.view(UINT[word_bytes]), base.view(UINT[word_bytes])
    step = _BLOCK_BYTES // word_bytes
    for start in range(0, minuend.size, step):
        block = slice(start, start + step)
        outputs = [plane[block] for plane in planes]
        if word_bytes == 1:
            np.subtract(minuend[block], subtrahend[block], out=outputs[0])
            continue
        words = arena[: minuend[block].nbytes].view(minuend.dtype)
        np.subtract(minuend[block], subtrahend[block], out=words)
        _split(words, outputs, arena[_BLOCK_BYTES:])


def add_difference(planes: Sequence[Bytes | None], plain: Bytes, arena: Bytes) -> None:
    """Add to ``plain`` the difference that ``split_difference`` cut into planes.

    Args:
        planes: one byte per word each, as many as a word has bytes; None is a plane of zeros, and
            a constant plane may be a broadcast (stride 0) array.
        plain: the words of the base; those of the chunk afterwards.
        arena: ``ARENA_BYTES`` of temporary memory.
    """
    word_bytes = len(planes)
    words = plain.view(UINT[word_bytes])
    step = _BLOCK_BYTES // word_bytes
    for start in range(0, words.size, step):
        block = slice(start, start + step)
        inputs = [None if plane is None else plane[block] for plane in planes]
        target = words[block]
        if word_bytes == 1:
            if inputs[0] is not None:
                np.add(target, inputs[0], out=target)
            continue
        difference = arena[: target.nbytes].view(words.dtype)
        if _join(inputs, difference, arena[_BLOCK_BYTES:]):
            np.add(target, difference, out=target)


def _split(words: Words, planes: Sequence[Bytes], arena: Bytes) -> None:
    """Cut ``words`` into planes; overwrites them and the arena."""
    width, middle = words.itemsize, len(planes) // 2
    half = planes[1] if width == 2 else arena[: words.nbytes // 2].view(UINT[width // 2])  # noqa: PLR2004  two bytes are two planes
    np.copyto(half, words, casting="unsafe")
    if width > 2:  # noqa: PLR2004
        _split(half, planes[middle:], arena[half.nbytes :])
    np.add(words, 1 << (4 * width - 1), out=words)
    np.right_shift(words, 4 * width, out=words)
    half = planes[0] if width == 2 else half  # noqa: PLR2004
    np.copyto(half, words, casting="unsafe")
    if width > 2:  # noqa: PLR2004
        _split(half, planes[:middle], arena[half.nbytes :])


def _join(planes: Sequence[Bytes | None], words: Words, arena: Bytes) -> bool:
    """Fill ``words`` from their planes, or return False where all are zero."""
    width, middle = words.itemsize, len(planes) // 2
    half = arena[: words.nbytes // 2].view(UINT[width // 2])
    rest = arena[half.nbytes :]
    low = _join_half(planes[middle:], half, rest)
    if low is not None:
        np.copyto(_signed(words), _signed(low))
    high = _join_half(planes[:middle], half, rest)
    if high is None:
        return low is not None
    upper = words if low is None else rest[: words.nbytes].view(words.dtype)
    np.copyto(upper, high)
    np.multiply(upper, 1 << (4 * width), out=upper)  # beats NumPy's shift of 16-bit words
    if low is not None:
        np.add(words, upper, out=words)
    return True


def _join_half(planes: Sequence[Bytes | None], half: Words, arena: Bytes) -> Words | None:
    if len(planes) == 1:
        return planes[0]
    return half if _join(planes, half, arena) else None


def _signed(words: Words) -> Words:
    signed: Words = words.view(f"<i{words.itemsize}")
    return signed
