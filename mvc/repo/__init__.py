"""The front door: ``Repo`` names one operation per verb and decides nothing itself.

What a verb takes, does and raises is written once, at its operation.

Paths are repository paths (relative to the worktree, ``/``-separated) or absolute ones inside it.
Revisions follow Git's grammar, and ``main@12000`` is the commit of training step 12000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from mvc import operations
from mvc.lazy import verb
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from mvc.operations import (  # noqa: F401
        add,
        best,
        blame,
        cat,
        check_ignore,
        checkout,
        commit,
        commit_recipe,
        commit_state,
        compare,
        conclude,
        diff,
        export,
        fetch,
        gate,
        load_state,
        log,
        ls,
        merge,
        merge_recipe,
        move,
        open_state,
        pick,
        preview_merge,
        publish,
        pull,
        push,
        remove,
        replay_merge,
        restore,
        stash,
        status,
        undo,
        verify,
        verify_models,
    )
    from mvc.repo import namespaces
    from mvc.workspace.worktree import StrPath


class Repo(OpenRepo):
    """An open repository: a worktree and the ``.mvc`` folder in it.

    Not shared between threads; open one per thread. Several processes may work on one repository
    at once: refs move by compare-and-swap, and the slower one gets a ConflictError.

    Where a method takes them, ``paths`` are files, folders or wildcards, ``tensors`` is the name of a
    tensor, that of a module, which takes all tensors below it, or a wildcard, and ``revision`` names a commit.

    Any method may raise what follows, even if its own list leaves it out.

    Raises:
        NotFoundError: a revision, ref, run, path or tensor that is named does not exist, or a
            commit that must hold a state has none.
        ConflictError: local changes would be lost without ``force``, or another gc, prune or
            repack is running.
        ReleasedError: content that is needed was released; nothing was changed.
        UsageError: a name or value that is missing or not valid.
        UnsupportedError: torch is asked for and not installed.
        FormatError, CorruptionError: the repository is damaged; what is at fault is named.
        StorageError: the machine failed.
    """

    # files into the index and history
    add = verb(lambda: operations.add.add)
    plan_add = verb(lambda: operations.add.plan_add)
    remove = verb(lambda: operations.remove.remove)
    move = verb(lambda: operations.move.move)
    commit = verb(lambda: operations.commit.commit)
    status = verb(lambda: operations.status.status)
    check_ignore = verb(lambda: operations.check_ignore.check_ignore)

    # what was committed
    log = verb(lambda: operations.log.log)
    show = verb(lambda: operations.log.show)
    reflog = verb(lambda: operations.log.reflog)
    blame = verb(lambda: operations.blame.blame)
    best = verb(lambda: operations.best.find_best)

    # files and branches to other commits, and back
    checkout = verb(lambda: operations.checkout.checkout)
    switch = verb(lambda: operations.checkout.switch)
    restore = verb(lambda: operations.restore.restore_paths)
    reset = verb(lambda: operations.restore.reset)
    undo = verb(lambda: operations.undo.undo)
    stash = verb(lambda: operations.stash.push)
    stashes = verb(lambda: operations.stash.list_stashes)
    stash_apply = verb(lambda: operations.stash.apply)
    stash_drop = verb(lambda: operations.stash.drop)
    stash_clear = verb(lambda: operations.stash.clear)

    # what differs, by identity and in numbers
    diff = verb(lambda: operations.diff.diff)
    changes = verb(lambda: operations.diff.changes)
    compare = verb(lambda: operations.compare.compare)
    compare_commit = verb(lambda: operations.compare.compare_commit)
    check_gates = verb(lambda: operations.gate.check_gates)
    verify_models = verb(lambda: operations.verify_models.verify_models)
    verify_worktree = verb(lambda: operations.verify.verify_worktree)

    # several commits or models into one
    merge = verb(lambda: operations.merge.merge)
    preview_merge = verb(lambda: operations.preview_merge.preview_merge)
    conclude = verb(lambda: operations.pick.finish)
    abort = verb(lambda: operations.conclude.abort)
    skip = verb(lambda: operations.pick.skip)
    cherry_pick = verb(lambda: operations.pick.cherry_pick)
    revert = verb(lambda: operations.pick.revert)
    merge_recipe = verb(lambda: operations.merge_recipe.merge_recipe)
    commit_recipe = verb(lambda: operations.commit_recipe.commit_recipe)
    replay_merge = verb(lambda: operations.replay_merge.replay_merge)

    # to and from remotes
    push = verb(lambda: operations.push.push)
    fetch = verb(lambda: operations.fetch.fetch)
    pull = verb(lambda: operations.pull.pull)
    publish = verb(lambda: operations.publish.publish)

    # what a commit holds
    ls = verb(lambda: operations.ls.list_files)
    read_file = verb(lambda: operations.cat.read_plain_file)
    tensors = verb(lambda: operations.cat.read_tensors)
    export = verb(lambda: operations.export.export)

    # training states, in memory
    commit_state = verb(lambda: operations.commit_state.commit_state)
    open_state = verb(lambda: operations.open_state.open_state)
    load_state = verb(lambda: operations.load_state.load_state)
    verify_state = verb(lambda: operations.verify.verify_state)

    @overload
    def tensor(
        self, revision: str, path: StrPath, name: str, *, framework: Literal["numpy", "np"] = ...
    ) -> NDArray[np.generic]: ...
    @overload
    def tensor(
        self, revision: str, path: StrPath, name: str, *, framework: Literal["torch", "pt"]
    ) -> torch.Tensor: ...

    def tensor(
        self, revision: str, path: StrPath, name: str, *, framework: str = "numpy"
    ) -> NDArray[np.generic] | torch.Tensor:
        """Return one tensor's values; only its own chunks are read, each verified.

        Args:
            revision: which commit.
            path: which checkpoint.
            name: which tensor.
            framework: ``numpy`` (or ``np``) for an array (of an ml_dtypes type if NumPy has none),
                ``torch`` (or ``pt``) for a torch.Tensor.

        Returns:
            A new array or tensor of the stored shape; packed types arrive as uint8 bytes.

        Raises:
            UnsupportedError: torch is not installed, or lacks the dtype.
            UsageError: another framework.
        """
        value: NDArray[np.generic] | torch.Tensor = operations.cat.read_tensor(
            self._context, revision, path, name, framework
        )
        return value

    @property
    def branches(self) -> namespaces.Branches:
        """Its branches: ``list``, ``create``, ``rename``, ``delete``."""
        from mvc.repo.namespaces import Branches  # noqa: PLC0415  many commands need none

        return Branches(self._context)

    @property
    def tags(self) -> namespaces.Tags:
        """Its tags: ``list``, ``create``, ``delete``, ``message``."""
        from mvc.repo.namespaces import Tags  # noqa: PLC0415  many commands need none

        return Tags(self._context)

    @property
    def remotes(self) -> namespaces.Remotes:
        """Its remotes: ``list``, ``add``, ``show``, ``upstream``, ``gc`` and more."""
        from mvc.repo.namespaces import Remotes  # noqa: PLC0415  many commands need none

        return Remotes(self._context)

    @property
    def bisect(self) -> namespaces.Bisect:
        """The search for the commit that broke something: ``start``, ``mark``, ``run``, ``metric`` and more."""
        from mvc.repo.namespaces import Bisect  # noqa: PLC0415  many commands need none

        return Bisect(self._context)

    @property
    def data(self) -> namespaces.Data:
        """The maps of the data that models learn from: ``add``, ``list``, ``verify``, ``who_saw`` and more."""
        from mvc.repo.namespaces import Data  # noqa: PLC0415  many commands need none

        return Data(self._context)

    @property
    def runs(self) -> namespaces.Runs:
        """Its training runs: ``read``, ``follow``, ``rollback``, ``healthy`` and more."""
        from mvc.repo.namespaces import Runs  # noqa: PLC0415  many commands need none

        return Runs(self._context)

    @property
    def upkeep(self) -> namespaces.Upkeep:
        """What is kept and what it costs: ``gc``, ``prune``, ``repack``, ``du``, ``fsck`` and more."""
        from mvc.repo.namespaces import Upkeep  # noqa: PLC0415  many commands need none

        return Upkeep(self._context)
