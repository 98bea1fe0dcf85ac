"""What is no tensor in a state dict: DCP passes it on as the bytes of ``torch.save``.

Plain data is stored as such, so it can be read, compared and merged. Any other object is kept as those
bytes; to load it again is to run what is in them, so the reader has to be told to.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import torch

from mvc import MvcError, UnsupportedError
from mvc.training import layout_state
from mvc_hooks.dcp.names import PICKLE, is_pickle


def unpack_object(data: io.BytesIO, *, can_have_arrays: bool = True) -> Any:
    """Return what a commit holds of an object that this process has just saved.

    Without ``can_have_arrays`` there will be nothing in it that a commit keeps in a file of tensors.
    """
    raw = data.getvalue()
    try:
        # Not from a repository: the planner has made it, of an object of this process.
        value = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=False)
        files = layout_state({"value": value}).files
    except MvcError:
        return _keep(raw, can_have_arrays=can_have_arrays)
    except Exception:  # noqa: BLE001  whatever an object of the user does when it is loaded
        return _keep(raw, can_have_arrays=can_have_arrays)
    if is_pickle(value) or (len(files) > 1 and not can_have_arrays):
        return _keep(raw, can_have_arrays=can_have_arrays)
    return value


def _keep(raw: bytes, *, can_have_arrays: bool) -> dict[str, object]:
    return {PICKLE: raw if can_have_arrays else base64.b64encode(raw).decode()}


def pack_object(value: Any, name: str, *, allow_pickle: bool) -> io.BytesIO:
    """Return the bytes that a planner takes for a stored object.

    UnsupportedError: it is not plain data, and that is not allowed.
    """
    if is_pickle(value):
        raw = value[PICKLE]
        raw = base64.b64decode(raw) if isinstance(raw, str) else bytes(raw)
        if allow_pickle:
            return io.BytesIO(raw)
        value = _load_safely(raw, name)
    packed = io.BytesIO()
    torch.save(value, packed)
    packed.seek(0)
    return packed


def _load_safely(raw: bytes, name: str) -> Any:
    try:
        return torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:
        raise UnsupportedError(
            f"{name!r} is stored as a pickled object, which could run anything when it is loaded",
            hint="leave it out, or pass allow_pickle=True if you trust whoever made the commit",
        ) from error
