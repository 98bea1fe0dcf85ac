"""The generators of Python, NumPy and torch while samples are fetched.

A sample's random numbers should depend on the sample alone: not on the worker or rank that fetches
it, nor on what was fetched before. So the three global generators are seeded for each sample. That
takes 7 us, more than many a dataset needs for all else, and most datasets draw nothing. So at first
it is only seen, once a batch, whether the generators have moved, which is far cheaper. If they have,
the batch is fetched again with seeds, and from then on every batch is.

Their states are read where they lie in memory: NumPy tells where that is; Python's are looked for
behind an object's header, which is tried out first, and read by ``getstate`` where it isn't so.
"""

from __future__ import annotations

import ctypes
import random
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

_WORDS = 624  # of a Mersenne Twister, before which, or after which, is its index
_STATE_BYTES = 4 * (_WORDS + 1)
_HEADER_BYTES = object.__basicsize__


def seed_all(seed: int) -> None:
    """Seed the three generators; torch's for the host alone, as datasets run there."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002  the global one, which datasets use
    torch.default_generator.manual_seed(seed)


def read_marks() -> tuple[object, ...]:
    """Return what changes whenever one of the generators is drawn from."""
    return _read_python(), random._inst.gauss_next, _read_numpy(), _read_torch()  # type: ignore[attr-defined]  # noqa: SLF001  a normal number may be kept back


def put_back(marks: tuple[Any, ...]) -> None:
    """Put the generators back to where they were when the marks were read."""
    python, kept, numpy, drawn = marks
    if _LIES_BEHIND_HEADER:
        ctypes.memmove(id(random._inst) + _HEADER_BYTES, python, _STATE_BYTES)  # noqa: SLF001
    else:
        random.setstate(python)
    random._inst.gauss_next = kept  # type: ignore[attr-defined]  # noqa: SLF001
    bits: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(bits) is np.random.MT19937:
        ctypes.memmove(bits.ctypes.state_address, numpy, _STATE_BYTES)
    else:
        bits.state = numpy.state
    torch.default_generator.set_state(torch.frombuffer(bytearray(drawn), dtype=torch.uint8))


@dataclass(frozen=True, slots=True)
class _State:
    """The state of a bit generator that was put in place of NumPy's own."""

    text: str
    state: Any = field(compare=False)


def _read_torch() -> bytes:
    state = torch.default_generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _read_numpy() -> object:
    bits: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if type(bits) is np.random.MT19937:
        return ctypes.string_at(bits.ctypes.state_address, _STATE_BYTES)
    return _State(repr(bits.state), bits.state)


def _read_python() -> object:
    if _LIES_BEHIND_HEADER:
        return ctypes.string_at(id(random._inst) + _HEADER_BYTES, _STATE_BYTES)  # noqa: SLF001  no public way is fast
    return random.getstate()


def _try_out() -> bool:
    one = random.Random(5)  # noqa: S311  only to look at it
    if type(one).__basicsize__ < _HEADER_BYTES + _STATE_BYTES:
        return False
    words = one.getstate()[1]
    expected = struct.pack(f"={_WORDS + 1}I", words[-1], *words[:-1])
    return ctypes.string_at(id(one) + _HEADER_BYTES, _STATE_BYTES) == expected


_LIES_BEHIND_HEADER = _try_out()
