"""``MvcReader``: any commit as a checkpoint that DCP loads, whoever made it and on how many ranks.

``describe_commit`` says what a commit holds in the words of DCP: names, types, shapes, and where each of
them is. ``Filler`` fills the tensors and objects of a plan from there.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from mvc import ConflictError, FormatError, UsageError
from mvc.training import ArrayOutline
from mvc_hooks.dcp.targets import SaveTarget, is_target, prepare_load
from mvc_hooks.dcp.values import (
    PICKLE,
    STREAMS,
    ExtensionStream,
    Leaf,
    flatten,
    list_streams,
    pack_object,
)

if TYPE_CHECKING:
    from torch.distributed.checkpoint._extension import ExtensionRegistry

    from mvc import Repo
    from mvc.training import StoredState
    from mvc_hooks.dcp.targets import StrPath

_RANKS = "ranks"
_BATCH_BYTES = 2**28


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
    streams: dict[tuple[str, tuple[int, ...]], ExtensionStream] = field(default_factory=dict)


def describe_commit(
    repo: Repo, commit: str, *, root: str | None, paths: tuple[str, ...]
) -> Metadata:
    """Return the metadata of a commit; no tensor is read."""
    places = CommitPlaces(commit, paths)
    metadata = Metadata({}, planner_data={}, storage_data=places)
    # Ranks have states of their own, in the folders ranks/NUMBER.
    parts = (info.path.split("/") for info in repo.ls(commit))
    folders = {"/".join(part[:2]) for part in parts if part[0] == _RANKS and len(part) == 3}  # noqa: PLR2004  ranks/NUMBER/FILE
    for folder in (None, *sorted(folders)):
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
    for stream in list_streams(outline, folder):
        if (stream.name, stream.offsets) in places.streams:
            continue  # replicas of one box
        places.streams[stream.name, stream.offsets] = stream
        metadata.planner_data[stream.name] = stream.path
        if stream.dtype is None:
            known[stream.name] = BytesStorageMetadata()
            continue
        properties = TensorProperties(getattr(torch, stream.dtype))
        whole = TensorStorageMetadata(properties, torch.Size(stream.shape), [])
        chunks = known.setdefault(stream.name, whole)
        assert isinstance(chunks, TensorStorageMetadata)
        box = ChunkStorageMetadata(torch.Size(stream.offsets), torch.Size(stream.sizes))
        chunks.chunks.append(box)


def _list_shared(state: StoredState, root: str | None) -> Iterator[Leaf]:
    for leaf in flatten(state.outline):
        if root is not None and leaf.path[0] == root and len(leaf.path) > 1:
            yield replace(leaf, path=leaf.path[1:])
        else:
            yield leaf


def _list_pieces(state: StoredState) -> Iterator[Leaf]:
    """Yield the values of a rank's own state, by where they belong in the state of all."""
    pieces = state.outline.get("pieces", ())
    for number, piece in enumerate(pieces if isinstance(pieces, list) else ()):
        steps = piece.get("at") if isinstance(piece, Mapping) else None
        if not isinstance(steps, list) or not steps or "value" not in piece:
            raise FormatError("a rank's own state has pieces that say not where they belong")
        path = tuple(step if isinstance(step, int) else str(step) for step in steps)
        yield from flatten(piece["value"], path, ("pieces", number, "value"))


def _describe(leaf: Leaf) -> TensorStorageMetadata | BytesStorageMetadata:
    tensor = leaf.tensor
    if tensor is None:
        return BytesStorageMetadata()
    size = torch.Size(tensor.shape)
    chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    properties = TensorProperties(getattr(torch, tensor.dtype))
    return TensorStorageMetadata(properties, size, [chunk])


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

    def _read_stream(self, stream: ExtensionStream, item: ReadItem) -> bytes:
        data = self._open(stream.folder).load(stream.keys)
        return stream.read(data, item, self._registry)

    def load(self, item: ReadItem) -> Any:
        """Return a value that is not a tensor."""
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
        state = self._open(leaf.folder)
        inner: Any = state.outline
        for key in leaf.keys:
            inner = inner[key]
        assert isinstance(inner, ArrayOutline)
        dtype = getattr(torch, inner.dtype)
        is_fit = target.is_cpu and target.dtype == dtype and target.is_contiguous()
        buffer = target if is_fit else torch.empty(item.lengths, dtype=dtype)
        if not is_fit:
            self._held_bytes += buffer.nbytes
        inside = zip(starts or [0] * len(item.lengths), item.storage_offsets, strict=True)
        offsets = tuple(start + offset for start, offset in inside)
        view = memoryview(buffer.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # an array is a buffer
        request = (leaf.keys, offsets, tuple(item.lengths), view)
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


class MvcReader(StorageReader):
    """Reads a commit; every rank reads just the chunks that its tensors meet, each verified.

    Args:
        repository: its folder; or none, if a ``checkpoint_id`` will name it.
        revision: which commit. ``checkpoint_id`` may name another one, or end in its step.
        root: a top-level name of the state, such as ``model``: what is below it has names
            without it, as the ``state_dict()`` of the model by itself does.
        paths: of a commit of checkpoint files, only the tensors of these.
        allow_pickle: load objects that are not plain data, too. That runs whatever is in them.
    """

    def __init__(
        self,
        repository: StrPath | Repo | None = None,
        revision: str = "HEAD",
        *,
        root: str | None = None,
        paths: Sequence[str] = (),
        allow_pickle: bool = False,
        _extension_registry: ExtensionRegistry | None = None,
    ) -> None:
        super().__init__()
        self._target = SaveTarget.of(repository, revision)
        self._root, self._paths, self._allow_pickle = root, tuple(paths), allow_pickle
        self._registry = _extension_registry  # by the name that torch's reader has for it
        self._load_id = str(uuid.uuid4())
        self._places: CommitPlaces | None = None

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        """Begin another load, perhaps of another commit."""
        self._target = self._target.point(checkpoint_id)
        self._load_id = str(uuid.uuid4())
        self._places = None

    @property
    def checkpoint_id(self) -> str:
        """What is read."""
        return str(self._target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: StrPath) -> bool:
        """Return whether something can be the id of a checkpoint."""
        return is_target(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002  as the protocol has it
        """Return the names, types and shapes of a commit's values; no tensor is read."""
        prepare_load(self._target)
        with self._target.open() as repo:
            commit = self._target.resolve(repo)
            metadata = describe_commit(repo, commit, root=self._root, paths=self._paths)
        metadata.storage_meta = StorageMeta(self.checkpoint_id, commit, self._load_id)
        return metadata

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: ARG002, FBT001  as the protocol has it
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Take the metadata of what will be read."""
        if not isinstance(metadata.storage_data, CommitPlaces):
            raise UsageError(
                "the metadata is not of a commit", hint="it comes from read_metadata()"
            )
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Say which commit this rank reads."""
        return replace(plan, storage_data=self._get_places().commit)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks read the same commit."""
        commits = {plan.storage_data for plan in plans}
        if len(commits) > 1:
            raise ConflictError(
                f"the ranks read different commits: {', '.join(sorted(commits))}",
                hint="the branch moved, or not all see one repository; name the commit by its id",
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan asks for into the tensors of the planner."""
        with self._target.open() as repo:
            filler = Filler(repo, self._get_places(), planner, self._registry)
            for item in plan.items:
                if item.type == LoadItemType.BYTE_IO:
                    name, allow = item.storage_index.fqn, self._allow_pickle
                    value = filler.load(item)
                    planner.load_bytes(item, pack_object(value, name, allow_pickle=allow))
                else:
                    filler.add(item)
            filler.flush()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _get_places(self) -> CommitPlaces:
        if self._places is None:
            raise UsageError(
                "the reader was not set up", hint="dcp.load calls read_metadata() first"
            )
        return self._places
