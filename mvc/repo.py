"""The front door: ``Repo`` forwards to one operation per verb and holds no logic of its own.

Paths are repository paths (relative to the worktree, ``/``-separated) or absolute ones inside it.
Revisions follow Git's grammar, and ``main@12000`` is the commit of training step 12000.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from mvc.errors import NotFoundError, UsageError
from mvc.operations import context as contexts
from mvc.operations.worktree import relative_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from mvc.history.values import Head, Identity, ReflogEntry
    from mvc.ids import GitId
    from mvc.operations.add import AddPlan, AddResult
    from mvc.operations.branches import RefInfo
    from mvc.operations.checkout import CheckoutResult
    from mvc.operations.commit import CommitResult
    from mvc.operations.context import Context
    from mvc.operations.diff import FileDiff
    from mvc.operations.doctor import DoctorReport
    from mvc.operations.export import ExportResult
    from mvc.operations.fsck import FsckReport
    from mvc.operations.log import LogEntry
    from mvc.operations.status import Status
    from mvc.operations.tensors import FileInfo

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
        """
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
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

    def add(self, paths: Paths, *, force: bool = False, progress: Progress = None) -> AddResult:
        """Store files, folders or wildcards and stage them for the next commit.

        Args:
            paths: what to add; ``"."`` is everything.
            force: also what ``.mvcignore`` names.
            progress: called with bytes read since the last call.

        Raises:
            NotFoundError: nothing there.
            ConflictError: a file changed while it was read; nothing is staged.
        """
        from mvc.operations.add import add  # noqa: PLC0415  pay for what is used

        return add(self._context, self._paths(paths), force=force, progress=progress)

    def plan_add(self, paths: Paths, *, force: bool = False) -> AddPlan:
        """Return what ``add`` of these paths would read, drop and pass over."""
        from mvc.operations.add import plan_add  # noqa: PLC0415

        return plan_add(self._context, self._paths(paths), force=force)

    def remove(
        self, paths: Paths, *, cached: bool = False, force: bool = False, recursive: bool = False
    ) -> tuple[str, ...]:
        """Untrack files and delete them (``cached`` keeps them on disk); return the paths."""
        from mvc.operations.add import remove  # noqa: PLC0415

        chosen = self._paths(paths)
        return remove(self._context, chosen, cached=cached, force=force, recursive=recursive)

    def move(
        self, sources: Paths, target: PathLike, *, force: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """Rename tracked files; return (old, new) pairs."""
        from mvc.operations.add import move  # noqa: PLC0415

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
        progress: Progress = None,
    ) -> CommitResult:
        """Record what is staged as a new commit and move the branch to it.

        Args:
            message: subject, and body after an empty line; may be None with ``amend``.
            paths: add these first.
            everything: add every tracked file that changed first.
            amend: replace the last commit.
            allow_empty: also where nothing changed.
            step: training step; ``main@STEP`` finds the commit by it.
            metrics: name → number, shown by the log.
            meta: name → text.
            author: who; the repository's identity where None.
            time_s: when, in seconds since 1970; now where None.
            progress: called with bytes read since the last call.

        Raises:
            UsageError: no message.
            ConflictError: nothing to commit, or the branch moved meanwhile.
        """
        from mvc.operations.annotations import Annotations  # noqa: PLC0415
        from mvc.operations.commit import commit  # noqa: PLC0415

        return commit(
            self._context,
            message,
            annotations=Annotations(step, metrics, meta),
            paths=self._paths(paths),
            everything=everything,
            amend=amend,
            allow_empty=allow_empty,
            author=author,
            time_s=time_s,
            progress=progress,
        )

    # Looking.

    def status(self, *, untracked: bool = True) -> Status:
        """Compare HEAD, index and worktree; unchanged files are not read."""
        from mvc.operations.status import status  # noqa: PLC0415

        return status(self._context, untracked=untracked)

    def log(
        self,
        *revisions: str,
        everything: bool = False,
        limit: int | None = None,
        first_parent: bool = False,
    ) -> Iterator[LogEntry]:
        """Yield commits newest first, from HEAD or the revisions (``A..B`` works) or all refs."""
        from mvc.operations.log import log  # noqa: PLC0415

        return log(
            self._context, revisions, everything=everything, limit=limit, first_parent=first_parent
        )

    def show(self, revision: str = "HEAD") -> LogEntry:
        """Return one commit with its step and metrics."""
        from mvc.operations.log import show  # noqa: PLC0415

        return show(self._context, revision)

    def reflog(self, ref: str = "HEAD") -> list[ReflogEntry]:
        """Return where a ref has been, newest first."""
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
        """
        from mvc.operations import diff as diffs  # noqa: PLC0415

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
        """Return what a commit changed against its first parent; all of it for the first one."""
        from mvc.operations.diff import diff_commit  # noqa: PLC0415

        return diff_commit(
            self._context,
            revision,
            paths=self._paths(paths),
            tensors=tensors,
            with_tensors=with_tensors,
        )

    def merge_base(self, left: str, right: str) -> GitId | None:
        """Return the best common ancestor of two revisions, or None where there is none."""
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

        Every byte written was verified against its id. With ``paths``, HEAD stays and the paths
        are overwritten whatever they hold, as in Git.

        Raises:
            ConflictError: local changes would be lost, and not ``force``.
            CorruptionError: the store is damaged; the worktree is unchanged.
        """
        from mvc.operations.checkout import checkout_revision, restore_paths  # noqa: PLC0415

        chosen = self._paths(paths)
        if chosen:
            return restore_paths(
                self._context, chosen, source=revision, staged=True, progress=progress
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
        """Go to a branch; ``create`` makes it first, at ``start`` or HEAD."""
        from mvc.operations.checkout import checkout_revision, create_and_switch  # noqa: PLC0415

        if create:
            return create_and_switch(self._context, branch, start, force=force, progress=progress)
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
        """Bring paths back from the index or ``source``, whatever they hold now."""
        from mvc.operations.checkout import restore_paths  # noqa: PLC0415

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
        """
        from mvc.operations.checkout import reset, reset_paths  # noqa: PLC0415

        chosen = self._paths(paths)
        if chosen:
            return reset_paths(self._context, chosen, revision)
        return reset(self._context, revision, mode=mode, progress=progress)

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
        """Make a branch without going there; return its commit."""
        from mvc.operations.branches import create_branch  # noqa: PLC0415

        return create_branch(self._context, name, start, force=force)

    def delete_branch(self, name: str, *, force: bool = False) -> GitId:
        """Delete a branch (unmerged ones by ``force``); return the commit it pointed to."""
        from mvc.operations.branches import delete_branch  # noqa: PLC0415

        return delete_branch(self._context, name, force=force)

    def rename_branch(self, old: str, new: str, *, force: bool = False) -> None:
        """Rename a branch with its reflog."""
        from mvc.operations.branches import rename_branch  # noqa: PLC0415

        rename_branch(self._context, old, new, force=force)

    def create_tag(
        self, name: str, revision: str = "HEAD", *, message: str | None = None, force: bool = False
    ) -> GitId:
        """Tag a commit, annotated where there is a message; return the commit."""
        from mvc.operations.branches import create_tag  # noqa: PLC0415

        return create_tag(self._context, name, revision, message=message, force=force)

    def delete_tag(self, name: str) -> GitId:
        """Delete a tag; return what it pointed to."""
        from mvc.operations.branches import delete_tag  # noqa: PLC0415

        return delete_tag(self._context, name)

    # Tensors.

    def ls(
        self, revision: str = "HEAD", *, paths: Paths = (), tensors: str | None = None
    ) -> list[FileInfo]:
        """Return the files of a revision and their tensors; no tensor byte is read."""
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
        """Write tensors of a revision into a new safetensors file, streaming."""
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
        progress: Progress = None,
    ) -> CommitResult:
        """Commit a nested state (state dicts, scalars, RNG states) without writing a file.

        Args:
            state: top-level names → nested dicts, lists, tensors, arrays, scalars.
            message: subject, and body after an empty line.
            step: training step.
            metrics: name → number.
            meta: name → text.
            branch: branch to move; the current one where None.
            author: who; the repository's identity where None.
            time_s: when, in seconds since 1970; now where None.
            progress: called with bytes taken since the last call.

        Raises:
            UnsupportedError: a value that is not data; the message names its path.
            ConflictError: the branch moved meanwhile.
        """
        from mvc.operations.annotations import Annotations  # noqa: PLC0415
        from mvc.operations.state import commit_state  # noqa: PLC0415

        return commit_state(
            self._context,
            state,
            message,
            annotations=Annotations(step, metrics, meta),
            branch=branch,
            author=author,
            time_s=time_s,
            progress=progress,
        )

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
            NotFoundError: the commit holds no state.
        """
        from mvc.operations.state import load_state  # noqa: PLC0415

        return load_state(self._context, revision, framework=framework, into=into)

    # Care.

    def fsck(
        self, *, data: bool = False, repair: bool = False, progress: Progress = None
    ) -> FsckReport:
        """Check the repository.

        ``data`` reads, decodes and hashes every byte; ``repair`` first writes pack indexes anew
        that are missing or damaged.
        """
        from mvc.operations.fsck import fsck  # noqa: PLC0415

        return fsck(self._context, data=data, repair=repair, progress=progress)

    def doctor(self) -> DoctorReport:
        """Look at versions, file system and speed of the machine under the repository."""
        from mvc.operations.doctor import doctor  # noqa: PLC0415

        return doctor(self._context)

    def config(self) -> dict[str, str]:
        """Return the repository's settings: ``section.key`` → value."""
        return self._context.history.read_config()

    def set_config(self, key: str, value: str | None) -> None:
        """Set one setting, or take it away with None."""
        if value is None:
            self._context.history.unset_config(key)
        else:
            self._context.history.set_config(key, value)
