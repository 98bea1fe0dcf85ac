"""Where the processes that save meet: their sockets, and the mesh between them, one for each process.

DCP makes new writers and sends them to other processes, so what lasts is kept here. An address is
as old as its process, so plans that DCP has kept from earlier saves still say the truth.

A ``Sentry`` notices that a rank failed before its writer was asked to write. DCP catches what a planner
raises there, and waits until all ranks have written, which wait for this one. It calls no one, so the
sentry looks at where the saving thread is. Should DCP do it otherwise one day, nothing is noticed, and the
others wait as long as they are willing to.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from torch import distributed

from mvc import StorageError
from mvc_hooks.dcp.plans import Presence, RankPlan, SharedPlan, encode_plan, join_plans, parse_rank
from mvc_hooks.dcp.targets import RepositoryMarks
from mvc_hooks.writer.mesh import Mesh
from mvc_hooks.writer.messages import Address, RankCrew
from mvc_hooks.writer.place import Listeners, open_listeners

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from mvc_hooks.dcp.targets import SaveTarget

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


meeting = Meeting()
"""That of this process."""
