"""Random number generators: those of the process, and those that a run names."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mvc import UsageError
from mvc_hooks.parts.part import Part, RestoreOrder
from mvc_hooks.parts.tree import Difference, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_BIT_GENERATORS = {
    name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
}
_HOST: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "python": (random.getstate, random.setstate),
    "numpy": (np.random.get_state, np.random.set_state),
    "torch": (torch.get_rng_state, torch.set_rng_state),
}
_KEYS = {*_HOST, "cuda"}


def capture_rng() -> dict[str, object]:
    """Return the state of Python's, NumPy's, torch's and every CUDA device's generator."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no types
    devices = torch.cuda.get_rng_state_all() if is_used else []
    return {**{name: get() for name, (get, _) in _HOST.items()}, "cuda": list(devices)}


def restore_rng(state: object) -> None:
    """Set every generator back; UsageError if the state is of something else, or of more devices."""
    if not isinstance(state, dict) or set(state) != _KEYS:
        raise UsageError("not the state of the random number generators")
    devices = state["cuda"]
    if devices and len(devices) > torch.cuda.device_count():
        raise UsageError(
            f"the state is from {len(devices)} CUDA devices, but this machine has "
            f"{torch.cuda.device_count()}"
        )
    for name, (_, put) in _HOST.items():
        put(state[name])
    if devices:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    for index, device in enumerate(devices):
        torch.cuda.set_rng_state(device, index)


@contextmanager
def keep_host_rng(kinds: Iterable[str] = tuple(_HOST)) -> Iterator[None]:
    """Put some of the host's generators, ``python``, ``numpy`` and ``torch``, back as they were on leaving."""
    before = [(_HOST[kind][1], _HOST[kind][0]()) for kind in kinds]
    try:
        yield
    finally:
        for put, state in before:
            put(state)


@contextmanager
def keep_rng(generators: Iterable[Any] = ()) -> Iterator[None]:
    """Put all generators of the process, and the given ones, back as they were on leaving."""
    before = capture_rng()
    named = [GeneratorPart(generator) for generator in generators]
    states = [part.capture() for part in named]
    try:
        yield
    finally:
        restore_rng(before)
        for part, state in zip(named, states, strict=True):
            part.restore(state)


class RngPart(Part):
    """All generators of the process."""

    order = RestoreOrder.RNG

    def generators(self) -> Mapping[str, object]:
        """Return their names; they have no objects of their own."""
        state = capture_rng()
        return {name: None for name, value in state.items() if value != []}

    def capture(self) -> object:
        """Return their states."""
        return capture_rng()

    def restore(self, stored: Any) -> None:
        """Set them back."""
        restore_rng(stored)

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare the number of CUDA devices, which must be the same."""
        if not isinstance(stored, dict) or set(stored) != _KEYS:
            yield Difference(path, "the process's generators", "something else")
            return
        here, there = len(live["cuda"]) or torch.cuda.device_count(), len(stored["cuda"])
        if there != here and (there or live["cuda"]):
            yield Difference((*path, "cuda"), f"{here} devices", f"{there} devices")


class GeneratorPart(Part):
    """A generator of torch, NumPy or Python that is not the global one."""

    order = RestoreOrder.RNG

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def generators(self) -> Mapping[str, object]:
        """Return the one."""
        return {"": self._generator}

    def capture(self) -> object:
        """Return its state."""
        generator = self._generator
        if isinstance(generator, torch.Generator):
            return generator.get_state()
        if isinstance(generator, np.random.Generator):
            state: object = generator.bit_generator.state
            return state
        if isinstance(generator, np.random.RandomState):
            return generator.get_state(legacy=False)
        return generator.getstate()

    def restore(self, stored: Any) -> None:
        """Set it back."""
        generator = self._generator
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = stored
        elif isinstance(generator, random.Random):
            generator.setstate(stored)
        else:
            generator.set_state(stored)

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare the kind of generator."""
        ours, theirs = _find_kind(live), _find_kind(stored)
        if ours != theirs:
            yield Difference(path, ours, theirs)
        else:
            yield from super().compare(live, stored, path)


def capture_generators(live: Mapping[str, Any]) -> dict[str, object]:
    """Return the states of generators by path."""
    return {path: GeneratorPart(generator).capture() for path, generator in live.items()}


def restore_generators(root: Any, live: Mapping[str, Any], states: Mapping[str, Any]) -> list[str]:
    """Set generators below an object back, by path; return the paths where there is none.

    One that its owner makes at its first use, and that is None until then, is made here.
    """
    missing: list[str] = []
    for path, state in states.items():
        generator = live.get(path)
        if generator is None:
            above, _, name = path.rpartition(".")
            owner = find_attribute(root, above)
            # Torch's own classes draw from the global generator if they have none.
            if getattr(owner, name, 0) is not None or type(owner).__module__.startswith("torch."):
                missing.append(path)
                continue
            generator = _make_generator(state)
            setattr(owner, name, generator)
        GeneratorPart(generator).restore(state)
    return missing


def find_attribute(value: Any, path: str) -> Any:
    """Return what is at a dotted path of attributes, or None; the empty path is the value itself."""
    for name in filter(None, path.split(".")):
        value = getattr(value, name, None)
    return value


def _make_generator(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return torch.Generator()
    if isinstance(state, tuple):
        return random.Random()  # noqa: S311  its state comes from the run
    if "gauss" in state:
        return np.random.RandomState()
    return np.random.Generator(_BIT_GENERATORS[state["bit_generator"]]())


def _find_kind(state: object) -> str:
    if isinstance(state, dict):
        return f"a generator of kind {str(state.get('bit_generator'))[:40]}"
    return "a state of random.Random" if isinstance(state, tuple) else "a state of torch.Generator"
