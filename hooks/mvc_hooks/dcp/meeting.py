"""Where the processes that save meet: their sockets, and the mesh between them, one for each process.

DCP makes new writers and sends them to other processes, so what lasts is kept here. An address is
as old as its process, so plans that DCP has kept from earlier saves still say the truth.

A ``Sentry`` notices that a rank failed before its writer was asked to write. DCP catches what a planner
raises there, and waits until all ranks have written, which wait for this one. It calls no one, so the
sentry looks at where the saving thread is. Should DCP do it otherwise one day, nothing is noticed, and the
others wait as long as they are willing to.

The plans of DCP say it: every item is a box of a tensor, or an object. All ranks get the same words, of
which each lays out its own part, so they need not talk about it again.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import msgspec
from torch import distributed
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType

from mvc import StorageError, UnsupportedError
from mvc_hooks.dcp.targets import Home, RepositoryMarks
from mvc_hooks.writer.mesh import Mesh
from mvc_hooks.writer.messages import Address, RankCrew
from mvc_hooks.writer.place import Listeners, open_listeners

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from mvc_hooks.dcp.targets import SaveTarget
    from mvc_hooks.dcp.values import Path


Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets and sizes


class TensorWords(msgspec.Struct, frozen=True, array_like=True):
    """A tensor, and the number of the spread that says who has which box of it.

    ``at`` is its place in the order of the state.
    """

    at: int
    name: str
    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    spread: int


class ObjectWords(msgspec.Struct, frozen=True, array_like=True):
    """An object, which is not a tensor, and the rank that stores it."""

    at: int
    name: str
    path: tuple[str | int, ...]
    rank: int


class SharedPlan(msgspec.Struct, frozen=True, array_like=True):
    """What all ranks save. ``spreads`` are (rank, offsets, sizes) of boxes; ``turn`` counts saves."""

    turn: int
    tensors: tuple[TensorWords, ...]
    objects: tuple[ObjectWords, ...]
    spreads: tuple[tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...], ...]
    addresses: tuple[Address, ...]
    home: Home | None = None


class Presence(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says of itself: the number that its next save has at least, and where it is reached.

    Rank 0 says ``home`` as well, if there are others.
    """

    turn: int
    address: Address
    home: Home | None = None


class RankTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor, and the boxes of it that one rank has."""

    name: str
    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    boxes: list[Box]


class RankPlan(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has; of objects name and path.

    ``known`` are the names of all that it has, also if another rank stores it.
    """

    tensors: tuple[RankTensor, ...]
    objects: tuple[tuple[str, tuple[str | int, ...]], ...]
    known: tuple[str, ...]
    presence: Presence


encode_plan = msgspec.msgpack.Encoder().encode
parse_shared = msgspec.msgpack.Decoder(SharedPlan).decode
parse_rank = msgspec.msgpack.Decoder(RankPlan).decode
parse_presence = msgspec.msgpack.Decoder(Presence).decode


def read_plan(plan: SavePlan) -> RankPlan:
    """Return what a plan of DCP says that a rank has."""
    tensors: dict[str, RankTensor] = {}
    objects = []
    for item in plan.items:
        name = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            objects.append((name, _find_path(plan, name)))
            continue
        data = item.tensor_data
        if data is None:
            raise UnsupportedError(f"the plan does not say what tensor {name!r} is")
        dtype = str(data.properties.dtype).removeprefix("torch.")
        words = RankTensor(name, _find_path(plan, name), dtype, tuple(data.size), [])
        boxes = tensors.setdefault(name, words).boxes
        boxes.append((tuple(data.chunk.offsets), tuple(data.chunk.sizes)))
    known = tuple(plan.planner_data) if isinstance(plan.planner_data, dict) else ()
    presence = parse_presence(plan.storage_data)
    return RankPlan(tuple(tensors.values()), tuple(objects), known, presence)


def _find_path(plan: SavePlan, name: str) -> Path:
    """Return the path that a planner has flattened to a name; if it says none, the name is it."""
    path = plan.planner_data.get(name) if isinstance(plan.planner_data, dict) else None
    return tuple(path) if isinstance(path, tuple) and path else (name,)


def join_plans(plans: Sequence[RankPlan], root: str | None) -> SharedPlan:
    """Return what all ranks save; tensors at the top level belong below ``root``, if that is given.

    An object that several ranks have is stored by the first of them, which is rank 0 nearly always.
    """
    order, of_first = _order_names(plans)
    tensors: dict[str, tuple[RankTensor, list[Any]]] = {}
    objects: dict[str, ObjectWords] = {}
    for rank, plan in enumerate(plans):
        for tensor in plan.tensors:
            known, boxes = tensors.setdefault(tensor.name, (tensor, []))
            if (known.dtype, known.shape) != (tensor.dtype, tensor.shape):
                raise UnsupportedError(
                    f"tensor {tensor.name!r} is {tensor.dtype} {list(tensor.shape)} on rank {rank}, and "
                    f"{known.dtype} {list(known.shape)} on another"
                )
            boxes.extend((rank, *box) for box in tensor.boxes if math.prod(box[1]))
        for name, path in plan.objects:
            keeper = 0 if order[name] < of_first else rank
            objects.setdefault(name, ObjectWords(order[name], name, path, keeper))
    spreads: dict[tuple[Any, ...], int] = {}
    words = []
    for name, (tensor, boxes) in tensors.items():
        path = (root, *tensor.path) if root is not None and len(tensor.path) == 1 else tensor.path
        number = spreads.setdefault(tuple(boxes), len(spreads))
        words.append(TensorWords(order[name], name, path, tensor.dtype, tensor.shape, number))
    turn = max(plan.presence.turn for plan in plans)
    addresses = tuple(plan.presence.address for plan in plans)
    home = plans[0].presence.home
    return SharedPlan(turn, tuple(words), tuple(objects.values()), tuple(spreads), addresses, home)


def _order_names(plans: Sequence[RankPlan]) -> tuple[dict[str, int], int]:
    """Return the place of each name in the state, and how many of them rank 0 has."""
    order: dict[str, int] = {}
    of_first = 0
    for rank, plan in enumerate(plans):
        names = (
            *plan.known,
            *(tensor.name for tensor in plan.tensors),
            *(name for name, _ in plan.objects),
        )
        for name in names:
            order.setdefault(name, len(order))
        of_first = len(order) if rank == 0 else of_first
    return order, of_first


def find_cached(plans: list[SavePlan]) -> list[SavePlan] | None:
    """Return the plans of all ranks, where DCP sends only those that have changed; None if none has.

    Its planners keep the plans by their own class, so they are found by one that has just been made.
    """
    changed = [number for number, plan in enumerate(plans) if plan.usable]
    if len(changed) == len(plans):
        return plans
    if not changed:
        return None
    kept: dict[str, list[SavePlan]] = getattr(SavePlanner, "_cached_global_plan", {})
    for cached in kept.values():
        if len(cached) == len(plans) and all(cached[number] is plans[number] for number in changed):
            return cached
    raise UnsupportedError(
        "the planner sends the plans of some ranks only, and keeps the others elsewhere than torch does",
        hint="enable_plan_caching=False",
    )


_LOOK_S = 0.2
_SAVE, _WRITE = "_save_state_dict", ("all_reduce", "write")
"""Names in torch: the function that saves, and the function and step in which all ranks write."""
_NOWHERE = Address((), 0, "", "", "")
# All ranks begin a save at once, and copy what they have. One that failed before may never come.
_PATIENCE_S = 120.0


class Sentry:
    """Watches the thread that made it until it is relieved, or that thread's save is over."""

    def __init__(self, tell: Callable[[Any, BaseException], object]) -> None:
        """Take what is told of a failure: the plan of this rank for the save, and the error."""
        self._tell, self._watched = tell, threading.get_ident()
        self._is_relieved = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def relieve(self) -> None:
        """Stop watching."""
        self._is_relieved.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_relieved.wait(_LOOK_S):
            frame = sys._current_frames().get(self._watched)  # noqa: SLF001  its only name
            is_saving, plan, error = find_failure(frame)
            if error is not None and plan is not None:
                with contextlib.suppress(Exception):  # then they have to wait
                    self._tell(plan, error)
            if error is not None or not is_saving:
                return


def find_failure(frame: FrameType | None) -> tuple[bool, Any, BaseException | None]:
    """Return of a thread whether it saves, its plan, and the error with which its part has failed."""
    error: BaseException | None = None
    while frame is not None:
        name, values = frame.f_code.co_name, frame.f_locals
        if (name, values.get("step")) == _WRITE:
            said = values.get("local_data")
            first = said[0] if isinstance(said, tuple) and said else None
            error = first if isinstance(first, BaseException) else None
        if name == _SAVE:
            return True, values.get("central_plan"), error
        frame = frame.f_back
    return False, None, None


class Meeting:
    """This process among those that save with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._place: Listeners | None = None
        self._mesh: Mesh | None = None
        self._turn = self._exchanges = 0
        self._sentry: Sentry | None = None
        self._marks = RepositoryMarks()

    def post(self, tell: Callable[[Any, BaseException], object]) -> None:
        """Call ``tell`` if the save of this thread fails before its writer is asked to write."""
        self.relieve()
        self._sentry = Sentry(tell)

    def relieve(self) -> None:
        """End that, as the writer was asked."""
        sentry, self._sentry = self._sentry, None
        if sentry is not None:
            sentry.relieve()

    def attend(self, rank: int, target: SaveTarget) -> Presence:
        """Return what the other ranks have to know of this one."""
        address = self.address
        is_read = rank == 0 and distributed.is_initialized() and distributed.get_world_size() > 1
        return Presence(self._turn + 1, address, self._marks.describe(target) if is_read else None)

    @property
    def address(self) -> Address:
        """Where the others reach this process, if there are any."""
        if not distributed.is_initialized():
            return _NOWHERE
        with self._lock:
            if os.getpid() != self._owner:  # forked: what is open is the parent's
                self._place, self._mesh, self._owner = None, None, os.getpid()
                # Kept, for marks that are dropped are removed, and these are the parent's.
                self._forked, self._marks = self._marks, RepositoryMarks()
            if self._place is None:
                self._place = open_listeners()
                atexit.register(self.close)
            return self._place.address

    def join(self, rank: int, plan: SharedPlan) -> tuple[Mesh, int]:
        """Return the others, and the number of the save.

        A plan that was made for this save says it; one that is kept from an earlier save does not.
        """
        mine = self.address
        if plan.addresses[rank] != mine:
            raise StorageError(
                "the plan of this save is of another process",
                hint="a run that was started again begins with enable_plan_caching=False",
            )
        with self._lock:
            crew = RankCrew(rank, plan.addresses, patience_s=_PATIENCE_S)
            if self._mesh is None or self._mesh.crew != crew:
                if self._mesh is not None:
                    self._mesh.close()
                assert self._place is not None
                self._mesh = Mesh(crew, self._place.descriptors)
                self._turn = 0
            self._turn = max(self._turn + 1, plan.turn)
            return self._mesh, self._turn

    def exchange(self, rank: int, plan: RankPlan, root: str | None) -> SharedPlan:
        """Return what all ranks of the default group save, heard through its store: no collective."""
        store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001  the only way to reach it
        if self._exchanges:  # everybody has read what was said before the last commit
            store.delete_key(f"mvc/dcp/{self._exchanges}/{rank}")
        self._exchanges += 1
        key = f"mvc/dcp/{self._exchanges}"
        store.set(f"{key}/{rank}", encode_plan(plan))  # type: ignore[arg-type]  # it takes bytes
        size = distributed.get_world_size()
        plans = [parse_rank(store.get(f"{key}/{other}")) for other in range(size)]
        return join_plans(plans, root)

    def close(self) -> None:
        """End what listens here; the next save opens it again."""
        if os.getpid() != self._owner:
            return
        if self._mesh is not None:
            self._mesh.close()
        if self._place is not None:
            self._place.close()
        self._place = self._mesh = None
        self._marks.close()


meeting = Meeting()  # that of this process
