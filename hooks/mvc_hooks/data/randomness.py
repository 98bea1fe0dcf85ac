"""The generators of Python, NumPy and torch while samples are fetched.

A sample's random numbers should depend on the sample alone: not on the worker or rank that fetches
it, nor on what was fetched before. So the global generators are seeded for each sample. That takes
4, 1.5 and 1 us, more than many a dataset needs for all else, and most draw from one of them or none.
So each is only watched, batch by batch, until it is seen to be drawn from. Then the batch is fetched
again with that generator seeded for each sample, and so is every batch after it.

A generator was drawn from if its state is another one. To ask for that takes 9 us of Python's and 30 us of NumPy's,
so both are read from memory: NumPy's at the address that it tells, Python's behind the header of the
object, if a first look finds there what ``random.getstate`` says.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any, Protocol

import numpy as np
import torch

from mvc import UsageError

_WORDS = 624  # of a Mersenne Twister, which Python and NumPy have; and the place in them
_PYTHON = f"=i{_WORDS}I"
_PYTHON_BYTES = struct.calcsize(_PYTHON)
_PLACE = id(random._inst) + object.__basicsize__  # noqa: SLF001  the module's
_IS_THERE = random.Random.__basicsize__ >= object.__basicsize__ + _PYTHON_BYTES


class Generator(Protocol):
    """One of the global generators."""

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

    def __init__(self) -> None:
        is_there = _IS_THERE and _read_python() == _spell_python()
        self._read = _read_python if is_there else _spell_python
        self._kept, self._normal = b"", None

    def seed(self, seed: int) -> None:
        """Seed it."""
        random.seed(seed)

    def keep(self) -> None:
        """Read its state; of normal numbers one may be kept back, which is part of it."""
        self._kept, self._normal = self._read(), random._inst.gauss_next  # type: ignore[attr-defined]  # noqa: SLF001  the module's generator

    def has_moved(self) -> bool:
        """Compare its state."""
        return self._read() != self._kept or random._inst.gauss_next != self._normal  # type: ignore[attr-defined]  # noqa: SLF001

    def put_back(self) -> None:
        """Set its state."""
        place, *words = struct.unpack(_PYTHON, self._kept)
        random.setstate((random.getstate()[0], (*words, place), self._normal))


class NumpyGenerator:
    """The one behind the functions of ``numpy.random``."""

    _kept = b""

    def seed(self, seed: int) -> None:
        """Seed it with 32 bits, all that it takes at once."""
        np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002  the global one, which datasets use

    def keep(self) -> None:
        """Read its state."""
        self._kept = _read_numpy(_find_numpy())

    def has_moved(self) -> bool:
        """Compare its state."""
        return _read_numpy(_find_numpy()) != self._kept

    def put_back(self) -> None:
        """Set its state; a normal number that it kept back since goes, too."""
        words = np.frombuffer(self._kept, np.uint32)
        np.random.set_state(("MT19937", words[:_WORDS], int(words[_WORDS]), 0, 0.0))  # noqa: NPY002


class TorchGenerator:
    """That of torch for the host, as datasets run there."""

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


def _read_python() -> bytes:
    return ctypes.string_at(_PLACE, _PYTHON_BYTES)


def _spell_python() -> bytes:
    """Return the state in the layout of CPython's object."""
    *words, place = random.getstate()[1]
    return struct.pack(_PYTHON, place, *words)


def _read_torch() -> bytes:
    state = torch.default_generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


def _find_numpy() -> Any:
    bits: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(bits) is not np.random.MT19937:
        raise UsageError(
            f"the functions of numpy.random draw from {type(bits).__name__}, which takes no new seed",
            hint="pass seed_samples=False",
        )
    return bits


def _read_numpy(bits: Any) -> bytes:
    # To ask for its state takes 30 us, so it is read at the address that NumPy tells.
    return ctypes.string_at(bits.ctypes.state_address, 4 * _WORDS + 4)
