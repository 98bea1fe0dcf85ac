"""``MvcWriter``: what DCP saves becomes a commit, the same one on any number of ranks."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import distributed
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from mvc_hooks.dcp.meeting import (
    SharedPlan,
    encode_plan,
    find_cached,
    join_plans,
    meeting,
    parse_shared,
    read_plan,
)
from mvc_hooks.dcp.saving import (
    CommitWords,
    LocalData,
    ToldError,
    give_up,
    save_alone,
    save_together,
)
from mvc_hooks.dcp.targets import SaveTarget, is_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed.checkpoint._extension import StreamTransformExtension
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

    from mvc import Repo
    from mvc_hooks.dcp.targets import StrPath


class MvcWriter(StorageWriter):
    """Makes a commit of each save: plain safetensors of whole tensors, and ``state.json``.

    It holds nothing open and can be pickled, as ``dcp.async_save`` in another process does.

    Args:
        repository: its folder, which is made if missing; or none, if a ``checkpoint_id`` names it.
        branch: branch to move; defaults to the current one, or what follows ``@`` in the
            ``checkpoint_id``.
        message: of the commit; defaults to the ``checkpoint_id``, or the step.
        step: training step; defaults to the number at the end of the ``checkpoint_id``.
        metrics: name → number.
        meta: name → one line of text.
        root: the name of what is at the top level of the state dict: with ``model`` all tensors
            there go to ``model.safetensors``, not each to a file of its own.
        delta: as for ``Repo.add``.
        no_gate: as for ``Repo.commit``.
    """

    def __init__(
        self,
        repository: StrPath | Repo | None = None,
        *,
        branch: str | None = None,
        message: str | None = None,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, str] | None = None,
        root: str | None = None,
        delta: bool | None = None,
        no_gate: bool = False,
        _extensions: Sequence[StreamTransformExtension] | None = None,
    ) -> None:
        super().__init__()
        self._target = SaveTarget.of(repository, branch)
        self._words = CommitWords(
            message, step, dict(metrics or {}), dict(meta or {}), delta, no_gate
        )
        self._root = root
        self._extensions = tuple(_extensions or ())  # by the name that torch's writer has for them
        self._save_id = str(uuid.uuid4())
        self._rank, self._use_collectives = 0, True
        self.commit: str | None = None
        self._told: ToldError | None = None

    def reset(self, checkpoint_id: StrPath | None = None) -> None:
        """Begin another save, perhaps to another place."""
        self._target = self._target.point(checkpoint_id)
        self._save_id = str(uuid.uuid4())
        self.commit = self._told = None

    @property
    def checkpoint_id(self) -> str:
        """Where the next commit goes."""
        return str(self._target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: StrPath) -> bool:
        """Return whether something can be the id of a checkpoint."""
        return is_target(checkpoint_id)

    def storage_meta(self) -> StorageMeta:
        """Return where this save goes; once it is done, the ``save_id`` is the commit."""
        return StorageMeta(self.checkpoint_id, save_id=self.commit or self._save_id)

    def set_up_storage_writer(
        self,
        is_coordinator: bool,  # noqa: FBT001  as the protocol has it
        *args: Any,  # noqa: ARG002
        **kwargs: Any,
    ) -> None:
        """Check the repository before anybody does any work; the first rank makes a missing one."""
        self._rank = kwargs.get("rank") or 0
        self._use_collectives = kwargs.get("use_collectives", True)
        self.commit = self._told = None
        if is_coordinator:
            self._target.open(is_made=True).close()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Say where the other ranks reach this one."""
        if self._use_collectives and distributed.is_initialized():
            meeting.post(partial(give_up, self._rank))
        presence = meeting.attend(self._rank, self._target)
        return replace(plan, storage_data=encode_plan(presence))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tell every rank what all of them save."""
        if not self._use_collectives:
            return plans  # this is the plan of one rank: see ``write_data``
        cached = find_cached(plans)
        if cached is None:
            return plans
        shared = join_plans([read_plan(plan) for plan in cached], self._root)
        data = encode_plan(shared)
        return [replace(plan, storage_data=data, usable=True) for plan in cached]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Store what this rank has; the commit is made when all have."""
        meeting.relieve()
        shared = self._find_shared(plan)
        is_shared = len(shared.addresses) > 1
        rank = self._rank if is_shared else 0
        data = LocalData(shared, rank, plan, planner, self._extensions)
        save = save_together if is_shared else save_alone
        done: Future[list[WriteResult]] = Future()
        try:
            self.commit = save(self._target, self._words, data)
        except ToldError as error:
            if not self._use_collectives:
                raise
            self._told = (
                error  # the rank that failed tells DCP itself; if none does, ``finish`` will
            )
            done.set_result([])
            return done
        sizes = ((item, item.tensor_storage_size() or 0) for item in plan.items)
        done.set_result([WriteResult(item.index, size, self.commit) for item, size in sizes])
        return done

    def _find_shared(self, plan: SavePlan) -> SharedPlan:
        if self._use_collectives:
            return parse_shared(plan.storage_data)
        mine = read_plan(plan)
        is_one_of_many = distributed.is_initialized() and distributed.get_rank() == self._rank
        if is_one_of_many and distributed.get_world_size() > 1:
            return meeting.exchange(self._rank, mine, self._root)
        return join_plans([mine], self._root)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Note which commit it is."""
        if self._told is not None:
            raise self._told
        commits = [written.storage_data for result in results for written in result]
        self.commit = self.commit or next(iter(commits), None)
        metadata.storage_meta = self.storage_meta()
