"""The generators of Python, NumPy and torch while samples are fetched.

A sample's random numbers should depend on the sample alone: not on the worker or rank that fetches
it, nor on what was fetched before. So the global generators are seeded for each sample. That takes
4, 1.5 and 1 us, more than many a dataset needs for all else, and most draw from one of them or none.
So each is only watched, batch by batch, until it is seen to be drawn from. Then the batch is fetched
again with that generator seeded for each sample, and so is every batch after it.

A generator was drawn from if its state is another one. To ask for that takes 9 us of Python's and 30 us of NumPy's,
so both are read from memory: NumPy's at the address that it tells, Python's behind the header of the
object, if a first look finds there what ``random.getstate`` says. Of these Mersenne Twisters the place and three
words tell: a draw moves the place, and after 624 draws, or a new seed, all words are others (but for one in 2^64).
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from mvc import UsageError

_WORDS = 624  # of a Mersenne Twister, which Python and NumPy have; and the place in them
_PYTHON = f"=i{_WORDS}I"
_PYTHON_BYTES = struct.calcsize(_PYTHON)
_NUMPY_BYTES = 4 * _WORDS + 4
_MARK_BYTES = 16
"""Python's begins with the place, NumPy's ends with it."""
_PLACE = id(random._inst) + object.__basicsize__  # noqa: SLF001  the module's
_IS_THERE = random.Random.__basicsize__ >= object.__basicsize__ + _PYTHON_BYTES


class Generator(Protocol):
    """One of the global generators; ``kind`` is whose."""

    kind: ClassVar[str]

    def seed(self, seed: int) -> None:
        """Seed it with 64 bits, or as many of them as it takes."""

    def keep(self) -> None:
        """Remember where it is."""

    def has_moved(self) -> bool:
        """Return whether it was drawn from since ``keep``, whatever was asked before."""

    def put_back(self) -> None:
        """Have it where it was at ``keep``."""


class PythonGenerator:
    """That of the module ``random``."""

    kind: ClassVar[str] = "python"

    def __init__(self) -> None:
        is_there = _IS_THERE and _read_python(_PYTHON_BYTES) == _spell_python(_PYTHON_BYTES)
        self._read = _read_python if is_there else _spell_python
        self._kept = b""
        self._normal: float | None = None

    def seed(self, seed: int) -> None:
        """Seed it."""
        random.seed(seed)

    def keep(self) -> None:
        """Read its state; of normal numbers one may be kept back, which is part of it."""
        if self.has_moved():
            self._kept, self._normal = self._read(_PYTHON_BYTES), _find_normal()

    def has_moved(self) -> bool:
        """Compare its state."""
        mark = self._kept[:_MARK_BYTES]
        return self._read(_MARK_BYTES) != mark or _find_normal() != self._normal

    def put_back(self) -> None:
        """Set its state."""
        place, *words = struct.unpack(_PYTHON, self._kept)
        random.setstate((random.getstate()[0], (*words, place), self._normal))


class NumpyGenerator:
    """The one behind the functions of ``numpy.random``."""

    kind: ClassVar[str] = "numpy"
    _kept = b""

    def seed(self, seed: int) -> None:
        """Seed it with 32 bits, all that it takes at once."""
        np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002  the global one, which datasets use

    def keep(self) -> None:
        """Read its state."""
        if self.has_moved():
            self._kept = ctypes.string_at(_find_numpy(), _NUMPY_BYTES)

    def has_moved(self) -> bool:
        """Compare its state."""
        mark = ctypes.string_at(_find_numpy() + _NUMPY_BYTES - _MARK_BYTES, _MARK_BYTES)
        return mark != self._kept[-_MARK_BYTES:]

    def put_back(self) -> None:
        """Set its state; a normal number that it kept back since goes, too."""
        words = np.frombuffer(self._kept, np.uint32)
        np.random.set_state(("MT19937", words[:_WORDS], int(words[_WORDS]), 0, 0.0))  # noqa: NPY002


class TorchGenerator:
    """That of torch for the host, as datasets run there."""

    kind: ClassVar[str] = "torch"
    _kept = b""

    def seed(self, seed: int) -> None:
        """Seed it."""
        torch.default_generator.manual_seed(seed)

    def keep(self) -> None:
        """Read its state."""
        self._kept = _read_torch()

    def has_moved(self) -> bool:
        """Compare its state."""
        return _read_torch() != self._kept

    def put_back(self) -> None:
        """Set its state."""
        state = torch.frombuffer(bytearray(self._kept), dtype=torch.uint8)
        torch.default_generator.set_state(state)


GENERATORS: tuple[type[Generator], ...] = (PythonGenerator, NumpyGenerator, TorchGenerator)


def seed_all(seed: int) -> None:
    """Seed the three."""
    for kind in GENERATORS:
        kind().seed(seed)


def check_seedable() -> None:
    """Check that NumPy's functions draw from its own kind of generator; UsageError if not."""
    _find_numpy()


def _find_normal() -> float | None:
    found: float | None = random._inst.gauss_next  # type: ignore[attr-defined]  # noqa: SLF001  the module's generator
    return found


def _read_python(size: int) -> bytes:
    return ctypes.string_at(_PLACE, size)


def _spell_python(size: int) -> bytes:
    """Return the start of the state in the layout of CPython's object."""
    *words, place = random.getstate()[1]
    return struct.pack(_PYTHON, place, *words)[:size]


def _read_torch() -> bytes:
    state = torch.default_generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


def _find_numpy() -> int:
    """Return where its words are; their place follows them."""
    bits: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(bits) is not np.random.MT19937:
        raise UsageError(
            f"the functions of numpy.random draw from {type(bits).__name__}, which takes no new seed",
            hint="pass seed_samples=False",
        )
    address: int = bits.ctypes.state_address
    return address
