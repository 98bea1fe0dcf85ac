"""A permutation of range(n) by a key: any element, or its position, without making the others.

From 257 elements on it is a Feistel network over two digits instead of two bit strings ("generalised
Feistel" of Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002): a value is
written as left * b + right with left < a and right < b, where a = ceil(sqrt(n)) and b = ceil(n / a).
A round adds a pseudo-random function of one digit to the other, modulo a or b. Each round can be
undone, whatever the function, so the network is a bijection of range(a * b). That is fewer than
sqrt(n) values more than n, so a value that lands beyond n is simply sent through again ("cycle
walking", ibid.), which happens to less than one in 16 and leaves a bijection of range(n).

The function of a round is h(x) = ((x * m + k) ^ ((x * m + k) >> 32)) * m' modulo 2^64, of which the
highest bits are taken and scaled to a or b by a multiplication (Lemire, "Fast random integer
generation in an interval", 2019). x * m + k is a universal hash (Dietzfelbinger et al., 1997); the
shift and the second multiplication make it nonlinear. m, m' (odd) and k of the six rounds come
from BLAKE3 of the key. Four rounds of independent random functions cannot be told from a random
permutation by fewer than about sqrt(a) queries (Luby and Rackoff, 1988; six by far more: Patarin,
"Security of random Feistel schemes with 5 or more rounds", 2004). The functions here mix well but
are no cipher: one who sees the order may find the key.

Up to 256 elements, where so few functions of so few digits would show, the values are sorted by 64
bits each from BLAKE3 of the key: all n! orders are equally likely, up to the chance of a tie.

Everything is exact integer arithmetic, so an order is the same on every machine, and it is part of
the format of a commit (docs/format.md): golden values in the tests pin it for good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from mvc.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]
    Words = NDArray[np.uint64]

MAX_SIZE = 1 << 62
"""The longest order."""
_TABLE_SIZE = 256
_ROUNDS = 6
_AT_ONCE = 1 << 14  # what a core has in its second cache
_SHIFT = np.uint64(32)


def is_whole(value: object, least: int, most: int) -> bool:
    """Return whether a value is a whole number within bounds."""
    return type(value) is int and least <= value <= most


def permute(values: Positions, n: int, key: bytes | int) -> Positions:
    """Return where each of some values of range(n) goes; ``unpermute`` is the inverse.

    Raises:
        UsageError: n is not from 1 to 2^62, or a value is outside range(n).
    """
    return _map(values, n, key, is_inverse=False)


def unpermute(values: Positions, n: int, key: bytes | int) -> Positions:
    """Return the values that ``permute`` takes to these.

    Raises:
        UsageError: n is not from 1 to 2^62, or a value is outside range(n).
    """
    return _map(values, n, key, is_inverse=True)


def _map(values: Positions, n: int, key: bytes | int, *, is_inverse: bool) -> Positions:
    if not is_whole(n, 1, MAX_SIZE):
        raise UsageError(f"an order of {n!r} elements; it takes 1 to 2^62")
    given = np.asarray(values, np.int64)
    flat = given.reshape(-1)
    if flat.size and not 0 <= int(flat.min()) <= int(flat.max()) < n:
        stray = int(flat[(flat < 0) | (flat >= n)][0])
        raise UsageError(f"position {stray} is outside an order of {n} elements")
    if n <= _TABLE_SIZE:
        return _make_tables(n, key)[is_inverse][given]
    network = _make_network(n, key)
    moved = np.empty_like(flat)
    for start in range(0, len(flat), _AT_ONCE):
        part = flat[start : start + _AT_ONCE].astype(np.uint64)
        moved[start : start + _AT_ONCE] = network.walk(part, is_inverse=is_inverse)
    return moved.reshape(given.shape)


def spell_key(key: bytes | int) -> bytes:
    """Return a key as bytes; a number never is what some bytes are."""
    return b"i%d" % key if isinstance(key, int) else b"b" + key


def _expand(n: int, key: bytes | int, words: int) -> Words:
    """Return pseudo-random words of a key; other n have others."""
    stream = blake3(b"mvc order 1\0%d\0" % n + spell_key(key)).digest(length=8 * words)
    return np.frombuffer(stream, "<u8").astype(np.uint64)


@lru_cache(maxsize=256)
def _make_tables(n: int, key: bytes | int) -> tuple[Positions, Positions]:
    order = np.argsort(_expand(n, key, n), kind="stable").astype(np.int64)
    inverse = np.empty_like(order)
    inverse[order] = np.arange(n)
    return order, inverse


@lru_cache(maxsize=256)
def _make_network(n: int, key: bytes | int) -> _Network:
    left = math.isqrt(n - 1) + 1
    words = _expand(n, key, 3 * _ROUNDS).reshape(_ROUNDS, 3) | np.array([1, 0, 1], np.uint64)
    rounds = tuple((first, added, second) for first, added, second in words)
    return _Network(n, left, -(-n // left), rounds)


@dataclass(frozen=True, slots=True)
class _Network:
    """The rounds of a key; ``left`` and ``right`` are the numbers of values of the two digits."""

    n: int
    left: int
    right: int
    rounds: tuple[tuple[np.uint64, np.uint64, np.uint64], ...]

    def walk(self, values: Words, *, is_inverse: bool) -> Words:
        moved = self._run(values, is_inverse=is_inverse)
        limit = np.uint64(self.n)
        while (beyond := np.flatnonzero(moved >= limit)).size:
            moved[beyond] = self._run(moved[beyond], is_inverse=is_inverse)
        return moved

    def _run(self, values: Words, *, is_inverse: bool) -> Words:
        left, right = np.divmod(values, np.uint64(self.right))
        scratch, hashed = np.empty_like(values), np.empty_like(values)
        order = range(_ROUNDS)
        for number in reversed(order) if is_inverse else order:
            into, by, size = (right, left, self.right) if number % 2 else (left, right, self.left)
            _hash(by, self.rounds[number], size, scratch, hashed)
            if is_inverse:
                # into - hashed wraps to a huge number where it is negative, adding size undoes that.
                np.subtract(into, hashed, out=into)
                np.add(into, np.uint64(size), out=scratch)
            else:
                np.add(into, hashed, out=into)
                np.subtract(into, np.uint64(size), out=scratch)
            np.minimum(into, scratch, out=into)
        left *= np.uint64(self.right)
        left += right
        return left


def _hash(
    digits: Words,
    words: tuple[np.uint64, np.uint64, np.uint64],
    size: int,
    scratch: Words,
    out: Words,
) -> None:
    """Put a pseudo-random number below ``size`` for each digit into ``out``."""
    first, added, second = words
    bits = size.bit_length()
    np.multiply(digits, first, out=out)
    out += added
    np.right_shift(out, _SHIFT, out=scratch)
    out ^= scratch
    out *= second
    out >>= np.uint64(bits)  # as many bits fewer, so the product with size has 64 at most
    out *= np.uint64(size)
    out >>= np.uint64(64 - bits)
