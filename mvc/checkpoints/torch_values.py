"""Bytes of a stored tensor as a torch tensor; imports torch, so it is imported on demand only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mvc.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Canonical dtype → name of torch's. Packed and quantised types have none and stay bytes.
_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C32": "complex32",
    "C64": "complex64",
    "C128": "complex128",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


def make_tensor(
    raw: bytearray, dtype: str, shape: Sequence[int], strides: Sequence[int] | None
) -> torch.Tensor:
    """Return a contiguous tensor over (or gathered from) the bytes.

    Args:
        raw: from the first element to behind the last one.
        dtype: canonical dtype name; packed types give a flat uint8 tensor of their bytes.
        shape: elements per dimension.
        strides: elements between neighbours, or None for C-contiguous.

    Raises:
        UnsupportedError: the installed torch lacks the dtype.
    """
    name = _NAMES.get(dtype)
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
