"""The front door: ``Repo`` forwards to one operation per verb and holds no logic of its own.

Paths are repository paths (relative to the worktree, ``/``-separated) or absolute ones inside it.
Revisions follow Git's grammar, and ``main@12000`` is the commit of training step 12000.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from mvc.errors import NotFoundError, UsageError, translate_os_errors
from mvc.workspace import context as contexts
from mvc.workspace.worktree import relative_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from mvc.chunkstore.values import WriteCounts
    from mvc.history.values import Head, Identity, ReflogEntry
    from mvc.ids import GitId
    from mvc.operations.add import AddPlan, AddResult
    from mvc.operations.branches import RefInfo
    from mvc.operations.commit import CommitResult
    from mvc.operations.diff import FileDiff
    from mvc.operations.doctor import DoctorReport
    from mvc.operations.du import DuReport
    from mvc.operations.export import ExportResult
    from mvc.operations.fsck import FsckReport
    from mvc.operations.gc import GcPlan, GcResult
    from mvc.operations.log import LogEntry
    from mvc.operations.prune import PrunePlan, PruneResult
    from mvc.operations.repack import RepackPlan, RepackResult
    from mvc.operations.rollback import RollbackPlan, RollbackResult
    from mvc.operations.status import Status
    from mvc.operations.tensors import FileInfo
    from mvc.operations.undo import UndoResult
    from mvc.operations.verify import StateCheck
    from mvc.operations.verify_files import WorktreeCheck
    from mvc.operations.watch import RunFollower
    from mvc.runs.feed import RunFeed
    from mvc.runs.view import RunView
    from mvc.workspace.checkout_plan import CheckoutResult
    from mvc.workspace.context import Context

    PathLike = str | os.PathLike[str]
    Paths = PathLike | Iterable[PathLike]
    Progress = Callable[[int], None] | None


class Repo:
    """An open repository: a worktree and the ``.mvc`` folder in it.

    Not shared between threads; open one per thread. Several processes may work on one repository
    at once: refs move by compare-and-swap, and whoever comes second gets a ConflictError.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    @classmethod
    def init(cls, path: PathLike = ".", *, branch: str = "main") -> Repo:
        """Create ``.mvc`` in a folder (made where missing) and open it.

        An existing repository is opened unchanged.

        Raises:
            UsageError: no valid branch name, or the folder's name is that of a file.
            StorageError: the machine refused.
        """
        folder = Path(path)
        try:
            with translate_os_errors(f"make folder {folder}"):
                folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"{folder} is not a folder") from None
        return cls(contexts.init(folder, branch=branch))

    @classmethod
    def open(
        cls, path: PathLike = ".", *, identity: Identity | None = None, threads: int | None = None
    ) -> Repo:
        """Open the repository of a folder or of the nearest folder above it.

        Args:
            path: a folder inside the worktree.
            identity: who commits, where a call names nobody; the repository's config where None.
            threads: workers for hashing and encoding; all cores where None.

        Raises:
            RepositoryNotFoundError: there is none.
        """
        context = contexts.discover(Path(path))
        context.identity = identity
        context.threads = threads
        return cls(context)

    @property
    def worktree(self) -> Path:
        """Folder with the user's files."""
        return self._context.worktree

    @property
    def git_dir(self) -> Path:
        """The ``.mvc`` folder, a Git directory."""
        return self._context.git_dir

    @property
    def head(self) -> Head:
        """Where HEAD is: its branch (None where detached) and commit (None before the first)."""
        return self._context.history.head()

    @property
    def identity(self) -> Identity | None:
        """Who commits where a call names nobody; None means the repository's config."""
        return self._context.identity

    @identity.setter
    def identity(self, identity: Identity | None) -> None:
        self._context.identity = identity

    def _paths(self, paths: Paths) -> list[str]:
        many = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        root = self.worktree
        return [relative_path(root, root, os.fspath(path)) for path in many]

    # Files into the index and history.

    def add(
        self,
        paths: Paths,
        *,
        force: bool = False,
        delta: bool | None = None,
        progress: Progress = None,
    ) -> AddResult:
        """Store files, folders or wildcards and stage them for the next commit.

        Args:
            paths: what to add; ``"."`` is everything.
            force: also what ``.mvcignore`` names.
            delta: whether tensors are stored as differences to those of the last commit; where
                None, if that gains much, or as ``mvc.delta`` of the config says.
            progress: called with bytes read since the last call.

        Raises:
            NotFoundError: nothing there.
            UsageError: ignored files only, another repository, or a path no commit may hold.
            ConflictError: a file changed while it was read; nothing is staged.
        """
        from mvc.operations.add import add  # noqa: PLC0415  pay for what is used

        chosen = self._paths(paths)
        return add(self._context, chosen, force=force, delta=delta, progress=progress)

    def plan_add(self, paths: Paths, *, force: bool = False) -> AddPlan:
        """Return what ``add`` of these paths would read, drop and pass over.

        Raises:
            NotFoundError: nothing there.
            UsageError: ignored files only, another repository, or a path no commit may hold.
        """
        from mvc.operations.add import plan_add  # noqa: PLC0415

        return plan_add(self._context, self._paths(paths), force=force)

    def remove(
        self, paths: Paths, *, cached: bool = False, force: bool = False, recursive: bool = False
    ) -> tuple[str, ...]:
        """Untrack files and delete them (``cached`` keeps them on disk); return the paths.

        Raises:
            NotFoundError: not tracked.
            ConflictError: changes that no commit holds, and not ``force``.
            UsageError: a folder, and not ``recursive``.
        """
        from mvc.operations.remove import remove  # noqa: PLC0415

        chosen = self._paths(paths)
        return remove(self._context, chosen, cached=cached, force=force, recursive=recursive)

    def move(
        self, sources: Paths, target: PathLike, *, force: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """Rename tracked files or folders; return (old, new) pairs.

        Raises:
            NotFoundError: a source is not tracked, or not there.
            ConflictError: the target exists, and not ``force``.
        """
        from mvc.operations.move import move  # noqa: PLC0415

        return move(self._context, self._paths(sources), self._paths(target)[0], force=force)

    def commit(
        self,
        message: str | None = None,
        *,
        paths: Paths = (),
        everything: bool = False,
        amend: bool = False,
        allow_empty: bool = False,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, str] | None = None,
        author: Identity | None = None,
        time_s: int | None = None,
        delta: bool | None = None,
        progress: Progress = None,
    ) -> CommitResult:
        """Record what is staged as a new commit and move the branch to it.

        Args:
            message: subject, and body after an empty line; may be None with ``amend``.
            paths: add these first.
            everything: add every tracked file that changed first.
            amend: replace the last commit; its author stays, and so do step, metrics and facts
                that are not given anew.
            allow_empty: also where nothing changed.
            step: training step; ``main@STEP`` finds the commit by it.
            metrics: name → number, shown by the log.
            meta: name → text of one line.
            author: who; the repository's identity where None.
            time_s: when, in seconds since 1970; now where None.
            delta: as for ``add``; what was added before is encoded anew where True.
            progress: called with bytes read since the last call.

        Raises:
            UsageError: no message, or a step or metric that is no number.
            ConflictError: nothing to commit, or the branch moved meanwhile.
            ReleasedError: the index holds released content that is gone, as after a reset.
        """
        from mvc.operations.aftercare import follow_commit  # noqa: PLC0415
        from mvc.operations.commit import commit  # noqa: PLC0415
        from mvc.workspace.annotations import Annotations  # noqa: PLC0415

        result = commit(
            self._context,
            message,
            annotations=Annotations(step, metrics, meta),
            paths=self._paths(paths),
            everything=everything,
            amend=amend,
            allow_empty=allow_empty,
            author=author,
            time_s=time_s,
            delta=delta,
            progress=progress,
        )
        return follow_commit(self._context, result, delta=delta)

    # Looking.

    def status(self, *, untracked: bool = True) -> Status:
        """Compare HEAD, index and worktree; unchanged files are not read.

        Raises:
            CorruptionError: HEAD's tree or the index is damaged.
        """
        from mvc.operations.status import status  # noqa: PLC0415

        return status(self._context, untracked=untracked)

    def log(
        self,
        *revisions: str,
        everything: bool = False,
        limit: int | None = None,
        first_parent: bool = False,
    ) -> Iterator[LogEntry]:
        """Yield commits newest first, from HEAD, or the revisions, or all refs.

        Args:
            revisions: where to start; ``A..B``, ``A...B`` and ``^A`` leave out, as in Git.
            everything: start from every ref as well.
            limit: at most so many.
            first_parent: follow only the first parent of merges.

        Raises:
            NotFoundError: a revision does not exist; on the first step of the iteration.
        """
        from mvc.operations.log import log  # noqa: PLC0415

        return log(
            self._context, revisions, everything=everything, limit=limit, first_parent=first_parent
        )

    def show(self, revision: str = "HEAD") -> LogEntry:
        """Return one commit with its step and metrics.

        Raises:
            NotFoundError: no such revision.
        """
        from mvc.operations.log import show  # noqa: PLC0415

        return show(self._context, revision)

    def reflog(self, ref: str = "HEAD") -> list[ReflogEntry]:
        """Return where a ref has been, newest first.

        Raises:
            NotFoundError: no such ref.
        """
        from mvc.operations.log import reflog  # noqa: PLC0415

        return reflog(self._context, ref)

    def diff(
        self,
        old: str | None = None,
        new: str | None = None,
        *,
        staged: bool = False,
        paths: Paths = (),
        tensors: str | None = None,
        with_tensors: bool = True,
        progress: Progress = None,
    ) -> list[FileDiff]:
        """Compare by identity: index and worktree, a revision and either, or two revisions.

        Args:
            old: revision before; the index (HEAD where ``staged``) where None.
            new: revision after; the worktree (the index where ``staged``) where None.
            staged: compare with the index instead of the worktree.
            paths: only these.
            tensors: only tensors whose name fits this wildcard.
            with_tensors: find out which tensors differ, not just which files.
            progress: called with bytes read, where worktree files have to be hashed.

        Raises:
            NotFoundError: no such revision.
            UsageError: ``new`` without ``old``, or two revisions and ``staged``.
        """
        from mvc.operations import diff as diffs  # noqa: PLC0415

        if new is not None and (old is None or staged):
            raise UsageError("two revisions are compared with each other, and with nothing else")
        chosen, context = self._paths(paths), self._context
        if old is not None and new is not None:
            return diffs.diff_revisions(
                context, old, new, paths=chosen, tensors=tensors, with_tensors=with_tensors
            )
        if staged:
            return diffs.diff_staged(
                context, old, paths=chosen, tensors=tensors, with_tensors=with_tensors
            )
        return diffs.diff_worktree(
            context,
            old,
            paths=chosen,
            tensors=tensors,
            with_tensors=with_tensors,
            progress=progress,
        )

    def changes(
        self,
        revision: str = "HEAD",
        *,
        paths: Paths = (),
        tensors: str | None = None,
        with_tensors: bool = True,
    ) -> list[FileDiff]:
        """Return what a commit changed against its first parent; all of it for the first one.

        Raises:
            NotFoundError: no such revision.
        """
        from mvc.operations.diff import diff_commit  # noqa: PLC0415

        return diff_commit(
            self._context,
            revision,
            paths=self._paths(paths),
            tensors=tensors,
            with_tensors=with_tensors,
        )

    def merge_base(self, left: str, right: str) -> GitId | None:
        """Return the best common ancestor of two revisions, or None where there is none.

        Raises:
            NotFoundError: no such revision.
        """
        return self._context.history.find_merge_base(self.resolve(left), self.resolve(right))

    def resolve(self, revision: str) -> GitId:
        """Return the commit id of a revision.

        Raises:
            NotFoundError: no such revision.
        """
        return self._context.history.resolve(revision)

    # Going places.

    def checkout(
        self,
        revision: str,
        *,
        paths: Paths = (),
        force: bool = False,
        detach: bool = False,
        progress: Progress = None,
    ) -> CheckoutResult:
        """Bring the worktree to a branch or revision, or only some paths back from it.

        Every byte written was verified against its id. What is staged or edited stays where the
        two commits agree, as in Git. With ``paths``, HEAD stays and the paths are overwritten
        whatever they hold.

        Raises:
            NotFoundError: no such revision or path.
            ConflictError: local changes would be lost, and not ``force``.
            ReleasedError: content of that commit was released; the worktree is unchanged.
            CorruptionError: the store is damaged; the worktree is unchanged.
        """
        from mvc.operations.checkout import checkout_revision  # noqa: PLC0415
        from mvc.operations.restore import restore_paths  # noqa: PLC0415

        chosen = self._paths(paths)
        if chosen:
            return restore_paths(
                self._context,
                chosen,
                source=revision,
                staged=True,
                overlay=True,
                progress=progress,
            )
        return checkout_revision(
            self._context, revision, force=force, detach=detach, progress=progress
        )

    def switch(
        self,
        branch: str,
        *,
        create: bool = False,
        start: str | None = None,
        force: bool = False,
        progress: Progress = None,
    ) -> CheckoutResult:
        """Go to a branch; ``create`` makes it first, at ``start`` or HEAD.

        Raises:
            NotFoundError: no such branch or start.
            ConflictError: the branch to create exists, or local changes would be lost.
            ReleasedError: content of that commit was released; nothing was changed.
            UsageError: no valid branch name, or ``start`` without ``create``.
        """
        from mvc.operations.checkout import checkout_revision, create_and_switch  # noqa: PLC0415

        if create:
            return create_and_switch(self._context, branch, start, force=force, progress=progress)
        if start is not None:
            raise UsageError("only a new branch has a start")
        known = self._context.history.find_ref(f"refs/heads/{branch}")
        if known is None and branch != self.head.branch:
            raise NotFoundError(
                f"no branch {branch!r}",
                hint='"-c" creates it; "mvc switch --detach" goes to any revision',
            )
        return checkout_revision(self._context, branch, force=force, progress=progress)

    def restore(
        self,
        paths: Paths,
        *,
        source: str | None = None,
        staged: bool = False,
        worktree: bool = True,
        progress: Progress = None,
    ) -> CheckoutResult:
        """Bring paths back from the index or ``source``, whatever they hold now.

        Tracked files that ``source`` (HEAD where ``staged``) lacks go.

        Args:
            paths: files, folders or wildcards.
            source: revision to take from; the index (HEAD where ``staged``) where None.
            staged: also the index entries.
            worktree: also the files.
            progress: called with bytes written.

        Raises:
            NotFoundError: no such revision or path.
            ConflictError: a file that has to go holds what is stored nowhere.
            ReleasedError: content to write was released; nothing was changed.
        """
        from mvc.operations.restore import restore_paths  # noqa: PLC0415

        return restore_paths(
            self._context,
            self._paths(paths),
            source=source,
            staged=staged,
            worktree=worktree,
            progress=progress,
        )

    def reset(
        self,
        revision: str = "HEAD",
        *,
        mode: str = "mixed",
        paths: Paths = (),
        progress: Progress = None,
    ) -> CheckoutResult:
        """Move the branch (``soft``), also the index (``mixed``), also the files (``hard``).

        With ``paths`` only their index entries are set to those of the revision.

        Raises:
            NotFoundError: no such revision or path.
            ReleasedError: content to write was released; nothing was changed.
            UsageError: another mode, or ``paths`` and not ``mixed``.
        """
        from mvc.operations.restore import reset, reset_paths  # noqa: PLC0415

        chosen = self._paths(paths)
        if chosen and mode != "mixed":
            raise UsageError(f"reset --{mode} takes no paths")
        if chosen:
            return reset_paths(self._context, chosen, revision)
        return reset(self._context, revision, mode=mode, progress=progress)

    def undo(
        self,
        *,
        redo: bool = False,
        force: bool = False,
        dry_run: bool = False,
        progress: Progress = None,
    ) -> UndoResult:
        """Take back the last move of HEAD or its branch; call it again to step further back.

        After a commit, amend or merge the branch moves back and the work is staged again; after a
        switch HEAD goes back where it was; after a reset the branch, index and files return.

        Args:
            redo: do again what the last undo took back.
            force: throw local changes away that are in the way.
            dry_run: only say what would be done.
            progress: called with bytes written since the last call.

        Raises:
            NotFoundError: there is nothing to undo or redo.
            ConflictError: local changes would be lost, and not ``force``; or HEAD moved otherwise.
        """
        from mvc.operations.undo import undo  # noqa: PLC0415

        return undo(self._context, redo=redo, force=force, dry_run=dry_run, progress=progress)

    def plan_rollback(
        self,
        revision: str | None = None,
        *,
        step: int | None = None,
        steps_back: int | None = None,
        healthy: bool = False,
        branch: str | None = None,
        at_step: int | None = None,
    ) -> RollbackPlan:
        """Return where a branch would go back to, and what it would leave; nothing is changed.

        The target is said in one way; in none, it is the newest healthy commit. But for a
        revision, commits whose content was released are passed over.

        Args:
            revision: this commit.
            step: the commit of this training step, or else the newest one before it.
            steps_back: the newest commit at least so many steps before the tip.
            healthy: the newest commit below the tip that ``mark_healthy`` marked.
            branch: the branch to move; the current one where None.
            at_step: the step at which the trouble was seen, for the name of what is left; the
                step of the tip where None.

        Raises:
            UsageError: more than one way, a negative number, or no branch where HEAD is on none.
            NotFoundError: no such branch or revision, or no commit that fits.
            ConflictError: the revision is no ancestor of the branch.
            ReleasedError: the content of the revision was released.
        """
        from mvc.operations.rollback import plan_rollback  # noqa: PLC0415

        return plan_rollback(
            self._context,
            revision,
            step=step,
            steps_back=steps_back,
            healthy=healthy,
            branch=branch,
            at_step=at_step,
        )

    def rollback(
        self,
        plan: RollbackPlan,
        *,
        reason: str = "",
        force: bool = False,
        progress: Progress = None,
    ) -> RollbackResult:
        """Take a branch back as planned; what it leaves stays on ``diverged/<branch>/<step>``.

        Index and files follow where HEAD is on the branch; ``undo`` brings it back then.

        Args:
            plan: from ``plan_rollback``.
            reason: why, on one line; the log shows it at the commit that is left.
            force: throw local changes away that are in the way.
            progress: called with bytes written.

        Raises:
            ConflictError: the branch moved since it was planned, or local changes would be lost,
                and not ``force``; nothing was changed.
            ReleasedError: the content of the target was released meanwhile.
        """
        from mvc.operations.rollback import run_rollback  # noqa: PLC0415

        return run_rollback(self._context, plan, reason=reason, force=force, progress=progress)

    def mark_healthy(self, revision: str, *, note: str = "") -> None:
        """Mark a commit as one that a rollback may go back to; the commit itself stays as it is.

        Args:
            revision: which commit; one that is marked already stays as it is.
            note: a remark, on one line.

        Raises:
            NotFoundError: no such revision.
            FormatError: the marks that are there are damaged.
        """
        from mvc.workspace.health import mark_healthy  # noqa: PLC0415

        mark_healthy(self._context, revision, note=note)

    def healthy(self, branch: str | None = None) -> tuple[GitId, ...]:
        """Return the healthy commits of a branch along first parents, newest first.

        Args:
            branch: which branch; where HEAD is if None.

        Raises:
            NotFoundError: no such branch.
            FormatError: the history or its marks are damaged.
        """
        from mvc.workspace.health import healthy_commits  # noqa: PLC0415

        return healthy_commits(self._context, branch)

    # Names.

    def branches(self) -> list[RefInfo]:
        """Return all branches."""
        from mvc.operations.branches import list_branches  # noqa: PLC0415

        return list_branches(self._context)

    def tags(self) -> list[RefInfo]:
        """Return all tags."""
        from mvc.operations.branches import list_tags  # noqa: PLC0415

        return list_tags(self._context)

    def create_branch(self, name: str, start: str = "HEAD", *, force: bool = False) -> GitId:
        """Make a branch without going there; return its commit.

        Raises:
            NotFoundError: no such start.
            ConflictError: it exists, and not ``force``; or it is checked out.
            UsageError: no valid branch name.
        """
        from mvc.operations.branches import create_branch  # noqa: PLC0415

        return create_branch(self._context, name, start, force=force)

    def delete_branch(self, name: str, *, force: bool = False) -> GitId:
        """Delete a branch (unmerged ones by ``force``); return the commit it pointed to.

        Raises:
            NotFoundError: no such branch.
            ConflictError: it is checked out, or not merged and not ``force``.
        """
        from mvc.operations.branches import delete_branch  # noqa: PLC0415

        return delete_branch(self._context, name, force=force)

    def rename_branch(self, old: str, new: str, *, force: bool = False) -> None:
        """Rename a branch with its reflog.

        Raises:
            NotFoundError: no branch ``old``.
            ConflictError: ``new`` exists, and not ``force``; or it is checked out.
            UsageError: no valid branch name.
        """
        from mvc.operations.branches import rename_branch  # noqa: PLC0415

        rename_branch(self._context, old, new, force=force)

    def create_tag(
        self, name: str, revision: str = "HEAD", *, message: str | None = None, force: bool = False
    ) -> GitId:
        """Tag a commit, annotated where there is a message; return the commit.

        Raises:
            NotFoundError: no such revision.
            ConflictError: the tag exists, and not ``force``.
            UsageError: no valid tag name.
        """
        from mvc.operations.branches import create_tag  # noqa: PLC0415

        return create_tag(self._context, name, revision, message=message, force=force)

    def delete_tag(self, name: str) -> GitId:
        """Delete a tag; return what it pointed to.

        Raises:
            NotFoundError: no such tag.
        """
        from mvc.operations.branches import delete_tag  # noqa: PLC0415

        return delete_tag(self._context, name)

    # Tensors.

    def ls(
        self, revision: str = "HEAD", *, paths: Paths = (), tensors: str | None = None
    ) -> list[FileInfo]:
        """Return the files of a revision and their tensors; no tensor byte is read.

        Raises:
            NotFoundError: no such revision or path.
        """
        from mvc.operations.tensors import list_files  # noqa: PLC0415

        return list_files(self._context, revision, paths=self._paths(paths), tensors=tensors)

    def read_file(self, revision: str, path: PathLike) -> bytes | None:
        """Return a plain file's bytes or a link's text; None for a file that is kept in chunks.

        Raises:
            NotFoundError: no such revision or path.
        """
        from mvc.operations.tensors import read_plain_file  # noqa: PLC0415

        return read_plain_file(self._context, revision, self._paths(path)[0])

    @overload
    def tensor(
        self, revision: str, path: PathLike, name: str, *, framework: Literal["numpy"] = ...
    ) -> NDArray[np.generic]: ...
    @overload
    def tensor(
        self, revision: str, path: PathLike, name: str, *, framework: Literal["torch"]
    ) -> torch.Tensor: ...
    def tensor(
        self, revision: str, path: PathLike, name: str, *, framework: str = "numpy"
    ) -> NDArray[np.generic] | torch.Tensor:
        """Return one tensor's values; only its own chunks are read, each verified.

        Args:
            revision: which commit.
            path: which checkpoint.
            name: which tensor.
            framework: ``numpy`` for an array (ml_dtypes types where NumPy has none), ``torch``
                for a torch.Tensor.

        Returns:
            A fresh array or tensor of the stored shape; packed types come as uint8 bytes.

        Raises:
            NotFoundError: no such revision, checkpoint or tensor.
            ReleasedError: its content was released.
            UsageError: another framework.
        """
        from mvc.operations import tensors  # noqa: PLC0415

        place = self._paths(path)[0]
        if framework == "torch":
            return tensors.read_torch_tensor(self._context, revision, place, name)
        if framework != "numpy":
            raise UsageError(f"framework is numpy or torch, not {framework!r}")
        return tensors.read_tensor(self._context, revision, place, name)

    def export(
        self,
        revision: str,
        output: PathLike,
        *,
        path: PathLike | None = None,
        tensors: str | None = None,
        force: bool = False,
        progress: Progress = None,
    ) -> ExportResult:
        """Write tensors of a revision into a new safetensors file, streaming.

        Args:
            revision: which commit.
            output: the file to make; a relative one lies in the current folder.
            path: take only this checkpoint's tensors; all of the revision's where None.
            tensors: only tensors whose name fits this wildcard.
            force: replace an existing file.
            progress: called with bytes written.

        Raises:
            NotFoundError: no such revision or path, or no tensor fits.
            ConflictError: the file exists, or two tensors have the same name.
            UnsupportedError: a tensor that safetensors cannot hold.
            ReleasedError: content of that revision was released.
        """
        from mvc.operations.export import export  # noqa: PLC0415

        chosen = None if path is None else self._paths(path)[0]
        return export(
            self._context,
            revision,
            Path(output),
            path=chosen,
            tensors=tensors,
            force=force,
            progress=progress,
        )

    # Training states, in memory.

    def commit_state(
        self,
        state: Mapping[str, object],
        *,
        message: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, str] | None = None,
        branch: str | None = None,
        author: Identity | None = None,
        time_s: int | None = None,
        delta: bool | None = None,
        previous: Mapping[str, object] | None = None,
        parent: str | None = None,
        progress: Progress = None,
    ) -> CommitResult:
        """Commit a nested state (state dicts, scalars, RNG states) without writing a file.

        Args:
            state: top-level names → nested dicts, lists, tensors, arrays, scalars.
            message: subject, and body after an empty line.
            step: training step.
            metrics: name → number.
            meta: name → text.
            branch: branch to move; the current one where None. One that does not exist yet
                begins with this commit.
            author: who; the repository's identity where None.
            time_s: when, in seconds since 1970; now where None.
            delta: whether tensors are stored as differences to those of the branch's last commit;
                where None, if that gains much, or as ``mvc.delta`` of the config says.
            previous: the state of that commit, unchanged, where it is still in memory: then
                nothing has to be decoded for the differences.
            parent: id of the commit that the branch must be at ("" for a branch without one).
            progress: called with bytes taken since the last call.

        Raises:
            UsageError: no message, or no valid branch name.
            UnsupportedError: a value that is not data; the message names its path.
            ConflictError: the branch moved meanwhile, is not at ``parent``, or a file of the same
                name is staged.
        """
        from mvc.operations.aftercare import start_upkeep  # noqa: PLC0415
        from mvc.operations.state import commit_state  # noqa: PLC0415
        from mvc.workspace.annotations import Annotations  # noqa: PLC0415

        result = commit_state(
            self._context,
            state,
            message,
            annotations=Annotations(step, metrics, meta),
            branch=branch,
            author=author,
            time_s=time_s,
            delta=delta,
            previous=previous,
            parent=parent,
            progress=progress,
        )
        start_upkeep(self._context)
        return result

    def commit_image(
        self,
        files: Mapping[str, memoryview],
        *,
        message: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        meta: Mapping[str, str] | None = None,
        branch: str | None = None,
        delta: bool | None = None,
        parent: str | None = None,
        describe: Callable[[WriteCounts], Mapping[str, str]] | None = None,
        progress: Progress = None,
    ) -> CommitResult:
        """Commit the image of a state (see ``mvc.layout_state``), exactly as its state would be.

        Args:
            files: name → bytes of every file of the image; they must not change meanwhile.
            message: subject, and body after an empty line.
            step: training step.
            metrics: name → number.
            meta: name → text.
            branch: as for ``commit_state``.
            delta: as for ``commit_state``.
            parent: as for ``commit_state``.
            describe: called once everything but the commit itself is durable; joins ``meta``.
            progress: called with bytes taken since the last call.

        Raises:
            FormatError: not the files of a state.
            UsageError: no message, or no valid branch name.
            ConflictError: as for ``commit_state``.
        """
        from mvc.operations.aftercare import start_upkeep  # noqa: PLC0415
        from mvc.operations.state import commit_files  # noqa: PLC0415
        from mvc.states.image import open_image  # noqa: PLC0415
        from mvc.workspace.annotations import Annotations  # noqa: PLC0415

        result = commit_files(
            self._context,
            open_image(files),
            message,
            annotations=Annotations(step, metrics, meta),
            branch=branch,
            delta=delta,
            parent=parent,
            describe=describe,
            progress=progress,
        )
        start_upkeep(self._context)
        return result

    def outline_state(self, revision: str = "HEAD") -> dict[str, Any]:
        """Return the structure of a commit's state, an ``ArrayOutline`` in place of each array.

        Raises:
            NotFoundError: no such revision, or the commit holds no state.
            ReleasedError: content of that commit was released.
        """
        from mvc.operations.state import outline_state  # noqa: PLC0415

        return outline_state(self._context, revision)

    def verify_state(self, state: Mapping[str, object], revision: str = "HEAD") -> StateCheck:
        """Compare a live state with a commit's, bit by bit; nothing is changed.

        Args:
            state: nested, as for ``commit_state``.
            revision: which commit.

        Raises:
            NotFoundError: no such revision, or the commit holds no state.
            UnsupportedError: a live value that is not data; the message names its path.
        """
        from mvc.operations.verify import verify_state  # noqa: PLC0415

        return verify_state(self._context, state, revision)

    def verify_worktree(
        self, revision: str = "HEAD", *, paths: Paths = (), progress: Progress = None
    ) -> WorktreeCheck:
        """Compare the files of the worktree with a commit's, tensor by tensor, to the bit.

        Every file is read. One that differs from the commit's but holds the same tensors (another
        header, format or number of shards) is told apart.

        Args:
            revision: which commit.
            paths: only these files, folders or wildcards.
            progress: called with bytes read.

        Raises:
            NotFoundError: no such revision, or it has no such path.
            ConflictError: a file changed while it was read.
            ReleasedError: a tensor can only be compared by its content, which was released.
            CorruptionError: what differs cannot be read from the store.
        """
        from mvc.operations.verify_files import verify_worktree  # noqa: PLC0415

        return verify_worktree(self._context, revision, paths=self._paths(paths), progress=progress)

    def load_state(
        self,
        revision: str = "HEAD",
        *,
        framework: Literal["torch", "numpy"] = "torch",
        into: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        """Return the state of a commit: same structure, types and bits, ties kept.

        Args:
            revision: which commit.
            framework: ``torch``, or ``numpy`` where torch is not installed.
            into: live tensors of the same structure, filled in place.

        Raises:
            NotFoundError: no such revision, or the commit holds no state.
            ReleasedError: content of that commit was released; nothing was filled.
            ConflictError: ``into`` holds what the state does not, or in another shape.
            UnsupportedError: torch is not installed.
        """
        from mvc.operations.state import load_state  # noqa: PLC0415

        return load_state(self._context, revision, framework=framework, into=into)

    # Training runs, while they run.

    def open_feed(self, branch: str) -> RunFeed:
        """Return what tells others, ``mvc watch`` above all, how the run on a branch is going.

        What it writes is no part of the history. It never raises for what the machine does.

        Raises:
            UsageError: no branch may have that name.
        """
        from mvc.runs.feed import open_feed  # noqa: PLC0415

        return open_feed(self._context, branch)

    def read_run(
        self, branch: str | None = None, *, losses: int = 2000, events: int = 20
    ) -> RunView:
        """Return how a run is going, as its feed tells; its end only, so it takes no time.

        Args:
            branch: which run; where None that of the current branch, or else the latest.
            losses: at most so many of the last losses.
            events: at most so many of the last commits, alarms, rollbacks and other events.

        Raises:
            NotFoundError: there is no such run.
            UsageError: no branch may have that name.
            StorageError: the machine failed.
        """
        return self.follow_run(branch, losses=losses, events=events).read()

    def follow_run(
        self, branch: str | None = None, *, losses: int = 2000, events: int = 20
    ) -> RunFollower:
        """Return what reads a run again and again, each time only what is new.

        Args:
            branch: as for ``read_run``.
            losses: at most so many of the last losses.
            events: at most so many of the last commits, alarms, rollbacks and other events.

        Raises:
            NotFoundError: there is no such run.
            UsageError: no branch may have that name.
            StorageError: the machine failed.
        """
        from mvc.operations.watch import follow_run  # noqa: PLC0415

        return follow_run(self._context, branch, losses=losses, events=events)

    # Storing less.

    def plan_prune(
        self,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_best: int | None = None,
        metric: str | None = None,
        maximise: bool = False,
        keep_tagged: bool = False,
        keep_branch_tips: bool = False,
        keep_within_s: int | None = None,
        weights_only: bool = False,
        also_diverged: Iterable[str] = (),
        now_s: int | None = None,
    ) -> PrunePlan:
        """Return which commits keep their content and which would release it; nothing is changed.

        A commit that one rule keeps is kept. HEAD, tips of branches, tagged commits and all
        ``diverged/`` branches that are not named are kept in any case.

        Args:
            keep_last: so many newest commits of each branch, along first parents.
            keep_every: commits whose step is a multiple of this.
            keep_best: so many commits with the best value of ``metric``.
            metric: name of a metric; the smallest value is the best.
            maximise: the largest value is the best.
            keep_tagged: what is kept in any case is enough.
            keep_branch_tips: also the tips of ``diverged/`` branches that are named.
            keep_within_s: commits that are not older than so many seconds.
            weights_only: of the other commits release only what is not the model.
            also_diverged: names or wildcards of ``diverged/`` branches to release from as well.
            now_s: the present, in seconds since 1970; the clock's where None.

        Raises:
            UsageError: no rule, a number below 1, or ``keep_best`` and no ``metric``.
            NotFoundError: a name that fits no ``diverged/`` branch.
        """
        from mvc.operations.prune import plan_prune  # noqa: PLC0415
        from mvc.upkeep.retention import RetentionPolicy  # noqa: PLC0415

        policy = RetentionPolicy(
            keep_last=keep_last,
            keep_every=keep_every,
            keep_best=keep_best,
            metric=metric,
            maximise=maximise,
            keep_tagged=keep_tagged,
            keep_branch_tips=keep_branch_tips,
            keep_within_s=keep_within_s,
            weights_only=weights_only,
            also_diverged=tuple(also_diverged),
        )
        return plan_prune(self._context, policy, now_s=now_s)

    def prune(self, plan: PrunePlan) -> PruneResult:
        """Release what a plan of ``plan_prune`` says and free it; commits and metrics stay.

        Raises:
            ConflictError: a ref moved meanwhile and protects what would be released.
            StorageError: the machine failed; the next gc frees what is recorded by then.
        """
        from mvc.operations.prune import run_prune  # noqa: PLC0415

        return run_prune(self._context, plan)

    def plan_gc(
        self, *, grace_s: float | None = None, expire_reflogs_s: float | None = None
    ) -> GcPlan:
        """Return what nothing reaches and how many bytes that is; nothing is removed.

        Args:
            grace_s: garbage younger than this stays; two weeks where None.
            expire_reflogs_s: entries of reflogs older than this are forgotten; where None, after
                90 days, and after 30 where their ref has left what they name. 0 forgets what no
                ref leads to.

        Raises:
            FormatError: the history is damaged.
            CorruptionError: something that is needed is not there.
        """
        from mvc.operations.gc import plan_gc, reflog_expiry  # noqa: PLC0415

        expiry = reflog_expiry(expire_reflogs_s)
        if grace_s is None:
            return plan_gc(self._context, expiry=expiry)
        return plan_gc(self._context, grace_s=grace_s, expiry=expiry)

    def gc(
        self, plan: GcPlan | None = None, *, grace_s: float | None = None, progress: Progress = None
    ) -> GcResult:
        """Remove what nothing reaches; may run beside commits and readers.

        Args:
            plan: from ``plan_gc``; made now where None.
            grace_s: as for ``plan_gc``, where there is no plan.
            progress: called with bytes of packs that are written anew.

        Raises:
            ConflictError: another gc, prune or repack is running.
            CorruptionError: the repository is damaged; nothing more is removed.
        """
        from mvc.operations.gc import run_gc  # noqa: PLC0415

        return run_gc(self._context, plan or self.plan_gc(grace_s=grace_s), progress)

    def plan_repack(self, *, everything: bool = False, grace_s: float | None = None) -> RepackPlan:
        """Return how to store the repository in less; nothing is changed.

        Args:
            everything: look also at commits that an earlier repack has looked at.
            grace_s: garbage younger than this stays; two weeks where None.

        Raises:
            FormatError: the history is damaged.
            CorruptionError: something that is needed is not there.
        """
        from mvc.operations.gc import DEFAULT_GRACE_S  # noqa: PLC0415
        from mvc.operations.repack import plan_repack  # noqa: PLC0415

        grace_s = DEFAULT_GRACE_S if grace_s is None else grace_s
        return plan_repack(self._context, everything=everything, grace_s=grace_s)

    def repack(self, plan: RepackPlan | None = None, *, progress: Progress = None) -> RepackResult:
        """Store chunks as differences across history and gather small packs.

        Args:
            plan: from ``plan_repack``; made now where None.
            progress: called with bytes of packs that are written anew.

        Raises:
            ConflictError: another gc, prune or repack is running.
            CorruptionError: the repository is damaged; nothing more is removed.
        """
        from mvc.operations.repack import run_repack  # noqa: PLC0415

        return run_repack(self._context, plan or self.plan_repack(), progress)

    def is_repack_due(self) -> bool:
        """Tell whether many packs are small, or many commits were never repacked.

        Raises:
            StorageError: the machine failed.
        """
        from mvc.operations.repack import is_due  # noqa: PLC0415

        return is_due(self._context)

    def du(
        self,
        *revisions: str,
        by: Iterable[str] = ("branch", "tag", "commit", "file"),
    ) -> DuReport:
        """Return what is stored and for whom: alone, shared, and what it would take as files.

        Args:
            revisions: look only at these commits: ``A`` is that one, ``A..B`` what B has and A has
                not; all that branches and tags reach where there is none.
            by: which lists to make, of ``branch``, ``tag``, ``commit``, ``file``, ``tensor``.

        Raises:
            NotFoundError: no such revision.
            UsageError: no such kind of list.
            FormatError: the history is damaged.
        """
        from mvc.operations.du import du  # noqa: PLC0415

        return du(self._context, revisions, by=tuple(by))

    # Care.

    def fsck(
        self, *, data: bool = False, repair: bool = False, progress: Progress = None
    ) -> FsckReport:
        """Check the repository.

        ``data`` reads, decodes and hashes every byte; ``repair`` first writes pack indexes anew
        that are missing or damaged. What is wrong is in the report, never an error.

        Raises:
            ConflictError: to be repaired, but a gc, prune or repack is running.
            StorageError: the machine failed.
        """
        from mvc.operations.fsck import fsck  # noqa: PLC0415

        return fsck(self._context, data=data, repair=repair, progress=progress)

    def doctor(self) -> DoctorReport:
        """Look at versions, file system and speed of the machine under the repository.

        Raises:
            StorageError: nothing can be written there.
        """
        from mvc.operations.doctor import doctor  # noqa: PLC0415

        return doctor(self._context)

    def config(self) -> dict[str, str]:
        """Return the repository's settings: ``section.key`` → value.

        Raises:
            FormatError: the config is damaged.
        """
        return self._context.history.read_config()

    def set_config(self, key: str, value: str | None) -> None:
        """Set one setting, or take it away with None.

        Raises:
            NotFoundError: it is to be taken away and not set.
            UsageError: no such key can be, or no such value.
        """
        self._context.forget_settings()
        if value is None:
            self._context.history.unset_config(key)
        else:
            self._context.history.set_config(key, value)
