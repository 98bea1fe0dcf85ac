"""Where the processes that save meet: their sockets, and the mesh between them, one for each process.

DCP makes writers anew and sends them to other processes, so what lasts is kept here. An address is
as old as its process, so plans that DCP has kept from earlier saves still say the truth.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Any

from torch import distributed

from mvc import StorageError
from mvc_hooks.dcp.nodes import Marks
from mvc_hooks.dcp.plans import (
    Presence,
    RankPlan,
    SharedPlan,
    encode_plan,
    join_plans,
    parse_rank,
)
from mvc_hooks.dcp.sentry import Sentry
from mvc_hooks.writer.crew import Address, Crew
from mvc_hooks.writer.mesh import Mesh
from mvc_hooks.writer.place import Place, open_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc_hooks.dcp.targets import Target

_NOWHERE = Address((), 0, "", "", "")
# All ranks begin a save at once, and copy what they have. One that failed before may never come.
_PATIENCE_S = 120.0


class Meeting:
    """This process among those that save with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._place: Place | None = None
        self._mesh: Mesh | None = None
        self._turn = self._exchanges = 0
        self._sentry: Sentry | None = None
        self._marks = Marks()

    def post(self, tell: Callable[[Any, BaseException], object]) -> None:
        """Have it told if the save of this thread fails before its writer is asked to write."""
        self.relieve()
        self._sentry = Sentry(tell)

    def relieve(self) -> None:
        """End that, as the writer was asked."""
        sentry, self._sentry = self._sentry, None
        if sentry is not None:
            sentry.relieve()

    def attend(self, rank: int, target: Target) -> Presence:
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
                self._forked, self._marks = self._marks, Marks()
            if self._place is None:
                self._place = open_place()
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
            crew = Crew(rank, plan.addresses, patience_s=_PATIENCE_S)
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
        plans = [parse_rank(store.get(f"{key}/{one}")) for one in range(size)]
        return join_plans(plans, root)

    def close(self) -> None:
        """End what listens here; the next save begins anew."""
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
