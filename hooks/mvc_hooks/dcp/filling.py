"""Tensors and objects of a plan, filled from a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mvc import ConflictError
from mvc.training import ArrayOutline
from mvc_hooks.dcp.names import PICKLE

if TYPE_CHECKING:
    from torch.distributed.checkpoint._extension import ExtensionRegistry
    from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

    from mvc import Repo
    from mvc.training import StoredState
    from mvc_hooks.dcp.contents import CommitPlaces, StoredLeaf
    from mvc_hooks.dcp.streams import Stream

_BATCH_BYTES = 2**28


class Filler:
    """Fills tensors from a commit, many at once: the chunks of small ones are read side by side."""

    def __init__(
        self,
        repo: Repo,
        places: CommitPlaces,
        planner: LoadPlanner,
        registry: ExtensionRegistry | None,
    ) -> None:
        """Fill what a planner names."""
        self._repo, self._places, self._planner = repo, places, planner
        self._registry = registry
        self._states: dict[str | None, StoredState] = {}
        self._waiting: dict[str | None, list[Any]] = {}
        self._done: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []
        self._held_bytes = 0

    def _open(self, folder: str | None) -> StoredState:
        state = self._states.get(folder)
        if state is None:
            paths = self._places.paths if folder is None else ()
            state = self._repo.open_state(self._places.commit, folder=folder, paths=paths)
            self._states[folder] = state
        return state

    def _read_stream(self, stream: Stream, item: ReadItem) -> bytes:
        data = self._open(stream.folder).load(stream.keys)
        return stream.read(data, item, self._registry)

    def load(self, item: ReadItem) -> Any:
        """Return a value that is no tensor."""
        name = item.storage_index.fqn
        stream = self._places.streams.get((name, ()))
        if stream is not None:
            return {PICKLE: self._read_stream(stream, item)}
        leaf = self._places.leaves[name]
        return self._open(leaf.folder).load(leaf.keys)

    def add(self, item: ReadItem) -> None:
        """Note a box of a tensor, to be read soon; memory for it is the tensor's own, if it fits."""
        name, starts = item.storage_index.fqn, tuple(item.storage_index.offset or ())
        target = self._planner.resolve_tensor(item).detach()
        if target.size() != item.lengths:
            raise ConflictError(
                f"{name!r}: a box of {list(item.lengths)} is to go into a tensor of "
                f"{list(target.size())}"
            )
        stream = self._places.streams.get((name, starts))
        if stream is not None:
            box = stream.view(self._read_stream(stream, item))
            ends = zip(item.storage_offsets, item.lengths, strict=True)
            self._done.append((item, target, box[tuple(slice(at, at + n) for at, n in ends)]))
            self.flush()
            return
        leaf = self._places.leaves[name]
        dtype = getattr(torch, _find_outline(self._open(leaf.folder), leaf).dtype)
        is_fit = target.is_cpu and target.dtype == dtype and target.is_contiguous()
        buffer = target if is_fit else torch.empty(item.lengths, dtype=dtype)
        if not is_fit:
            self._held_bytes += buffer.nbytes
        inside = zip(starts or [0] * len(item.lengths), item.storage_offsets, strict=True)
        offsets = tuple(start + offset for start, offset in inside)
        request = (leaf.keys, offsets, tuple(item.lengths), _view(buffer))
        self._waiting.setdefault(leaf.folder, []).append(request)
        self._done.append((item, target, buffer))
        if self._held_bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Read what was noted, and hand it over."""
        for folder, requests in self._waiting.items():
            self._states[folder].read_boxes(requests)
        for item, target, buffer in self._done:
            if buffer is not target:
                target.copy_(buffer)
            self._planner.commit_tensor(item, target)
        self._waiting.clear()
        self._done.clear()
        self._held_bytes = 0


def _find_outline(state: StoredState, leaf: StoredLeaf) -> ArrayOutline:
    found: Any = state.outline
    for key in leaf.keys:
        found = found[key]
    assert isinstance(found, ArrayOutline)
    return found


def _view(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor in host memory."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # an array is a buffer
