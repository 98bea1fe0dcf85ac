"""Everything a training run needs to go on exactly where it was, as one nested state and back.

``capture`` asks every part for its ``state_dict()`` and takes the state of every random number
generator of the process; it changes nothing and draws no number. ``restore`` hands all of it back
and is loud: a part that the state lacks, or that the call does not take, is an error before
anything is touched, because a silently missing part is how resumed runs drift apart.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from mvc.errors import NotFoundError, UsageError

try:
    import torch
except ImportError as error:  # pragma: no cover - the tests have torch
    raise ImportError("mvc_hooks needs torch: pip install 'mvc-models[torch]'") from error

if TYPE_CHECKING:
    from collections.abc import Mapping

RNG = "rng"
"""The top-level name that holds the random number generators."""


@runtime_checkable
class Stateful(Protocol):
    """Anything that can say and take back its state: modules, optimizers, schedulers, loaders."""

    def state_dict(self) -> object:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: object) -> object:
        """Take a state back."""
        ...


def capture(**parts: object) -> dict[str, object]:
    """Return the state of all parts and of the process's random number generators.

    Args:
        **parts: name → object with ``state_dict``, or a plain value (a step counter, a dict).

    Returns:
        Name → state, and ``rng``. Tensors are the live ones, not copies: commit them before the
        next optimizer step.

    Raises:
        UsageError: a part is called ``rng``.
    """
    _check_names(parts)
    state: dict[str, object] = {}
    for name, part in parts.items():
        state[name] = part.state_dict() if isinstance(part, Stateful) else part
    state[RNG] = capture_rng()
    return state


def restore(state: Mapping[str, object], **parts: object) -> dict[str, object]:
    """Give a captured state back to the parts and to the random number generators.

    Args:
        state: what ``capture`` returned, as ``Repo.load_state`` gives it back.
        **parts: the same names; objects with ``load_state_dict`` take their state, for anything
            else (None will do) the value is only returned.

    Returns:
        Name → value of the parts that are plain values.

    Raises:
        NotFoundError: the state lacks a part; nothing was touched.
        UsageError: the state has a part that the call does not take; nothing was touched.
    """
    _check_names(parts)
    missing = [name for name in [*parts, RNG] if name not in state]
    if missing:
        raise NotFoundError(f"the state has no {missing[0]!r}")
    extra = [name for name in state if name not in parts and name != RNG]
    if extra:
        raise UsageError(
            f"the state has {extra[0]!r}, which nothing here takes",
            hint=f"pass {extra[0]}=... (None returns its value)",
        )
    values: dict[str, object] = {}
    for name, part in parts.items():
        if isinstance(part, Stateful):
            part.load_state_dict(state[name])
        else:
            values[name] = state[name]
    restore_rng(state[RNG])
    return values


def _check_names(parts: Mapping[str, object]) -> None:
    if RNG in parts:
        raise UsageError(f"{RNG!r} names the random number generators; call the part otherwise")


def capture_rng() -> dict[str, object]:
    """Return the state of Python's, NumPy's, torch's and every CUDA device's generator."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no types
    devices = torch.cuda.get_rng_state_all() if is_used else []
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002  the global generator is what runs use
        "torch": torch.get_rng_state(),
        "cuda": list(devices),
    }


def restore_rng(state: object) -> None:
    """Set every generator back.

    Raises:
        UsageError: not what ``capture_rng`` returned, or it needs more CUDA devices than there are.
    """
    if not isinstance(state, dict) or set(state) != {"python", "numpy", "torch", "cuda"}:
        raise UsageError("not the state of the random number generators")
    devices = state["cuda"]
    if devices and len(devices) > torch.cuda.device_count():
        raise UsageError(
            f"the state is of {len(devices)} CUDA devices, this machine has "
            f"{torch.cuda.device_count()}"
        )
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if devices:
        torch.cuda.set_rng_state_all(devices)
