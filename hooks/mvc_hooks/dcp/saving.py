"""One save: the state is nested again as it was, and committed by this process or by all ranks together."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from mvc import StorageError, UnsupportedError
from mvc.training import CommitRequest, RunStore, SpreadTensor, layout_state, parse_stored_share
from mvc_hooks.dcp.meeting import ObjectWords, SharedPlan, TensorWords, meeting, parse_shared
from mvc_hooks.dcp.targets import SaveTarget, open_home
from mvc_hooks.dcp.values import STREAMS, Path, make_stream, nest, unpack_object
from mvc_hooks.snapshot.copying import copy_layout
from mvc_hooks.snapshot.memory import SharedMemory
from mvc_hooks.writer.messages import Answer
from mvc_hooks.writer.sharing import describe_failure
from mvc_hooks.writer.turns import Offer, TurnError
from mvc_hooks.writer.wire import Join

if TYPE_CHECKING:
    import io
    from collections.abc import Sequence

    from torch.distributed.checkpoint._extension import StreamTransformExtension

    from mvc import Repo
    from mvc.training import StateLayout
    from mvc_hooks.writer.mesh import Mesh

log = logging.getLogger("mvc_hooks")

_EXTRA_STATE = "_extra_state"  # torch's name for what a module adds to its state_dict


@dataclass(frozen=True, slots=True)
class CommitWords:
    """What a commit says; see ``MvcWriter``."""

    message: str | None
    step: int | None
    metrics: dict[str, float]
    meta: dict[str, str]
    delta: bool | None
    no_gate: bool

    def find_step(self, target: SaveTarget) -> int | None:
        """Return the training step of a save."""
        return target.step if self.step is None else self.step

    def spell(self, target: SaveTarget) -> dict[str, Any]:
        """Return the arguments of the commit."""
        step = self.find_step(target)
        message = self.message or target.name or ("checkpoint" if step is None else f"step {step}")
        facts = {"metrics": self.metrics, "meta": self.meta, "no_gate": self.no_gate}
        return {"message": message, "step": step, "branch": target.place, **facts}


class ToldError(StorageError):
    """Another rank said that the commit of all came to nothing; DCP can send it to other processes."""


class LocalData:
    """What a rank has of a save: its boxes and objects, as its planner gives them."""

    def __init__(
        self,
        shared: SharedPlan,
        rank: int,
        plan: SavePlan,
        planner: SavePlanner,
        extensions: Sequence[StreamTransformExtension] = (),
    ) -> None:
        """Ask nothing of the planner yet."""
        self.shared, self.rank, self.extensions = shared, rank, extensions
        self._planner = planner
        self._items = {_key(item): item for item in plan.items}

    def find_boxes(self, words: TensorWords) -> dict[int, torch.Tensor]:
        """Return number of a box → its tensor, of those of this rank."""
        boxes = {}
        for number, (rank, *box) in enumerate(self.shared.spreads[words.spread]):
            if rank == self.rank:
                item = self._items[words.name, *map(tuple, box)]
                tensor = self._planner.resolve_data(item)
                assert isinstance(tensor, torch.Tensor)
                boxes[number] = tensor.detach()
        return boxes

    def make_streams(self) -> dict[str, Any]:
        """Return the state that is what extensions make of all that this rank has."""
        paths = {entry.name: entry.path for entry in self.shared.tensors}
        paths |= {entry.name: entry.path for entry in self.shared.objects}
        resolve = self._planner.resolve_data
        return {
            STREAMS: [
                make_stream(item, paths[item.index.fqn], resolve(item), self.extensions)
                for item in self._items.values()
            ]
        }

    def read_object(self, words: ObjectWords, *, can_have_arrays: bool) -> Any:
        """Return what a commit holds of an object."""
        item = self._items.get((words.name, (), ()))
        if item is None:  # another rank was to store it, which has the same
            item = WriteItem(MetadataIndex(words.name), WriteItemType.BYTE_IO)
        data: io.BytesIO = self._planner.resolve_data(item)  # type: ignore[assignment]  # no tensor
        return unpack_object(data, can_have_arrays=can_have_arrays)


def _key(item: WriteItem) -> tuple[object, ...]:
    if item.tensor_data is None:
        return item.index.fqn, (), ()
    chunk = item.tensor_data.chunk
    return item.index.fqn, tuple(chunk.offsets), tuple(chunk.sizes)


def _nest(values: list[tuple[int, Path, object]]) -> dict[str, Any]:
    return nest((path, value) for _, path, value in sorted(values, key=lambda entry: entry[0]))


def save_alone(target: SaveTarget, words: CommitWords, data: LocalData) -> str:
    """Commit a state that is here as a whole; return the commit."""
    with target.open(is_made=True) as repo:
        state = data.make_streams() if data.extensions else _gather(data)
        result = repo.commit_state(state, delta=words.delta, **words.spell(target))
    _warn_unsent(result.commit, result.unsent)
    return str(result.commit)


def _warn_unsent(commit: str, unsent: str | None) -> None:
    if unsent is not None:
        log.warning("commit %s is here, but not on the store: %s", commit[:10], unsent)


def _gather(data: LocalData) -> dict[str, Any]:
    shared = data.shared
    values: list[tuple[int, Path, object]] = [
        (entry.at, entry.path, _make_whole(entry, shared, data)) for entry in shared.tensors
    ]
    values += [
        (entry.at, entry.path, data.read_object(entry, can_have_arrays=True))
        for entry in shared.objects
    ]
    return _nest(values)


def _make_whole(words: TensorWords, shared: SharedPlan, data: LocalData) -> torch.Tensor:
    boxes = shared.spreads[words.spread]
    if sum(math.prod(sizes) for _, _, sizes in boxes) != math.prod(words.shape):
        raise UnsupportedError(
            f"only a part of tensor {words.name!r} is here, and it is saved by this process alone",
            hint="leave out no_dist=True: then all ranks save it together",
        )
    mine = data.find_boxes(words)
    if len(boxes) == 1:
        return mine[0]
    whole = torch.empty(words.shape, dtype=getattr(torch, words.dtype))
    for number, tensor in mine.items():
        _, offsets, sizes = boxes[number]
        ends = zip(offsets, sizes, strict=True)
        whole[tuple(slice(at, at + size) for at, size in ends)] = tensor
    return whole


def save_together(target: SaveTarget, words: CommitWords, data: LocalData) -> str:
    """Take part in the commit of all ranks; return it. Whatever fails on one of them fails it on all."""
    mesh, turn = meeting.join(data.rank, data.shared)
    with mesh.turn(turn):
        try:
            return _Together(target, words, mesh, turn).store(data)
        except Exception as error:
            _tell_all(mesh, turn, error, data.rank)
            if isinstance(error, TurnError):
                raise ToldError(error.message, hint=error.hint) from error
            raise


def give_up(rank: int, plan: SavePlan, error: BaseException) -> None:
    """Tell the other ranks, if there are any, that this one failed before it came to the commit of all."""
    shared = parse_shared(plan.storage_data)
    if len(shared.addresses) == 1:
        return
    mesh, turn = meeting.join(rank, shared)
    with mesh.turn(turn):
        _tell_all(mesh, turn, error, rank)


def _tell_all(mesh: Mesh, turn: int, error: BaseException, rank: int) -> None:
    answer = describe_failure(turn, error, rank)
    if mesh.leader is not None:
        mesh.leader.settle(answer, is_final=True)
    elif mesh.follower is not None and mesh.turns.find(turn) is None:
        mesh.follower.fail(answer)


class _Together:
    """This rank's part of a commit of all."""

    def __init__(self, target: SaveTarget, words: CommitWords, mesh: Mesh, turn: int) -> None:
        self._target, self._words, self._mesh, self._turn = target, words, mesh, turn

    def store(self, data: LocalData) -> str:
        layout = _lay_out(data)
        memory = SharedMemory(layout.size_bytes)
        try:
            copy_layout(layout, memory).wait()
            repo, sends = open_home(self._target, data.rank, data.shared.home)
            with repo:
                return self._share(repo, layout, memory, sends=sends)
        finally:
            memory.close()

    def _share(self, repo: Repo, layout: StateLayout, memory: SharedMemory, *, sends: bool) -> str:
        share = RunStore(repo).open_share(memory.view(0, layout.size_bytes), layout.form or b"")
        branch, step = self._target.place, self._words.find_step(self._target)
        join = Join(self._turn, step or 0, branch or "", share.digest)
        peers = self._mesh.bring(Offer(join, share, memory.descriptor, layout.size_bytes))
        delta = self._words.delta
        with RunStore(repo).store_share(
            share, peers, branch=branch, delta=delta, send=sends
        ) as stored:
            leader = self._mesh.leader
            if leader is not None:
                others = [
                    parse_stored_share(bytes(payload)) for payload in leader.collect(self._turn)
                ]
                result = RunStore(repo).commit_shares(
                    share, [stored, *others], CommitRequest(**self._words.spell(self._target))
                )
                leader.settle(Answer(self._turn, result.commit), is_final=True)
                _warn_unsent(result.commit, result.unsent)
                return str(result.commit)
            assert self._mesh.follower is not None
            answer = self._mesh.follower.finish(self._turn, stored.encode())
            if answer is None:
                lost = self._mesh.turns.lost
                raise StorageError("rank 0 is gone" if lost is None else lost.message)
            if answer.commit is None:
                raise TurnError(answer)
            return answer.commit


def _lay_out(data: LocalData) -> StateLayout:
    """Return where everything that this rank has goes in its image."""
    shared, rank = data.shared, data.rank
    ranks = len(shared.addresses)
    if data.extensions:
        streams = data.make_streams()
        if rank > 0:
            return layout_state({STREAMS: []}, rank=rank, ranks=ranks, own=streams)
        return layout_state(streams, ranks=ranks, private=[STREAMS])
    tops = {words.path[0] for words in shared.tensors}
    values: list[tuple[int, Path, object]] = []
    for words in shared.tensors:
        boxes = shared.spreads[words.spread]
        tensor = SpreadTensor(words.dtype, words.shape, boxes, data.find_boxes(words))
        values.append((words.at, words.path, tensor))
    pieces = []
    for entry in shared.objects:
        is_mine, value = entry.rank == rank, None
        if is_mine:
            # Its arrays get a file to which no other rank contributes.
            is_extra = len(entry.path) == 1 and str(entry.path[0]).endswith(_EXTRA_STATE)
            can_have_arrays = rank > 0 or (entry.path[0] not in tops and not is_extra)
            value = data.read_object(entry, can_have_arrays=can_have_arrays)
        if is_mine and rank > 0:
            pieces.append({"at": list(entry.path), "value": value})
            value = None
        if entry.rank == 0:  # what rank 0 lacks is not in the state of all
            values.append((entry.at, entry.path, value))
    private = {str(entry.path[0]) for entry in shared.objects} - tops if rank == 0 else ()
    own = {"pieces": pieces} if pieces else None
    return layout_state(_nest(values), rank=rank, ranks=ranks, own=own, private=private)
