"""What a commit holds, in the words of DCP: names, types, shapes, and where each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from mvc import FormatError
from mvc_hooks.dcp.names import Leaf, flatten
from mvc_hooks.dcp.streams import STREAMS, Stream, list_streams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc import Repo
    from mvc.training import StoredState

_RANKS = "ranks"


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """Where a value is in a commit; ``folder`` is that of a rank's own state, or None."""

    folder: str | None
    keys: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CommitPlaces:
    """What a reader keeps in ``Metadata.storage_data``: the commit, and where in it each name is.

    What extensions made is in ``streams``, by its name and offsets.
    """

    commit: str
    paths: tuple[str, ...]
    leaves: dict[str, StoredLeaf] = field(default_factory=dict)
    streams: dict[tuple[str, tuple[int, ...]], Stream] = field(default_factory=dict)


def describe_commit(
    repo: Repo, commit: str, *, root: str | None, paths: tuple[str, ...]
) -> Metadata:
    """Return the metadata of a commit; no tensor is read."""
    places = CommitPlaces(commit, paths)
    metadata = Metadata({}, planner_data={}, storage_data=places)
    for folder in (None, *_list_ranks(repo, commit)):
        state = repo.open_state(commit, folder=folder, paths=paths if folder is None else ())
        if isinstance(state.outline.get(STREAMS), list):
            _add_streams(metadata, places, state.outline, folder)
            continue
        for leaf in _list_shared(state, root) if folder is None else _list_pieces(state):
            if leaf.name not in places.leaves:
                places.leaves[leaf.name] = StoredLeaf(folder, leaf.keys)
                metadata.state_dict_metadata[leaf.name] = _describe(leaf)
                metadata.planner_data[leaf.name] = leaf.path
    return metadata


def _add_streams(
    metadata: Metadata, places: CommitPlaces, outline: Mapping[Any, Any], folder: str | None
) -> None:
    known = metadata.state_dict_metadata
    for one in list_streams(outline, folder):
        if (one.name, one.offsets) in places.streams:
            continue  # replicas of one box
        places.streams[one.name, one.offsets] = one
        metadata.planner_data[one.name] = one.path
        if one.dtype is None:
            known[one.name] = BytesStorageMetadata()
            continue
        properties = TensorProperties(getattr(torch, one.dtype))
        whole = TensorStorageMetadata(properties, torch.Size(one.shape), [])
        chunks = known.setdefault(one.name, whole)
        assert isinstance(chunks, TensorStorageMetadata)
        box = ChunkStorageMetadata(torch.Size(one.offsets), torch.Size(one.sizes))
        chunks.chunks.append(box)


def _list_shared(state: StoredState, root: str | None) -> Iterator[Leaf]:
    for leaf in flatten(state.outline):
        if root is not None and leaf.path[0] == root and len(leaf.path) > 1:
            yield replace(leaf, path=leaf.path[1:])
        else:
            yield leaf


def _list_ranks(repo: Repo, commit: str) -> list[str]:
    """Return the folders of the states that ranks have of their own."""
    paths = (info.path.split("/") for info in repo.ls(commit))
    return sorted({"/".join(path[:2]) for path in paths if path[0] == _RANKS and len(path) == 3})  # noqa: PLR2004  ranks/NUMBER/FILE


def _list_pieces(state: StoredState) -> Iterator[Leaf]:
    """Yield the values of a rank's own state, by where they belong in the state of all."""
    pieces = state.outline.get("pieces", ())
    for number, piece in enumerate(pieces if isinstance(pieces, list) else ()):
        steps = piece.get("at") if isinstance(piece, Mapping) else None
        if not isinstance(steps, list) or not steps or "value" not in piece:
            raise FormatError("a rank's own state has pieces that say not where they belong")
        path = tuple(one if isinstance(one, int) else str(one) for one in steps)
        yield from flatten(piece["value"], path, ("pieces", number, "value"))


def _describe(leaf: Leaf) -> TensorStorageMetadata | BytesStorageMetadata:
    tensor = leaf.tensor
    if tensor is None:
        return BytesStorageMetadata()
    size = torch.Size(tensor.shape)
    chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    properties = TensorProperties(getattr(torch, tensor.dtype))
    return TensorStorageMetadata(properties, size, [chunk])
