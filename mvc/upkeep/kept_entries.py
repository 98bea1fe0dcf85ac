"""Which kept statistics are about tensors or chunks that nothing reaches any more."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import FormatError
from mvc.formats.manifest import tensor_id
from mvc.ids import ID_BYTES
from mvc.upkeep.sweep import IdSet, SweepMarks
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from mvc.workspace.context import Context

_GIT_ID_BYTES = 20


def find_useless(context: Context, marks: SweepMarks) -> list[tuple[bytes, bytes]]:
    """Return (kind, key) of the entries that name something which is not needed any more."""
    entries = context.kept.list_entries()
    ids = [name for _, key in entries for name in _ids_of(key)]
    if not ids:
        return []
    reached = IdSet(marks.needed)
    for blob in marks.live:
        if context.history.find_blob_size(blob) is None:
            continue  # a recent commit or tree
        with contextlib.suppress(FormatError):  # garbage that lost a part; fsck says more
            manifest = find_manifest(context, blob)
            tensors = () if manifest is None else manifest.tensors()
            reached.add(bytes.fromhex(tensor_id(view, stored)) for view, stored in tensors)
    reached.add(bytes.fromhex(blob).ljust(ID_BYTES, b"\0") for blob in marks.live)
    is_reached = np.isin(np.array(ids, "S32"), reached.sorted()).tolist()
    useless, at = [], 0
    for kind, key in entries:
        end = at + len(_ids_of(key))
        if not all(is_reached[at:end]):
            useless.append((kind, key))
        at = end
    return useless


def _ids_of(key: bytes) -> list[bytes]:
    if len(key) == _GIT_ID_BYTES:
        return [key]
    return [key[at : at + ID_BYTES] for at in range(0, len(key) - ID_BYTES + 1, ID_BYTES)]
