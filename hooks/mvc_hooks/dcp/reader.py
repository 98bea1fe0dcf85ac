"""``MvcReader``: any commit as a checkpoint that DCP loads, whoever made it and on how many ranks."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from dataclasses import dataclass, replace
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

from mvc import ArrayOutline, ConflictError, UsageError
from mvc_hooks.dcp.names import Leaf, flatten
from mvc_hooks.dcp.objects import pack_object
from mvc_hooks.dcp.targets import Target, is_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc import Repo, StoredState
    from mvc_hooks.dcp.targets import StrPath

_BATCH_BYTES = 2**28
_RANKS = "ranks"


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """Where a value is in a commit; ``folder`` is that of a rank's own state, or None."""

    folder: str | None
    keys: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CommitPlaces:
    """What a reader keeps in ``Metadata.storage_data``: the commit, and where in it each name is."""

    commit: str
    paths: tuple[str, ...]
    leaves: dict[str, StoredLeaf]


class MvcReader(StorageReader):
    """Reads a commit; every rank reads just the chunks that its tensors meet, each verified."""

    def __init__(
        self,
        repository: StrPath | Repo | None = None,
        revision: str = "HEAD",
        *,
        root: str | None = None,
        paths: Sequence[str] = (),
        allow_pickle: bool = False,
    ) -> None:
        """Name what is read; nothing is opened yet.

        Args:
            repository: its folder; or none, if a ``checkpoint_id`` will name it.
            revision: which commit. ``checkpoint_id`` may name another one, or end in its step.
            root: a top-level name of the state, such as ``model``: what is below it has names
                without it, as the ``state_dict()`` of the model by itself does.
            paths: of a commit of checkpoint files, only the tensors of these.
            allow_pickle: load objects that are not plain data, too. That runs whatever is in them.
        """
        super().__init__()
        self._target = Target.of(repository, revision)
        self._root, self._paths, self._allow_pickle = root, tuple(paths), allow_pickle
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
        with self._target.open() as repo:
            commit = self._target.resolve(repo)
            state = repo.open_state(commit, paths=self._paths)
            leaves = {leaf.name: (leaf, StoredLeaf(None, leaf.keys)) for leaf in self._list(state)}
            for folder in _list_ranks(repo, commit):
                for leaf in _list_pieces(repo.open_state(commit, folder=folder)):
                    leaves.setdefault(leaf.name, (leaf, StoredLeaf(folder, leaf.keys)))
        metadata = Metadata(
            {name: _describe(leaf) for name, (leaf, _) in leaves.items()},
            planner_data={name: leaf.path for name, (leaf, _) in leaves.items()},
            storage_data=CommitPlaces(
                commit, self._paths, {name: place for name, (_, place) in leaves.items()}
            ),
            storage_meta=StorageMeta(self.checkpoint_id, load_id=self._load_id),
        )
        metadata.storage_meta.save_id = commit  # type: ignore[union-attr]  # given above
        return metadata

    def _list(self, state: StoredState) -> Iterator[Leaf]:
        for leaf in flatten(state.outline):
            if self._root is not None and leaf.path[0] == self._root and len(leaf.path) > 1:
                yield replace(leaf, path=leaf.path[1:])
            else:
                yield leaf

    def set_up_storage_reader(
        self,
        metadata: Metadata,
        is_coordinator: bool,  # noqa: ARG002, FBT001  as the protocol has it
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Take over what is to be read."""
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
        with self._target.open() as repo, ExitStack() as stack:
            filler = _Filler(repo, self._get_places(), planner)
            stack.callback(filler.states.clear)
            for item in plan.items:
                if item.type == LoadItemType.BYTE_IO:
                    name = item.storage_index.fqn
                    value = filler.load(name)
                    data = pack_object(value, name, allow_pickle=self._allow_pickle)
                    planner.load_bytes(item, data)
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


def _list_ranks(repo: Repo, commit: str) -> list[str]:
    """Return the folders of the states that ranks have of their own."""
    paths = (info.path.split("/") for info in repo.ls(commit))
    return sorted({"/".join(path[:2]) for path in paths if path[0] == _RANKS and len(path) == 3})  # noqa: PLR2004  ranks/NUMBER/FILE


def _list_pieces(state: StoredState) -> Iterator[Leaf]:
    """Yield the values of a rank's own state, by where they belong in the state of all."""
    for number, piece in enumerate(state.outline.get("pieces", ())):
        path = tuple(one if isinstance(one, int) else str(one) for one in piece["at"])
        yield from flatten(piece["value"], path, ("pieces", number, "value"))


def _describe(leaf: Leaf) -> TensorStorageMetadata | BytesStorageMetadata:
    tensor = leaf.tensor
    if tensor is None:
        return BytesStorageMetadata()
    size = torch.Size(tensor.shape)
    chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    properties = TensorProperties(getattr(torch, tensor.dtype))
    return TensorStorageMetadata(properties, size, [chunk])


class _Filler:
    """Fills tensors from a commit, many at once: the chunks of small ones are read side by side."""

    def __init__(self, repo: Repo, places: CommitPlaces, planner: LoadPlanner) -> None:
        self._repo, self._places, self._planner = repo, places, planner
        self.states: dict[str | None, StoredState] = {}
        self._waiting: dict[str | None, list[Any]] = {}
        self._done: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []
        self._held_bytes = 0

    def _open(self, name: str) -> tuple[StoredState, StoredLeaf]:
        leaf = self._places.leaves[name]
        state = self.states.get(leaf.folder)
        if state is None:
            places, folder = self._places, leaf.folder
            state = self._repo.open_state(places.commit, folder=folder, paths=places.paths)
            self.states[leaf.folder] = state
        return state, leaf

    def load(self, name: str) -> Any:
        """Return a value that is no tensor."""
        state, leaf = self._open(name)
        return state.load(leaf.keys)

    def add(self, item: ReadItem) -> None:
        """Note a box of a tensor, to be read soon; memory for it is the tensor's own, if it fits."""
        state, leaf = self._open(item.storage_index.fqn)
        target = self._planner.resolve_tensor(item).detach()
        if target.size() != item.lengths:
            raise ConflictError(
                f"{item.storage_index.fqn!r}: a box of {list(item.lengths)} is to go into a tensor of "
                f"{list(target.size())}"
            )
        dtype = getattr(torch, _find_outline(state, leaf).dtype)
        is_fit = target.is_cpu and target.dtype == dtype and target.is_contiguous()
        buffer = target if is_fit else torch.empty(item.lengths, dtype=dtype)
        if not is_fit:
            self._held_bytes += buffer.nbytes
        starts = item.storage_index.offset or [0] * len(item.lengths)
        offsets = tuple(a + b for a, b in zip(starts, item.storage_offsets, strict=True))
        request = (leaf.keys, offsets, tuple(item.lengths), _view(buffer))
        self._waiting.setdefault(leaf.folder, []).append(request)
        self._done.append((item, target, buffer))
        if self._held_bytes >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Read what was noted, and hand it over."""
        for folder, requests in self._waiting.items():
            self.states[folder].read_boxes(requests)
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
