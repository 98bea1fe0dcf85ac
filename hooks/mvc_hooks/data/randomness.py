"""The generators of Python, NumPy and torch while samples are fetched.

A sample's random numbers should depend on the sample alone: not on the worker or rank that fetches
it, nor on what was fetched before. So the global generators are seeded for each sample. That takes
4, 1.5 and 1 us, more than many a dataset needs for all else, and most draw from one of them or none.
So each is only watched, batch by batch, until it is seen to be drawn from. Then the batch is fetched
again with that generator seeded for each sample, and so is every batch after it.

A generator was drawn from if its state is another one. To read Python's takes 9 us or more, so it is compared
by its next number with a twin that was never drawn from in between.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any, Protocol

import numpy as np
import torch

from mvc import UsageError

_WORDS = 624  # of a Mersenne Twister; the place in them follows


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
        self._twin, self._kept = random.Random(), random.getstate()  # noqa: S311  no secrets

    def seed(self, seed: int) -> None:
        """Seed it."""
        random.seed(seed)

    def keep(self) -> None:
        """Remember where it is, with a twin."""
        self._kept = random.getstate()
        self._twin.setstate(self._kept)

    def has_moved(self) -> bool:
        """Draw from both; of normal numbers one may be kept back, which is part of the state."""
        return random.gauss(0, 1) != self._twin.gauss(0, 1)

    def put_back(self) -> None:
        """Set its state."""
        random.setstate(self._kept)


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
        """Set its state, if it is another one: that is slow."""
        if self.has_moved():
            words = np.frombuffer(self._kept, np.uint32)
            # A normal number that it kept back since goes, too.
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
        """Set its state, if it is another one."""
        if self.has_moved():
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


def _read_torch() -> bytes:
    return torch.default_generator.get_state().numpy().tobytes()


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
