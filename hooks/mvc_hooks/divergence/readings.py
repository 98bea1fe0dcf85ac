"""What a step says of itself, as values that ranks can average, and as a reading when they have."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING

import numpy as np
import torch

from mvc import UsageError
from mvc_hooks.divergence.history import Reading

if TYPE_CHECKING:
    from mvc_hooks.ranks.messages import StepSums, Value

SCALE = "scale"


def read_values(
    step: int,
    loss: object,
    grad_norm: object,
    *,
    lr: float | None = None,
    scale: float | torch.Tensor | None = None,
    reads_scale: bool = False,
) -> dict[str, Value]:
    """Return the values of a step by name, checked; every rank has to read scales, or none.

    Raises:
        UsageError: a value is not one number.
    """
    values: dict[str, Value] = {
        "loss": _read("loss", step, loss),
        "grad_norm": _read("gradient norm", step, grad_norm),
        "lr": lr,
    }
    if reads_scale:
        values[SCALE] = _read("loss scale", step, scale)
    return values


def as_reading(sums: StepSums) -> Reading:
    """Return the reading of a step from the means over all ranks."""
    return Reading(sums.step, **sums.means)


def _read(what: str, step: int, value: object) -> Value:
    """Return a host value as a float, a CUDA tensor detached, and refuse anything else."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return _read_tensor(what, step, value)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | np.number):
        raise UsageError(f"{what} of step {step} is a {type(value).__name__}, not a number")
    if isinstance(value, np.complexfloating):
        raise UsageError(f"{what} of step {step} is complex")
    try:
        return float(value)
    except OverflowError:
        raise UsageError(f"{what} of step {step} is too large for a float") from None


def _read_tensor(what: str, step: int, value: torch.Tensor) -> Value:
    # The gradient norm of sharded parameters is a DTensor: each rank holds a part of it.
    gather = getattr(value, "full_tensor", None)
    value = (value if gather is None else gather()).detach()
    if value.numel() != 1 or value.is_complex() or value.dtype == torch.bool or value.is_meta:
        raise UsageError(
            f"{what} of step {step} is a tensor of {value.dtype} of shape {tuple(value.shape)}",
            hint="pass one number",
        )
    return value.reshape(()) if value.device.type == "cuda" else float(value.item())
