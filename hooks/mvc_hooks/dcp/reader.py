"""``MvcReader``: any commit as a checkpoint that DCP loads, whoever made it and on how many ranks."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from mvc import ConflictError, UsageError
from mvc_hooks.dcp.contents import CommitPlaces, describe_commit
from mvc_hooks.dcp.filling import Filler
from mvc_hooks.dcp.nodes import prepare_load
from mvc_hooks.dcp.objects import pack_object
from mvc_hooks.dcp.targets import Target, is_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.checkpoint._extension import ExtensionRegistry

    from mvc import Repo
    from mvc_hooks.dcp.targets import StrPath


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
        _extension_registry: ExtensionRegistry | None = None,
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
