"""What a worker does with a request: it fetches the samples and makes the batch of them.

It stands in for the dataset of torch's DataLoader, and collates as well: some random numbers may come from there.

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
from contextlib import nullcontext
from functools import partial
from operator import getitem
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch.utils.data import get_worker_info

from mvc import UsageError
from mvc_data.readers.files import read_by_owner
from mvc_hooks.parts.rng import keep_host_rng

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from mvc import MvcError
    from mvc.sampling import Located
    from mvc_data.sampler import MicroBatch


class Fetcher:
    """Makes batches of samples of some datasets.

    Generators are seeded for each sample if it ``seeds``; None: those that are seen to be used.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        collate: Callable[[Any], Any],
        seed: int,
        *,
        seeds: bool | None,
    ) -> None:
        self.datasets, self._collate, self._seed = datasets, collate, seed
        every: list[Generator] = [] if seeds is False else [kind() for kind in _GENERATORS]
        self._seeded, self._watched = (every, []) if seeds else ([], every)
        self._has_looked = False

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets)

    def __getitems__(self, request: MicroBatch) -> Any:
        """Return the batch of a request; torch calls it so."""
        first = self.datasets[0]
        if getattr(first, "is_endless", False):
            first.check_reach((request.stop - 1) % len(first))
        if self._watched and not self._has_looked:
            self._has_looked = True
            _find_numpy()  # refuses another kind of generator
            with keep_host_rng():
                # A normal number that was kept back would hide the first draw.
                for kind in _GENERATORS:
                    kind().seed(self._seed)
                batch = self._watch(request, is_apart=False)
            self._keep_all()
            return batch
        return self._watch(request, is_apart=get_worker_info() is not None)

    def _watch(self, request: MicroBatch, *, is_apart: bool) -> Any:
        """Return the batch; ``is_apart``: the generators are for samples alone, so they may be anywhere."""
        if not is_apart:
            self._keep_all()
        batch = self._make(request)
        drawn = [generator for generator in self._watched if generator.has_moved()]
        if not drawn:
            return batch
        for generator in () if is_apart else drawn:
            generator.put_back()
        self._watched = [generator for generator in self._watched if generator not in drawn]
        self._seeded = [*self._seeded, *drawn]
        return self._watch(request, is_apart=is_apart)

    def _keep_all(self) -> None:
        for generator in self._watched:
            generator.keep()

    def _make(self, request: MicroBatch) -> Any:
        located = request.located
        if self._seeded:
            return self._make_seeded(located)
        if len(self.datasets) == 1:
            return self._collate(fetch(self.datasets[0], located.index.tolist()))

        def fetch_of(source: int, places: NDArray[np.int64]) -> list[Any]:
            return fetch(self.datasets[source], located.index[places].tolist())

        return self._collate(read_by_owner(located.source, fetch_of))

    def _make_seeded(self, located: Located) -> Any:
        seeds, samples = located.make_seeds(self._seed), []
        reseeds = [generator.seed for generator in self._seeded]
        fetches = [
            partial(getitem, dataset)
            if getattr(dataset, "__getitems__", None) is None
            else lambda index, dataset=dataset: dataset.__getitems__([index])[0]
            for dataset in self.datasets
        ]
        # A worker's generators are for samples alone.
        is_apart = get_worker_info() is not None
        with nullcontext() if is_apart else keep_host_rng([used.kind for used in self._seeded]):
            for source, index, seed in zip(
                located.source.tolist(), located.index.tolist(), seeds, strict=True
            ):
                for reseed in reseeds:
                    reseed(seed)
                samples.append(fetches[source](index))
            for reseed in reseeds:
                reseed(seeds[0] ^ 1)
            return self._collate(samples)


def fetch(dataset: Any, indices: list[int]) -> list[Any]:
    """Return some samples of a dataset, together if it can."""
    if getattr(dataset, "__getitems__", None) is not None:
        samples: list[Any] = dataset.__getitems__(indices)
        return samples
    return [dataset[index] for index in indices]


def unwrap_error(error: MvcError) -> MvcError:
    """Return an error without the traceback that a worker puts around it; its hint is in a note there."""
    mark = f"{type(error).__name__}: "
    lines = [line for line in str(error).splitlines() if not line.startswith(" ")]
    messages = [line.partition(mark)[2] for line in lines if mark in line]
    if not messages:
        return error
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    return type(error)(messages[-1], hint=hints[-1] if hints else None)


_WORDS = 624  # of a Mersenne Twister, which Python and NumPy have; and the place in them
_PYTHON = f"=i{_WORDS}I"
_PYTHON_BYTES = struct.calcsize(_PYTHON)
_NUMPY_BYTES = 4 * _WORDS + 4
_MARK_BYTES = 16  # Python's begins with the place, NumPy's ends with it
_RANDOM: Any = random._inst  # noqa: SLF001  the module's generator
_PLACE = id(_RANDOM) + object.__basicsize__
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
        """Put it back to where it was at ``keep``."""


class _PythonGenerator:
    """That of the module ``random``; of its normal numbers one may be kept back, which is part of its state."""

    kind: ClassVar[str] = "python"

    def __init__(self) -> None:
        is_there = _IS_THERE and _read_python(_PYTHON_BYTES) == _spell_python(_PYTHON_BYTES)
        self._read = _read_python if is_there else _spell_python
        self._kept, self._normal = b"", None

    def seed(self, seed: int) -> None:
        random.seed(seed)

    def keep(self) -> None:
        if self.has_moved():
            self._kept, self._normal = self._read(_PYTHON_BYTES), _RANDOM.gauss_next

    def has_moved(self) -> bool:
        mark = self._kept[:_MARK_BYTES]
        return self._read(_MARK_BYTES) != mark or _RANDOM.gauss_next != self._normal

    def put_back(self) -> None:
        place, *words = struct.unpack(_PYTHON, self._kept)
        random.setstate((random.getstate()[0], (*words, place), self._normal))


def _read_python(size: int) -> bytes:
    return ctypes.string_at(_PLACE, size)


def _spell_python(size: int) -> bytes:
    """Return the start of the state in the layout of CPython's object."""
    *words, place = random.getstate()[1]
    return struct.pack(_PYTHON, place, *words)[:size]


class _NumpyGenerator:
    """The one behind the functions of ``numpy.random``; of its normal numbers one may be kept back, too."""

    kind: ClassVar[str] = "numpy"
    _kept = b""
    _normal: tuple[int, float] = (0, 0.0)

    def seed(self, seed: int) -> None:
        # All 32 bits that it takes at once.
        np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002  the global one, which datasets use

    def keep(self) -> None:
        if self.has_moved():
            self._kept, self._normal = ctypes.string_at(_find_numpy(), _NUMPY_BYTES), _ask_normal()

    def has_moved(self) -> bool:
        mark = ctypes.string_at(_find_numpy() + _NUMPY_BYTES - _MARK_BYTES, _MARK_BYTES)
        # Only a draw of words keeps a normal number back, but one that is there can go without any.
        return mark != self._kept[-_MARK_BYTES:] or (
            self._normal[0] > 0 and _ask_normal() != self._normal
        )

    def put_back(self) -> None:
        words = np.frombuffer(self._kept, np.uint32)
        np.random.set_state(("MT19937", words[:_WORDS], int(words[_WORDS]), *self._normal))  # noqa: NPY002


def _ask_normal() -> tuple[int, float]:
    """Return whether NumPy's generator keeps a normal number back, and which."""
    state = np.random.get_state(legacy=False)  # noqa: NPY002
    return state["has_gauss"], state["gauss"]


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


class _TorchGenerator:
    """That of torch for the host, as datasets run there."""

    kind: ClassVar[str] = "torch"
    _kept = b""

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def keep(self) -> None:
        self._kept = self._read()

    def has_moved(self) -> bool:
        return self._read() != self._kept

    def put_back(self) -> None:
        state = torch.frombuffer(bytearray(self._kept), dtype=torch.uint8)
        torch.default_generator.set_state(state)

    def _read(self) -> bytes:
        state = torch.default_generator.get_state()
        return ctypes.string_at(state.data_ptr(), state.numel())


_GENERATORS: tuple[type[Generator], ...] = (_PythonGenerator, _NumpyGenerator, _TorchGenerator)
