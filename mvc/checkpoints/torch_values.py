"""Bytes of a stored tensor as a torch tensor; imports torch, so it is imported on demand only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mvc.dtypes import TORCH_NAMES
from mvc.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence


def make_tensor(
    raw: bytearray, dtype: str, shape: Sequence[int], strides: Sequence[int] | None
) -> torch.Tensor:
    """Return a contiguous tensor over (or gathered from) the bytes.

    Args:
        raw: from the first element to past the last one.
        dtype: canonical dtype name; packed types give a flat uint8 tensor of their bytes.
        shape: elements per dimension.
        strides: elements between neighbours, or None for C-contiguous.

    Raises:
        UnsupportedError: the installed torch lacks the dtype.
    """
    name = TORCH_NAMES.get(dtype)  # packed and quantised types have none and stay bytes
    if name is None:
        return _flat(raw, torch.uint8)
    kind = getattr(torch, name, None)
    if kind is None:
        raise UnsupportedError(f"the installed torch has no {name}", hint="install a newer torch")
    flat = _flat(raw, kind)
    if strides is None:
        return flat.reshape(tuple(shape))
    return flat.as_strided(tuple(shape), tuple(strides)).clone(
        memory_format=torch.contiguous_format
    )


def _flat(raw: bytearray, kind: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)
