"""The front door: ``Repo`` forwards to one operation per verb and decides nothing itself.

Parameters and errors are documented here, once, and not again on the operations.

Paths are repository paths (relative to the worktree, ``/``-separated) or absolute ones inside it.
Revisions follow Git's grammar, and ``main@12000`` is the commit of training step 12000.
"""

from __future__ import annotations

import collections.abc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

# These packages import their modules on first use, so a command loads only what it runs.
from mvc import operations, runs, states, upkeep, workspace
from mvc.errors import UsageError, translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Self

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from mvc.chunkstore.values import WriteCounts
    from mvc.history.ignore import IgnoreRule
    from mvc.history.values import Head, Identity, ReflogEntry
    from mvc.ids import GitId

    # Named so that type checkers see the modules below whose types are not imported anyway.
    from mvc.operations import (  # noqa: F401
        aftercare,
        bisect_marks,
        cat,
        check_ignore,
        checkout,
        commit,
        commit_state,
        conclude,
        diff,
        load_state,
        merge,
        move,
        pick,
        remove,
        restore,
        verify_models,
    )
    from mvc.operations.add import AddPlan, AddResult
    from mvc.operations.best import BestCommit
    from mvc.operations.bisect import BisectStep
    from mvc.operations.bisect_metric import MetricBreak
    from mvc.operations.blame import Blame
    from mvc.operations.branch import RefInfo
    from mvc.operations.compare import ModelDiff
    from mvc.operations.doctor import DoctorReport
    from mvc.operations.du import DuReport
    from mvc.operations.export import ExportResult
    from mvc.operations.file_diff import FileDiff
    from mvc.operations.fsck import FsckReport
    from mvc.operations.gate import GateReport
    from mvc.operations.gc import GcPlan, GcResult
    from mvc.operations.log import LogEntry
    from mvc.operations.ls import FileInfo
    from mvc.operations.merge import MergeResult
    from mvc.operations.merge_recipe import RecipeResult
    from mvc.operations.preview_merge import MergePreview
    from mvc.operations.prune import PrunePlan, PruneResult
    from mvc.operations.repack import RepackPlan, RepackResult
    from mvc.operations.replay_merge import MergeReplay
    from mvc.operations.rollback import RollbackPlan, RollbackResult
    from mvc.operations.stash import StashEntry
    from mvc.operations.status import Status
    from mvc.operations.undo import UndoResult
    from mvc.operations.verify import StateCheck, WorktreeCheck
    from mvc.operations.verify_models import ModelCheck
    from mvc.operations.watch import RunFollower
    from mvc.runs.feed import RunFeed
    from mvc.runs.records import RunView
    from mvc.workspace.checkout_plan import CheckoutResult
    from mvc.workspace.commits import CommitResult
    from mvc.workspace.models import Model, Operand

    StrPath = str | os.PathLike[str]
    Paths = StrPath | Iterable[StrPath]
    Progress = Callable[[int], None] | None


def compare(
    old: StrPath | Mapping[str, object],
    new: StrPath | Mapping[str, object],
    *,
    tensors: str | None = None,
    spectral: bool = False,
    progress: Progress = None,
) -> ModelDiff:
    """Compare two models outside any repository: files, folders of them, or live states.

    As ``Repo.compare``, but nothing is kept.

    Raises:
        NotFoundError: a file does not exist.
        FormatError: a file holds no tensor.
    """
    sides = (one if isinstance(one, collections.abc.Mapping) else Path(one) for one in (old, new))
    return operations.compare.compare(
        None, *sides, tensors=tensors, spectral=spectral, progress=progress
    )


def merge_recipe(
    recipe: str,
    output: StrPath,
    *,
    seed: int = 0,
    force: bool = False,
    progress: Progress = None,
) -> RecipeResult:
    """Merge models outside any repository: as ``Repo.merge_recipe``, of files and folders only."""
    return operations.merge_recipe.merge_recipe(
        None, recipe, Path(output), seed=seed, force=force, progress=progress
    )


def open_model(operand: Operand, repo: Repo | None = None) -> AbstractContextManager[Model]:
    """Open the tensors of a revision, of the worktree or of plain files for a ``with`` block.

    Args:
        operand: a revision, ``REV:PATH``, a checkpoint file, a folder of them, or a live state such
            as a state dict; None is the worktree. A ``Path`` is never a revision.
        repo: the repository, or None outside of one.

    Returns:
        A ``Model``, whose ``tensors`` are read one by one with ``read("numpy")`` or ``"torch"``.

    Raises:
        NotFoundError: it is none of these.
        UsageError: it is more than one of these, or there is no repository whose worktree it is.
        FormatError: a file holds no tensor.
    """
    context = None if repo is None else repo._context  # noqa: SLF001  the same module
    return workspace.models.open_model(context, operand)


class Repo:
    """An open repository: a worktree and the ``.mvc`` folder in it.

    Not shared between threads; open one per thread. Several processes may work on one repository
    at once: refs move by compare-and-swap, and the slower one gets a ConflictError.

    Where a method takes them, ``paths`` are files, folders or wildcards, ``progress`` is called with
    the bytes handled since the last call, and ``revision`` names a commit.

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

    def __init__(
        self,
        path: StrPath = ".",
        *,
        identity: Identity | None = None,
        threads: int | None = None,
        niceness: Callable[[], int] | None = None,
    ) -> None:
        """Open the repository of a folder, or of the nearest folder above it that has one.

        Args:
            path: a folder inside the worktree.
            identity: who commits, unless a call names an author; defaults to the name Git would
                use at that moment: ``GIT_AUTHOR_NAME`` and ``GIT_AUTHOR_EMAIL``, the repository's
                config, the user's Git config, ``EMAIL``, the login name.
            threads: workers for hashing and encoding; defaults to all cores.
            niceness: how much lower than this thread's the priority of a write's workers should be,
                asked again and again; None means not at all. Only on Linux.

        Raises:
            RepositoryNotFoundError: there is none.
        """
        self._context = workspace.context.discover(Path(path))
        self._context.identity = identity
        self._context.threads = threads
        self._context.niceness = niceness

    @classmethod
    def init(cls, path: StrPath = ".", *, branch: str = "main") -> Repo:
        """Create ``.mvc`` in a folder, which is made if missing, and open it.

        An existing repository is opened unchanged.

        Raises:
            UsageError: not a valid branch name, or the path cannot be a folder.
            StorageError: the machine failed.
        """
        folder = Path(path)
        try:
            with translate_os_errors(f"make folder {folder}"):
                folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"{folder} is not a folder") from None
        except FileNotFoundError:
            raise UsageError(
                f"cannot make folder {folder}: its parent folder is gone or takes no folders",
                hint="name a folder elsewhere",
            ) from None
        workspace.context.init(folder, branch=branch)
        return cls(folder)

    @classmethod
    def open(
        cls,
        path: StrPath = ".",
        *,
        identity: Identity | None = None,
        threads: int | None = None,
        niceness: Callable[[], int] | None = None,
    ) -> Repo:
        """Return ``Repo(path, ...)``, the other name of the same.

        Raises:
            RepositoryNotFoundError: there is none.
        """
        return cls(path, identity=identity, threads=threads, niceness=niceness)

    def close(self) -> None:
        """Close the files that reads keep open; the next read opens them again."""
        self._context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"mvc.Repo({os.fspath(self.worktree)!r})"

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
        """HEAD's branch (None if detached) and commit (None before the first one)."""
        return self._context.history.head()

    @property
    def is_interrupted(self) -> bool:
        """Whether a checkout was cut short and waits for the next change or ``status`` to finish it."""
        return workspace.recovery.is_interrupted(self._context)

    @property
    def identity(self) -> Identity | None:
        """Who commits, unless a call names an author; None means whom Git would name."""
        return self._context.identity

    @identity.setter
    def identity(self, identity: Identity | None) -> None:
        self._context.identity = identity

    def check_identity(self) -> None:
        """Check that commits can name who makes them, before work that ends in one.

        Raises:
            UsageError: ``identity``, or whom Git would name, has no name.
        """
        self._context.check_identity()

    def _paths(self, paths: Paths) -> list[str]:
        many = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        root = self.worktree
        return [workspace.worktree.relative_path(root, root, os.fspath(path)) for path in many]

    # Files into the index and history.

    def add(
        self,
        paths: Paths,
        *,
        force: bool = False,
        tracked_only: bool = False,
        delta: bool | None = None,
        progress: Progress = None,
    ) -> AddResult:
        """Store files, folders or wildcards and stage them for the next commit.

        Args:
            paths: what to add; ``"."`` is everything.
            force: also add files that ``.mvcignore`` names.
            tracked_only: leave files alone that are not tracked yet.
            delta: store tensors as differences from those of the last commit: always, never, or
                (None) as ``mvc.delta`` of the config says, by default if that saves a quarter.
            progress: called with bytes read since the last call.

        Raises:
            UsageError: only ignored files, another repository, or a path no commit may hold.
            ConflictError: a file changed while it was read; nothing is staged.
        """
        return operations.add.add(
            self._context,
            self._paths(paths),
            force=force,
            tracked_only=tracked_only,
            delta=delta,
            progress=progress,
        )

    def plan_add(self, paths: Paths, *, force: bool = False, tracked_only: bool = False) -> AddPlan:
        """Return what ``add`` of these paths would read, drop and skip.

        Raises:
            UsageError: only ignored files, another repository, or a path no commit may hold.
        """
        return operations.add.plan_add(
            self._context, self._paths(paths), force=force, tracked_only=tracked_only
        )

    def remove(
        self, paths: Paths, *, cached: bool = False, force: bool = False, recursive: bool = False
    ) -> tuple[str, ...]:
        """Untrack files and delete them; return their paths.

        Args:
            paths: files, wildcards, or (``recursive``) folders.
            cached: keep the files on disk.
            force: even if they have changes that no commit holds.
            recursive: allow folders.

        Raises:
            NotFoundError: a path is not tracked.
            ConflictError: changes would be lost, and not ``force``.
            UsageError: a folder, and not ``recursive``.
        """
        return operations.remove.remove(
            self._context, self._paths(paths), cached=cached, force=force, recursive=recursive
        )

    def move(
        self, sources: Paths, target: StrPath, *, force: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """Rename tracked files or folders; return an (old, new) pair for each tracked path.

        Args:
            sources: tracked files or folders.
            target: the new name, or an existing folder to move them into.
            force: replace a file that has the new name.

        Raises:
            NotFoundError: a source is not tracked, or missing.
            ConflictError: the target exists, and not ``force``.
            UsageError: an impossible target, or sources that contain each other.
        """
        return operations.move.move(
            self._context, self._paths(sources), self._paths(target)[0], force=force
        )

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
        no_gate: bool = False,
        progress: Progress = None,
    ) -> CommitResult:
        """Record what is staged as a new commit and move the branch to it.

        Args:
            message: subject, and body after an empty line; optional with ``amend``.
            paths: add these first.
            everything: first add every tracked file that changed.
            amend: replace the last commit. Its author stays, as do step, metrics and meta unless
                given again.
            allow_empty: commit even if nothing changed.
            step: training step; ``main@STEP`` finds the commit by it.
            metrics: name → number, shown by the log.
            meta: name → one line of text.
            author: defaults to ``identity``.
            time_s: when, in seconds since 1970; defaults to now.
            delta: as for ``add``; True also re-encodes what an earlier ``add`` stored whole.
            no_gate: commit even what fails a gate (``gate.nan`` and the like of the settings).
            progress: called with bytes read since the last call.

        Raises:
            UsageError: no message, or a step or metric that is not a number.
            GateError: a gate refuses what is staged.
            ConflictError: nothing to commit, or the branch moved meanwhile.
            ReleasedError: the index holds released content that is gone, as after a reset.
        """
        result = operations.commit.commit(
            self._context,
            message,
            annotations=workspace.annotations.Annotations(step, metrics, meta),
            paths=self._paths(paths),
            everything=everything,
            amend=amend,
            allow_empty=allow_empty,
            author=author,
            time_s=time_s,
            delta=delta,
            no_gate=no_gate,
            progress=progress,
        )
        return operations.aftercare.follow_commit(self._context, result, delta=delta)

    # Looking.

    def status(self, *, untracked: bool = True, ignored: bool = False) -> Status:
        """Compare HEAD, index and worktree; unchanged files are not read.

        Args:
            untracked: list files that are not tracked, too.
            ignored: list what ``.mvcignore`` names; ``/`` ends the name of a whole folder.

        Raises:
            CorruptionError: HEAD's tree or the index is damaged.
        """
        return operations.status.status(self._context, untracked=untracked, ignored=ignored)

    def check_ignore(self, paths: Sequence[StrPath]) -> list[IgnoreRule | None]:
        """Return for each path the rule of ``.mvcignore`` that keeps it from being added, or None.

        Args:
            paths: files, and folders, whose names end with ``/`` if they do not exist.

        Raises:
            FormatError: a ``.mvcignore`` is too long or has a pattern that would take too long.
        """
        names = [
            path + "/" * os.fspath(name).endswith("/")
            for path, name in zip(self._paths(paths), paths, strict=True)
        ]
        return operations.check_ignore.check_ignore(self._context, names)

    def log(
        self,
        *revisions: str,
        everything: bool = False,
        limit: int | None = None,
        first_parent: bool = False,
    ) -> Iterator[LogEntry]:
        """Yield commits newest first, children before parents.

        Args:
            revisions: where to start, by default HEAD; ``A..B``, ``A...B`` and ``^A`` exclude
                commits, as in Git.
            everything: start from every ref as well.
            limit: at most this many.
            first_parent: follow only the first parent of merges.

        Raises:
            NotFoundError: a revision does not exist; raised on the first step of the iteration.
        """
        return operations.log.log(
            self._context, revisions, everything=everything, limit=limit, first_parent=first_parent
        )

    def show(self, revision: str = "HEAD") -> LogEntry:
        """Return one commit with its step and metrics.

        Raises:
            NotFoundError: no such revision.
        """
        return operations.log.show(self._context, revision)

    def reflog(self, ref: str = "HEAD") -> list[ReflogEntry]:
        """Return where a ref has been, newest first.

        Raises:
            NotFoundError: no such ref.
        """
        return operations.log.reflog(self._context, ref)

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
        """Compare by identity: index with worktree, a revision with either, or two revisions.

        Args:
            old: revision before; defaults to the index (HEAD with ``staged``).
            new: revision after; defaults to the worktree (the index with ``staged``).
            staged: compare with the index instead of the worktree.
            paths: only these files, folders or wildcards.
            tensors: only tensors whose name matches this wildcard.
            with_tensors: find which tensors differ, not only which files.
            progress: called with bytes read, if files of the worktree have to be hashed.

        Raises:
            UsageError: ``new`` without ``old``, or two revisions and ``staged``.
        """
        return operations.diff.diff(
            self._context,
            old,
            new,
            staged=staged,
            scope=operations.diff.Scope(tuple(self._paths(paths)), tensors, with_tensors),
            progress=progress,
        )

    def check_gates(
        self, old: str | None = None, new: str | None = None, *, staged: bool = False
    ) -> GateReport:
        """Judge the later side of a comparison, which is that of ``diff``, by the gates that are set.

        Args:
            old: what a growth compares with; defaults to HEAD.
            new: revision to judge; defaults to the worktree (the index with ``staged``).
            staged: judge the index.

        Raises:
            UsageError: no gate is set.
        """
        return operations.gate.check_gates(self._context, old, new, staged=staged)

    def compare(
        self,
        old: Operand = None,
        new: Operand = None,
        *,
        staged: bool = False,
        paths: Paths = (),
        tensors: str | None = None,
        spectral: bool = False,
        progress: Progress = None,
    ) -> ModelDiff:
        """Compare two models in numbers: how far each tensor moved, and what that amounts to.

        Tensors whose ids are equal are not read. Statistics of all others are kept in the
        repository by their two ids, so a second look reads nothing.

        Args:
            old: a revision, ``REV:PATH``, a checkpoint file, a folder of them, or a live state such
                as a state dict; defaults to the index (HEAD with ``staged``). A ``Path`` is never a
                revision.
            new: the same; defaults to the worktree (the index with ``staged``).
            staged: compare with the index instead of the worktree.
            paths: only these files, folders or wildcards of revisions, index and worktree.
            tensors: only tensors whose name on either side matches this wildcard.
            spectral: also find the spectrum of each matrix's difference: largest singular value,
                stable rank, and how many directions have most of its energy. Reads them twice more.
            progress: called with bytes read.

        Raises:
            UsageError: ``new`` without ``old``, two models and ``staged``, a name that is both a
                revision and a file, or ``paths`` beside an operand that has none to choose from.
            FormatError: a file holds no tensor.
        """
        return operations.compare.compare(
            self._context,
            old,
            new,
            staged=staged,
            paths=self._paths(paths),
            tensors=tensors,
            spectral=spectral,
            progress=progress,
        )

    def merge_recipe(
        self,
        recipe: str,
        output: StrPath,
        *,
        seed: int = 0,
        force: bool = False,
        progress: Progress = None,
    ) -> RecipeResult:
        """Merge models by a recipe of mergekit's into a new file or folder; nothing is committed.

        Everything is checked before a weight is read. The same recipe, seed and models give the
        same bytes on any machine with the same versions.

        Args:
            recipe: the text of the recipe; its models are revisions, ``REV:PATH``, checkpoint files
                or folders.
            output: a safetensors file, or a folder, which also gets the base model's
                configuration and tokenizer, and the recipe.
            seed: of methods that draw random numbers.
            force: replace files that are there.
            progress: called with bytes written.

        Raises:
            FormatError: the recipe is not valid.
            NotFoundError: a method, model, layer or tensor that does not exist.
            UsageError: models or parameters that do not fit together.
            UnsupportedError: something that mvc leaves out, or elements that cannot be averaged.
            ConflictError: the output exists.
        """
        return operations.merge_recipe.merge_recipe(
            self._context, recipe, Path(output), seed=seed, force=force, progress=progress
        )

    def compare_commit(
        self,
        revision: str = "HEAD",
        *,
        paths: Paths = (),
        tensors: str | None = None,
        spectral: bool = False,
        progress: Progress = None,
    ) -> ModelDiff:
        """Compare a commit with its first parent in numbers, as ``compare`` does.

        Raises:
            NotFoundError: no such revision.
        """
        return operations.compare.compare_commit(
            self._context,
            revision,
            paths=self._paths(paths),
            tensors=tensors,
            spectral=spectral,
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
        """Return what a commit changed against its first parent; all of it for a first commit.

        Raises:
            NotFoundError: no such revision.
        """
        scope = operations.diff.Scope(tuple(self._paths(paths)), tensors, with_tensors)
        return operations.diff.diff_commit(self._context, revision, scope)

    def merge_base(self, left: str, right: str) -> GitId | None:
        """Return the best common ancestor of two revisions, or None if they share none.

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

        Every byte written was verified against its id. As in Git, staged and edited files stay
        if the two commits agree on them.

        Args:
            revision: a branch, which HEAD then follows, or any other revision.
            paths: bring only these back, whatever they hold now; HEAD stays.
            force: discard local changes.
            detach: detach HEAD even at a branch.
            progress: called with bytes written.

        Raises:
            CorruptionError: the store is damaged; the worktree is unchanged.
        """
        chosen = self._paths(paths)
        if chosen:
            return operations.restore.restore_paths(
                self._context,
                chosen,
                source=revision,
                staged=True,
                overlay=True,
                progress=progress,
            )
        return operations.checkout.checkout_revision(
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
        """Go to a branch.

        Args:
            branch: its name.
            create: make the branch first.
            start: where the new branch begins; defaults to HEAD, and then no file is touched.
            force: discard local changes.
            progress: called with bytes written.

        Raises:
            ConflictError: the branch to create exists, or local changes would be lost.
            UsageError: not a valid branch name, or ``start`` without ``create``.
        """
        if create:
            return operations.checkout.create_and_switch(
                self._context, branch, start, force=force, progress=progress
            )
        if start is not None:
            raise UsageError("only a new branch has a start")
        return operations.checkout.switch(self._context, branch, force=force, progress=progress)

    # Bringing together.

    def merge(
        self,
        *revisions: str,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        parameters: Mapping[str, Any] | None = None,
        seed: int = 0,
        message: str | None = None,
        fast_forward: Literal["allowed", "only", "never"] = "allowed",
        allow_unrelated: bool = False,
        commit: bool = True,
        progress: Progress = None,
    ) -> MergeResult:
        """Merge branches into the current one, tensor by tensor.

        What one side changed since the branches parted is taken from it, without being read. What
        both changed is a conflict, unless a strategy decides: ``ours``, ``theirs``, ``base``, or a
        merge method that computes it, such as ``linear``. With conflicts a merge is under way:
        ``conclude`` or ``abort`` ends it.

        Args:
            revisions: branches or other revisions, at least one.
            strategy: what decides by default; a method only over weights, never over the optimizer
                and other state of a training run.
            rules: (pattern, strategy), for tensors or files that the pattern fits; the first that
                fits decides.
            parameters: of the methods; a sequence has one value for each side, ours first.
            seed: of methods that draw random numbers.
            message: of the commit; defaults to Git's words.
            fast_forward: whether the branch may simply move on; ``never`` makes a commit even then.
            allow_unrelated: merge histories without a common commit, too.
            commit: make the commit if there are no conflicts.
            progress: called with bytes stored and written.

        Raises:
            ConflictError: local changes would be lost, a merge is under way, the histories are not
                related, or several branches conflict.
            NotFoundError: no such revision or method; a rule that fits nothing.
            UsageError: a parameter out of range, shapes that do not fit.
        """
        from mvc.merging.told import make_told  # noqa: PLC0415  brings NumPy

        told = make_told(strategy, rules, parameters or {}, seed)
        return operations.merge.merge(
            self._context,
            revisions,
            told=told,
            message=message,
            fast_forward=fast_forward,
            allow_unrelated=allow_unrelated,
            commit=commit,
            progress=progress,
        )

    def commit_recipe(
        self,
        recipe: str,
        *,
        seed: int = 0,
        message: str | None = None,
        progress: Progress = None,
    ) -> MergeResult:
        """Merge models by a recipe of mergekit's, and commit the result to the current branch.

        The result takes the place of the base model's file, or of the first model's; the commits of
        the models become parents. The recipe is in the commit, and trailers say what its names
        stood for, so that ``replay_merge`` can repeat it.

        Args:
            recipe: the text of the recipe, as for ``merge_recipe``.
            seed: of methods that draw random numbers.
            message: of the commit.
            progress: called with bytes stored and written.

        Raises:
            FormatError: the recipe is not valid.
            NotFoundError: a method, model, layer or tensor that does not exist.
            UsageError: models or parameters that do not fit together.
            UnsupportedError: something that mvc leaves out, or elements that cannot be averaged.
            ConflictError: local changes would be lost, or a merge is under way.
        """
        return operations.commit_recipe.commit_recipe(
            self._context, recipe, seed=seed, message=message, progress=progress
        )

    def preview_merge(
        self,
        *revisions: str,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        parameters: Mapping[str, Any] | None = None,
        recipe: str | None = None,
        seed: int = 0,
        progress: Progress = None,
    ) -> MergePreview:
        """Say what a merge would do, and how far its models are in each other's way.

        Nothing is written. For every tensor that several sides changed: how much all of them changed,
        where they went in opposite directions, and the cosine of their task vectors.

        Args:
            revisions: as for ``merge``; none with a recipe.
            strategy: as for ``merge``.
            rules: as for ``merge``.
            parameters: as for ``merge``.
            recipe: the text of a recipe instead, as for ``merge_recipe``.
            seed: of methods that draw random numbers.
            progress: called with bytes read of the base.

        Raises:
            NotFoundError: no such revision, method or model.
            UsageError: what does not fit together; both revisions and a recipe.
        """
        from mvc.merging.told import make_told  # noqa: PLC0415  brings NumPy

        if recipe is not None:
            if revisions:
                raise UsageError("a recipe names its models: give no revisions beside it")
            return operations.preview_merge.preview_recipe(
                self._context, recipe, seed=seed, progress=progress
            )
        told = make_told(strategy, rules, parameters or {}, seed)
        return operations.preview_merge.preview_merge(
            self._context, revisions, told, progress=progress
        )

    def replay_merge(self, revision: str = "HEAD", *, progress: Progress = None) -> MergeReplay:
        """Make a merge again from what its commit says, and compare the result to the bit.

        Nothing moves. Strategy, rules, parameters and seed are read from the trailers, a recipe
        from the commit's files; plain files that a recipe named have to be there as they were.

        Args:
            revision: a merge commit, or one made by a recipe.
            progress: called with bytes computed.

        Raises:
            NotFoundError: no such revision, or a file that the recipe named is gone.
            UsageError: the commit merges nothing.
        """
        return operations.replay_merge.replay_merge(self._context, revision, progress=progress)

    def conclude(
        self,
        kind: Literal["merge", "cherry-pick", "revert"] = "merge",
        *,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        parameters: Mapping[str, Any] | None = None,
        seed: int = 0,
        message: str | None = None,
        progress: Progress = None,
    ) -> MergeResult:
        """Finish a merge, cherry-pick or revert that is under way.

        Args:
            kind: what is under way.
            strategy: decides what is undecided, as in ``merge``; ``rules``, ``parameters`` and
                ``seed`` too.
            rules: (pattern, strategy).
            parameters: of the methods.
            seed: of methods that draw random numbers.
            message: of the commit; by default the one that it would have had.
            progress: called with bytes stored and written.

        Raises:
            ConflictError: nothing of that kind is under way, or something is still undecided.
        """
        from mvc.merging.told import make_told  # noqa: PLC0415  brings NumPy

        told = make_told(strategy, rules, parameters or {}, seed)
        if kind == "merge":
            return operations.conclude.conclude(
                self._context, kind, told=told, message=message, progress=progress
            )
        return operations.pick.resume(
            self._context, kind, told=told, message=message, progress=progress
        )

    def skip(
        self, kind: Literal["cherry-pick", "revert"], *, progress: Progress = None
    ) -> MergeResult:
        """Leave out the commit that a cherry-pick or revert waits at, and go on with the others.

        Raises:
            ConflictError: nothing of that kind is under way.
        """
        return operations.pick.skip(self._context, kind, progress=progress)

    def cherry_pick(
        self,
        *revisions: str,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        parameters: Mapping[str, Any] | None = None,
        seed: int = 0,
        mainline: int | None = None,
        record_origin: bool = False,
        commit: bool = True,
        progress: Progress = None,
    ) -> MergeResult:
        """Apply to the current branch what commits changed against their parents.

        Stops at the first commit with conflicts: ``conclude``, ``skip`` or ``abort`` goes on. A
        commit that would change nothing is left out.

        Args:
            revisions: commits, or ranges ``A..B``, in the order in which they are applied.
            strategy: what decides conflicts, as in ``merge``; ``rules``, ``parameters`` and
                ``seed`` too. ``base`` is the commit's parent.
            rules: (pattern, strategy).
            parameters: of the methods.
            seed: of methods that draw random numbers.
            mainline: the parent, from 1, that a merge is compared with.
            record_origin: name the original commit in the message.
            commit: make commits; else what they change is staged.
            progress: called with bytes stored and written.

        Returns:
            What the last step did.

        Raises:
            ConflictError: local changes would be lost, or something is under way.
            UsageError: a merge without ``mainline``, no commit in a range.
        """
        return self._pick(
            "cherry-pick", revisions, (strategy, rules, parameters or {}, seed),
            mainline=mainline, record_origin=record_origin, commit=commit, progress=progress,
        )  # fmt: skip

    def revert(
        self,
        *revisions: str,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        arithmetic: bool = False,
        mainline: int | None = None,
        commit: bool = True,
        progress: Progress = None,
    ) -> MergeResult:
        """Take back on the current branch what commits changed; their tensors become their parents'.

        A tensor that changed again since is a conflict. With ``arithmetic`` it loses what the commit
        added to it, its task vector: new = now − (commit − parent), rounded to its dtype, which
        is not exact to the bit.

        Args:
            revisions: commits, or ranges ``A..B``, the newest of a range first.
            strategy: what else decides conflicts, as in ``merge``; ``theirs`` is the parent.
            rules: (pattern, strategy).
            arithmetic: subtract task vectors where tensors changed since.
            mainline: the parent, from 1, that a merge is compared with.
            commit: make commits; else what they change is staged.
            progress: called with bytes stored and written.

        Returns:
            What the last step did; with conflicts, ``conclude``, ``skip`` or ``abort`` goes on.

        Raises:
            ConflictError: local changes would be lost, or something is under way.
            UsageError: a merge without ``mainline``, a strategy together with ``arithmetic``.
        """
        if arithmetic and strategy is not None:
            raise UsageError("`arithmetic` is a strategy itself")
        parameters = {"weight": 1.0} if arithmetic else {}
        chosen = "task_arithmetic" if arithmetic else strategy
        return self._pick(
            "revert", revisions, (chosen, rules, parameters, 0),
            mainline=mainline, commit=commit, progress=progress,
        )  # fmt: skip

    def _pick(
        self,
        kind: Literal["cherry-pick", "revert"],
        revisions: Sequence[str],
        told: tuple[str | None, Sequence[tuple[str, str]], Mapping[str, Any], int],
        **options: Any,
    ) -> MergeResult:
        from mvc.merging.told import make_told  # noqa: PLC0415  brings NumPy

        return operations.pick.pick(
            self._context, kind, revisions, told=make_told(*told), **options
        )

    def abort(self, kind: Literal["merge", "cherry-pick", "revert"] = "merge") -> CheckoutResult:
        """Give up a merge, cherry-pick or revert: index and files become as they were before it.

        Raises:
            ConflictError: nothing of that kind is under way, or a file that it brought was changed.
        """
        return operations.conclude.abort(self._context, kind)

    def stash(
        self, message: str | None = None, *, untracked: bool = False, progress: Progress = None
    ) -> StashEntry | None:
        """Put local changes aside, and bring index and files back to HEAD.

        Args:
            message: what to call it; defaults to the branch and its last commit.
            untracked: take files that are not tracked too, but not ignored ones.
            progress: called with bytes stored and written.

        Returns:
            The stash, or None if there is nothing to put aside.

        Raises:
            ConflictError: a merge is under way, a file changes meanwhile, or there is no commit.
        """
        return operations.stash.push(
            self._context, message=message, untracked=untracked, progress=progress
        )

    def stashes(self) -> list[StashEntry]:
        """Return what was put aside, the newest first."""
        return operations.stash.list_stashes(self._context)

    def stash_apply(
        self,
        number: int = 0,
        *,
        pop: bool = False,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        progress: Progress = None,
    ) -> MergeResult:
        """Merge what was put aside into the files; the index keeps what it has.

        Args:
            number: which stash, 0 the newest.
            pop: forget it then, unless there are conflicts.
            strategy: what decides conflicts, as in ``merge``; ``theirs`` is the stash.
            rules: (pattern, strategy).
            progress: called with bytes stored and written.

        Returns:
            What was done; files with conflicts wait to be added.

        Raises:
            NotFoundError: there is no such stash.
            ConflictError: local changes or untracked files are in the way.
        """
        from mvc.merging.told import make_told  # noqa: PLC0415  brings NumPy

        told = make_told(strategy, rules, {}, 0)
        return operations.stash.apply(self._context, number, told=told, pop=pop, progress=progress)

    def stash_drop(self, number: int = 0) -> StashEntry:
        """Forget a stash, 0 the newest; return what it was.

        Raises:
            NotFoundError: there is no such stash.
        """
        return operations.stash.drop(self._context, number)

    def stash_clear(self) -> int:
        """Forget all stashes; return how many there were."""
        return operations.stash.clear(self._context)

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

        Tracked files that the source lacks are removed.

        Args:
            paths: files, folders or wildcards.
            source: revision to take from; defaults to the index (HEAD with ``staged``).
            staged: restore the index entries as well.
            worktree: restore the files.
            progress: called with bytes written.

        Raises:
            ConflictError: a file to remove holds content that is stored nowhere else.
        """
        return operations.restore.restore_paths(
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
        """Move the current branch, or a detached HEAD, to a commit.

        Args:
            revision: where to.
            mode: ``soft`` moves the branch only, ``mixed`` also sets the index, ``hard`` also the
                files: local changes to tracked files are lost.
            paths: set only the index entries of these paths; the branch stays.
            progress: called with bytes written.

        Raises:
            UsageError: another mode, or ``paths`` and not ``mixed``.
        """
        chosen = self._paths(paths)
        if not chosen:
            return operations.restore.reset(self._context, revision, mode=mode, progress=progress)
        if mode != "mixed":
            raise UsageError(f"a {mode} reset takes no paths")
        return operations.restore.reset_paths(self._context, chosen, revision)

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
        switch HEAD returns to where it was; after a reset the branch, index and files return.

        Args:
            redo: redo what the last undo took back.
            force: discard local changes that are in the way.
            dry_run: only return what would be done.
            progress: called with bytes written since the last call.

        Raises:
            NotFoundError: there is nothing to undo or redo.
            ConflictError: local changes would be lost, and not ``force``; or the last move cannot
                be undone.
        """
        return operations.undo.undo(
            self._context, redo=redo, force=force, dry_run=dry_run, progress=progress
        )

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
        """Return where a branch would roll back to, and what it would leave; nothing is changed.

        Name the target in one way; without any, it is the newest healthy commit. Unless it is
        named by revision, commits whose content was released are skipped.

        Args:
            revision: this commit.
            step: the commit of this training step, or else the newest one before it.
            steps_back: the newest commit at least this many steps before the tip.
            healthy: the newest commit below the tip that ``mark_healthy`` marked.
            branch: the branch to move; defaults to the current one.
            at_step: the step at which the trouble was seen, which names the branch that keeps the
                abandoned commits; defaults to the step of the tip.

        Raises:
            UsageError: more than one way, a negative number, or no branch while HEAD is detached.
            NotFoundError: no such branch or revision, or no commit that fits.
            ConflictError: the revision is not an ancestor of the branch.
        """
        return operations.rollback.plan_rollback(
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
        """Roll a branch back as planned; what it leaves stays on ``diverged/<branch>/<step>``.

        If HEAD is on the branch, index and files follow, and ``undo`` brings everything back.

        Args:
            plan: from ``plan_rollback``.
            reason: why, on one line; the log shows it at the abandoned tip.
            force: discard local changes that are in the way.
            progress: called with bytes written.

        Raises:
            ConflictError: the branch moved since it was planned, or local changes would be lost,
                and not ``force``; nothing was changed.
        """
        return operations.rollback.run_rollback(
            self._context, plan, reason=reason, force=force, progress=progress
        )

    def mark_healthy(self, revision: str, *, note: str = "") -> None:
        """Mark a commit as one that a rollback may return to; the commit itself does not change.

        Args:
            revision: which commit; a mark that it already has stays.
            note: a remark, on one line.

        Raises:
            NotFoundError: no such revision.
            FormatError: the existing marks are damaged.
        """
        workspace.verdicts.mark_healthy(self._context, revision, note=note)

    def healthy(self, branch: str | None = None) -> tuple[GitId, ...]:
        """Return the healthy commits of a branch along first parents, newest first.

        Args:
            branch: defaults to HEAD.

        Raises:
            NotFoundError: no such branch.
            FormatError: the history or its marks are damaged.
        """
        return workspace.verdicts.healthy_commits(self._context, branch)

    # Names.

    def branches(self) -> list[RefInfo]:
        """Return all branches."""
        return operations.branch.list_refs(self._context)

    def tags(self) -> list[RefInfo]:
        """Return all tags."""
        return operations.branch.list_refs(self._context, tags=True)

    def tag_message(self, name: str) -> str | None:
        """Return the message of an annotated tag, or None for any other name.

        Raises:
            FormatError: the tag is damaged.
        """
        return self._context.history.find_tag_message(name)

    def create_branch(self, name: str, start: str = "HEAD", *, force: bool = False) -> GitId:
        """Make a branch without going there; return its commit.

        Raises:
            ConflictError: it exists, and not ``force``; or it is checked out.
        """
        return operations.branch.create_branch(self._context, name, start, force=force)

    def delete_branch(self, name: str, *, force: bool = False) -> GitId:
        """Delete a branch (an unmerged one with ``force``); return the commit it pointed to.

        Raises:
            ConflictError: it is checked out, or not merged and not ``force``.
        """
        return operations.branch.delete_branch(self._context, name, force=force)

    def rename_branch(self, old: str, new: str, *, force: bool = False) -> None:
        """Rename a branch with its reflog; HEAD follows.

        Raises:
            ConflictError: ``new`` exists, and not ``force``; or it is checked out.
        """
        operations.branch.rename_branch(self._context, old, new, force=force)

    def create_tag(
        self, name: str, revision: str = "HEAD", *, message: str | None = None, force: bool = False
    ) -> GitId:
        """Tag a commit, with an annotated tag if there is a message; return the commit.

        With ``force`` a tag that exists is moved, and from then on it is an alias: the log shows it as
        ``@name``, and ``name@{1}`` is where it was.

        Raises:
            ConflictError: the tag exists, and not ``force``.
            UsageError: not a valid tag name, or an empty message.
        """
        return operations.branch.create_tag(
            self._context, name, revision, message=message, force=force
        )

    def delete_tag(self, name: str) -> GitId:
        """Delete a tag; return the commit or tag object it pointed to.

        Raises:
            NotFoundError: no such tag.
        """
        return operations.branch.delete_tag(self._context, name)

    # Searching history.

    def blame(
        self,
        revision: str = "HEAD",
        *,
        tensors: str | None = None,
        paths: Paths = (),
        samples: int = 24,
        compute: bool = False,
        progress: Progress = None,
    ) -> Blame:
        """Return for each tensor the commit that last changed it, and its drift along history.

        Args:
            revision: which commit.
            tensors: only tensors whose name matches this wildcard, or that are below this module.
            paths: only these files, folders or wildcards.
            samples: at how many commits, evenly along first parents, drift is looked at.
            compute: read and compare what was not compared before; otherwise no tensor is read.
            progress: called with bytes read.

        Raises:
            NotFoundError: no such revision, or no such tensor in it.
            UsageError: fewer than two samples.
        """
        return operations.blame.blame(
            self._context,
            revision,
            tensors=tensors,
            paths=self._paths(paths),
            samples=samples,
            compute=compute,
            progress=progress,
        )

    def bisect_start(
        self,
        bad: str | None = None,
        *good: str,
        paths: Paths = (),
        tensors: str | None = None,
        terms: tuple[str, str] | None = None,
        checkout: bool = True,
        first_parent: bool = False,
        progress: Progress = None,
    ) -> BisectStep:
        """Begin to look for the commit that broke something; return what to test first.

        A bisection that is going on ends; ``bisect_reset`` still goes back to where it began.

        Args:
            bad: a commit that is bad.
            good: commits that are good.
            paths: only commits that changed these are tested.
            tensors: only commits that changed tensors of these names, a wildcard, are tested.
            terms: other words for bad and good.
            checkout: check out the commit to test; otherwise it is only returned, and BISECT_HEAD.
            first_parent: follow only the first parent of merges.
            progress: called with bytes written.

        Raises:
            ConflictError: a good commit is the bad one or comes after it.
            UsageError: a term is not a word that can be used.
        """
        plan = operations.bisect_marks.BisectPlan(
            tuple(self._paths(paths)), tensors, terms, checkout, first_parent
        )
        return operations.bisect.start(self._context, bad, good, plan, progress=progress)

    def bisect_mark(self, term: str, *revisions: str, progress: Progress = None) -> BisectStep:
        """Say that commits are ``bad`` or ``good``, by default the one that is tested.

        Raises:
            ConflictError: no bisection is going on, or a commit would be both.
            UsageError: another word, or two bad commits.
        """
        return operations.bisect.mark(self._context, term, revisions, progress=progress)

    def bisect_skip(self, *revisions: str, progress: Progress = None) -> BisectStep:
        """Say that commits or ranges, by default the commit that is tested, cannot be tested.

        Raises:
            ConflictError: no bisection is going on.
        """
        return operations.bisect.skip(self._context, revisions, progress=progress)

    def bisect_next(self, *, progress: Progress = None) -> BisectStep:
        """Go to the commit to test, as after a crash or a checkout elsewhere.

        Raises:
            ConflictError: no bisection is going on, or local changes would be lost.
        """
        return operations.bisect.advance(self._context, progress=progress)

    def bisect_run(
        self,
        test: Callable[[GitId], bool | None],
        *,
        told: Callable[[BisectStep], None] | None = None,
        progress: Progress = None,
    ) -> BisectStep:
        """Test commits until the first bad one is found.

        Args:
            test: returns whether a commit is good, None if that cannot be said. What it raises ends
                the run; the bisection can go on.
            told: called before each test.
            progress: called with bytes written.

        Raises:
            ConflictError: no bisection is going on, or no bad or no good commit is known.
        """
        return operations.bisect.run(self._context, test, told=told, progress=progress)

    def bisect_step(self) -> BisectStep | None:
        """Return where the bisection stands, None without one; nothing is changed.

        Raises:
            CorruptionError: what is kept of it is damaged.
        """
        return operations.bisect.read_step(self._context)

    def bisect_log(self) -> str:
        """Return what was said so far, in the words that ``bisect_replay`` and Git read.

        Raises:
            ConflictError: no bisection is going on.
        """
        return operations.bisect.read_log(self._context)

    def bisect_replay(self, log: str, *, progress: Progress = None) -> BisectStep:
        """Begin the bisection of a log, and give the answers in it.

        Raises:
            FormatError: the text is not such a log; a bisection that is going on stays.
        """
        return operations.bisect.replay(self._context, log, progress=progress)

    def bisect_reset(
        self, revision: str | None = None, *, progress: Progress = None
    ) -> CheckoutResult | None:
        """End the bisection, and go back to where HEAD was or to a revision; None without one.

        Raises:
            ConflictError: local changes would be lost; the bisection goes on.
        """
        return operations.bisect.reset(self._context, revision, progress=progress)

    def bisect_metric(
        self,
        metric: str,
        *,
        above: float | None = None,
        below: float | None = None,
        bad: str = "HEAD",
        good: Sequence[str] = (),
    ) -> MetricBreak:
        """Return where the bad values of a stored metric began that a commit ends with.

        Args:
            metric: its name, or ``step``.
            above: larger values are bad; NaN always is.
            below: smaller values are bad.
            bad: the commit to look back from; if it lacks the metric, the ones before it count.
            good: commits that are not looked at, nor what comes before them.

        Raises:
            ConflictError: the commit is not bad.
            NotFoundError: no commit there has the metric.
            UsageError: both bounds, or none.
        """
        return operations.bisect_metric.bisect_metric(
            self._context, metric, above=above, below=below, bad=bad, good=good
        )

    def best(self, metric: str, *revisions: str, maximise: bool = False) -> BestCommit:
        """Return the commit with the lowest value of a metric, the earliest of several.

        Commits that a rollback abandoned, and values that are not finite, are left out.

        Args:
            metric: its name; ``step`` and figures such as ``health.norm`` will do.
            revisions: where to look, by default what HEAD reaches; ``A..B`` excludes commits.
            maximise: return that with the highest value.

        Raises:
            NotFoundError: no such revision, or no commit there has the metric.
        """
        return operations.best.find_best(self._context, metric, revisions, maximise=maximise)

    # Tensors.

    def ls(
        self, revision: str = "HEAD", *, paths: Paths = (), tensors: str | None = None
    ) -> list[FileInfo]:
        """Return the files of a revision and their tensors; no tensor byte is read.

        Args:
            revision: which commit.
            paths: only these files, folders or wildcards.
            tensors: only tensors whose name matches this wildcard, and files that have one.

        Raises:
            NotFoundError: no such revision or path.
        """
        return operations.ls.list_files(
            self._context, revision, paths=self._paths(paths), tensors=tensors
        )

    def read_file(self, revision: str, path: StrPath) -> bytes | None:
        """Return a plain file's bytes or a link's text; None for a file that is kept in chunks.

        Raises:
            NotFoundError: no such revision or path.
        """
        return operations.cat.read_plain_file(self._context, revision, self._paths(path)[0])

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
        place = self._paths(path)[0]
        value: NDArray[np.generic] | torch.Tensor = operations.cat.read_tensor(
            self._context, revision, place, name, framework
        )
        return value

    def tensors(
        self,
        revision: str = "HEAD",
        *,
        paths: Paths = (),
        tensors: str | None = None,
        framework: Literal["numpy", "np", "torch", "pt"] = "numpy",
    ) -> Iterator[tuple[str, Any]]:
        """Return (name, values) of a revision's tensors, file by file, each read when it is due.

        ``dict(repo.tensors("HEAD", framework="pt"))`` is a state dict.

        Args:
            revision: which commit.
            paths: only those of these files, folders or wildcards.
            tensors: only those whose name matches this wildcard.
            framework: as for ``tensor``.

        Raises:
            NotFoundError: no such revision or path, or no tensor matches.
            ConflictError: two files hold a tensor of the same name: say which with ``paths``.
        """
        return operations.cat.read_tensors(
            self._context,
            revision,
            paths=self._paths(paths),
            tensors=tensors,
            framework=framework,
        )

    def export(
        self,
        revision: str,
        output: StrPath,
        *,
        path: StrPath | None = None,
        tensors: str | None = None,
        force: bool = False,
        progress: Progress = None,
    ) -> ExportResult:
        """Write the files of a revision into a folder, or tensors of it into a safetensors file.

        Args:
            revision: which commit.
            output: the folder, made if missing, or the file: a name that ends like a checkpoint's, or
                any name with ``path`` or ``tensors``. A relative path starts at the current folder.
            path: only this checkpoint's tensors; defaults to all of the revision's.
            tensors: only tensors whose name matches this wildcard.
            force: replace existing files.
            progress: called with bytes written.

        Raises:
            NotFoundError: no such revision or path, or no tensor matches.
            ConflictError: a file exists or is in the way, or two tensors have the same name.
            UsageError: the output is a folder and a file is wanted, or the other way round; the
                folder of the file does not exist; the folder is in ``.mvc``; a file name of another
                format than safetensors.
            UnsupportedError: a dtype or name that safetensors cannot hold.
        """
        return operations.export.export(
            self._context,
            revision,
            os.fspath(output),
            path=None if path is None else self._paths(path)[0],
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
        files: Mapping[str, bytes | str] | None = None,
        no_gate: bool = False,
        progress: Progress = None,
    ) -> CommitResult:
        """Commit a nested state (state dicts, scalars, RNG states) without writing a file.

        It checks out as one safetensors file for each top-level name with a tensor in it, and
        ``state.json``. The state dict of one model by itself, ``model.state_dict()``, is one
        ``model.safetensors``.

        Args:
            state: top-level names → nested dicts, lists, tensors, arrays, scalars.
            message: subject, and body after an empty line.
            step: training step.
            metrics: name → number.
            meta: name → one line of text.
            branch: branch to move; defaults to the current one. A branch that does not exist yet
                begins with this commit. Moving another branch leaves HEAD and the index alone.
            author: defaults to ``identity``.
            time_s: when, in seconds since 1970; defaults to now.
            delta: as for ``add``; differences are taken from the branch's last commit.
            previous: the unchanged state of that commit, if it is still in memory: differences
                are then taken from it, and nothing has to be read from the store. It is hashed
                before it is trusted.
            parent: id of the commit that the branch must be at ("" for a branch without one).
            files: path → content of other files for the commit, such as a ``config.json``. Those
                of earlier commits stay until they are given again.
            no_gate: as for ``commit``.
            progress: called with bytes taken since the last call.

        Raises:
            GateError: a gate refuses the state.
            UnsupportedError: a value that is not data; the message names its path.
            UsageError: a path of ``files`` that no commit may hold, or that the state itself has.
            ConflictError: the branch moved meanwhile, is not at ``parent``, or a file of the same
                name is staged; nothing is lost.
        """
        encode = states.state.encode_state
        result = operations.commit_state.commit_state(
            self._context,
            encode(state),
            message,
            annotations=workspace.annotations.Annotations(step, metrics, meta),
            branch=branch,
            author=author,
            time_s=time_s,
            delta=delta,
            previous=() if previous is None else encode(previous),
            parent=parent,
            beside=[
                states.files.given_file(self._paths(path)[0], content)
                for path, content in (files or {}).items()
            ],
            no_gate=no_gate,
            progress=progress,
        )
        operations.aftercare.keep_up(self._context, result)
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
        no_gate: bool = False,
        progress: Progress = None,
    ) -> CommitResult:
        """Commit the image of a state (see ``mvc.layout_state``) as ``commit_state`` would.

        ``files`` is name → bytes of every file of the image; they must not change meanwhile.
        ``describe`` is called once everything but the commit itself is durable, and what it
        returns joins ``meta``. All else is as for ``commit_state``.

        Raises:
            FormatError: not the files of a state.
            ConflictError, GateError: as for ``commit_state``.
        """
        result = operations.commit_state.commit_state(
            self._context,
            states.image.open_image(files),
            message,
            annotations=workspace.annotations.Annotations(step, metrics, meta),
            branch=branch,
            delta=delta,
            parent=parent,
            describe=describe,
            no_gate=no_gate,
            progress=progress,
        )
        operations.aftercare.keep_up(self._context, result)
        return result

    def outline_state(self, revision: str = "HEAD") -> dict[str, Any]:
        """Return the structure of a commit's state, with an ``ArrayOutline`` for each array.

        Raises:
            NotFoundError: no such revision, or the commit holds no state.
            ReleasedError: content of that commit was released.
        """
        return operations.load_state.outline_state(self._context, revision)

    def verify_state(self, state: Mapping[str, object], revision: str = "HEAD") -> StateCheck:
        """Compare a live state with a commit's, bit by bit; nothing is changed.

        Args:
            state: nested, as for ``commit_state``.
            revision: which commit.

        Raises:
            UnsupportedError: a live value that is not data; the message names its path.
            FormatError: the commit lacks something that its state names.
        """
        return operations.verify.verify_state(self._context, state, revision)

    def verify_worktree(
        self, revision: str = "HEAD", *, paths: Paths = (), progress: Progress = None
    ) -> WorktreeCheck:
        """Compare the files of the worktree with a commit's, tensor by tensor, bit by bit.

        Every file is read; nothing is changed. A file that differs from the commit's but holds
        the same tensors (another header, format or number of shards) is reported as such.

        Raises:
            ConflictError: a file changed while it was read.
            ReleasedError: a tensor can only be compared by its content, which was released.
        """
        return operations.verify.verify_worktree(
            self._context, revision, paths=self._paths(paths), progress=progress
        )

    def verify_models(
        self,
        old: Operand,
        new: Operand = None,
        *,
        atol: float | None = None,
        rtol: float | None = None,
        progress: Progress = None,
    ) -> ModelCheck:
        """Compare two models tensor by tensor: to the bit, or within a tolerance.

        Tensors whose ids are equal are not read. NaN equals NaN, an infinity itself.

        Args:
            old: a revision, ``REV:PATH``, a checkpoint file, a folder of them, a state dict (nested, of
                arrays or tensors), or None for the worktree.
            new: the same.
            atol: how far apart elements may be; with it, or ``rtol``, dtypes may differ too.
            rtol: how far apart they may be, as a multiple of the old one.
            progress: as everywhere.

        Raises:
            ConflictError: a file changed while it was read.
        """
        return operations.verify_models.verify_models(
            self._context, old, new, atol=atol, rtol=rtol, progress=progress
        )

    def load_state(
        self,
        revision: str = "HEAD",
        *,
        framework: Literal["torch", "pt", "numpy", "np"] = "torch",
        into: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        """Return the state of a commit: same structure, types and bits, shared tensors shared.

        Args:
            revision: which commit.
            framework: ``torch`` (or ``pt``) returns what was committed, ``numpy`` (or ``np``) arrays
                for all tensors (and needs no torch).
            into: live tensors of the same structure to fill in place.

        Raises:
            ConflictError: ``into`` has another structure or shape than the state.
        """
        return operations.load_state.load_state(
            self._context, revision, framework=framework, into=into
        )

    # Training runs, while they run.

    def open_feed(self, branch: str) -> RunFeed:
        """Open the feed in which a training run reports its progress, for ``mvc watch`` and others.

        The feed is not part of the history. Writing to it never raises, whatever the machine does.

        Raises:
            UsageError: not a valid branch name.
        """
        return runs.feed.open_feed(self._context, branch)

    def read_run(
        self, branch: str | None = None, *, losses: int = 2000, events: int = 20
    ) -> RunView:
        """Return how a run is going; only the end of its feed is read, so this is quick.

        Args:
            branch: which run; defaults to that of the current branch, or else the latest.
            losses: at most this many of the last losses.
            events: at most this many of the last commits, alarms, rollbacks and other events.

        Raises:
            NotFoundError: there is no such run.
            UsageError: not a valid branch name.
            StorageError: the machine failed.
        """
        return self.follow_run(branch, losses=losses, events=events).read()

    def follow_run(
        self, branch: str | None = None, *, losses: int = 2000, events: int = 20
    ) -> RunFollower:
        """Return a reader for ``read_run`` that reads only what is new each time it is asked.

        Raises:
            NotFoundError: there is no such run.
            UsageError: not a valid branch name.
            StorageError: the machine failed.
        """
        return operations.watch.follow_run(self._context, branch, losses=losses, events=events)

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

        One rule is enough to keep a commit. HEAD, branch tips, tagged commits and every
        ``diverged/`` branch that is not named are always kept.

        Args:
            keep_last: this many newest commits of each branch, along first parents.
            keep_every: commits whose step is a multiple of this.
            keep_best: this many commits with the best value of ``metric``.
            metric: name of a metric; the smallest value is the best.
            maximise: the largest value is the best.
            keep_tagged: keep only what is always kept.
            keep_branch_tips: also keep the tips of the ``diverged/`` branches that are named.
            keep_within_s: commits that are at most this many seconds old.
            weights_only: of the other commits, release everything but the model.
            also_diverged: names or wildcards of ``diverged/`` branches to release from as well.
            now_s: the present, in seconds since 1970; defaults to the clock's.

        Raises:
            UsageError: no rule, a number below 1, or ``keep_best`` and no ``metric``.
            NotFoundError: a name that matches no ``diverged/`` branch.
        """
        policy = upkeep.retention.RetentionPolicy(
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
        return operations.prune.plan_prune(self._context, policy, now_s=now_s)

    def prune(self, plan: PrunePlan) -> PruneResult:
        """Release the content that a plan of ``plan_prune`` names; commits and metrics stay.

        Raises:
            ConflictError: a ref moved meanwhile and protects what would be released.
            StorageError: the machine failed; the next gc frees what was recorded as released.
        """
        return operations.prune.run_prune(self._context, plan)

    def plan_gc(
        self, *, grace_s: float | None = None, expire_reflogs_s: float | None = None
    ) -> GcPlan:
        """Return what is unreachable and how many bytes that is; nothing is removed.

        Args:
            grace_s: garbage younger than this stays; defaults to two weeks.
            expire_reflogs_s: drop reflog entries older than this; defaults to 90 days, and 30 for
                entries that their ref no longer reaches. 0 drops everything that no ref reaches.

        Raises:
            FormatError: the history is damaged.
            CorruptionError: something that is needed is missing.
        """
        expiry = operations.gc.reflog_expiry(expire_reflogs_s)
        return operations.gc.plan_gc(self._context, grace_s=grace_s, expiry=expiry)

    def gc(
        self, plan: GcPlan | None = None, *, grace_s: float | None = None, progress: Progress = None
    ) -> GcResult:
        """Remove what is unreachable; safe alongside commits and readers.

        Args:
            plan: from ``plan_gc``; by default it is made now.
            grace_s: as for ``plan_gc``, if there is no plan.
            progress: called with bytes of packs rewritten.

        Raises:
            CorruptionError: the repository is damaged; nothing more is removed.
        """
        return operations.gc.run_gc(self._context, plan or self.plan_gc(grace_s=grace_s), progress)

    def plan_repack(self, *, everything: bool = False, grace_s: float | None = None) -> RepackPlan:
        """Return how to store the repository in less space; nothing is changed.

        Args:
            everything: include commits that an earlier repack has already looked at.
            grace_s: garbage younger than this stays; defaults to two weeks.

        Raises:
            FormatError: the history is damaged.
            CorruptionError: something that is needed is missing.
        """
        return operations.repack.plan_repack(self._context, everything=everything, grace_s=grace_s)

    def repack(self, plan: RepackPlan | None = None, *, progress: Progress = None) -> RepackResult:
        """Store chunks as differences across history and merge small packs.

        Args:
            plan: from ``plan_repack``; by default it is made now.
            progress: called with bytes of packs rewritten.

        Raises:
            ConflictError: another gc, prune or repack is running.
            CorruptionError: the repository is damaged; nothing more is removed.
        """
        return operations.repack.run_repack(self._context, plan or self.plan_repack(), progress)

    def is_repack_due(self) -> bool:
        """Return whether many packs are small, or many commits were never repacked.

        Raises:
            StorageError: the machine failed.
        """
        return operations.repack.is_due(self._context)

    def du(
        self,
        *revisions: str,
        by: Iterable[str] = ("branch", "tag", "commit", "file"),
    ) -> DuReport:
        """Return what is stored and for what: alone, shared, and its size as plain files.

        Args:
            revisions: only these commits: ``A`` is that one, ``A..B`` are those of B that A lacks;
                defaults to all that branches and tags reach.
            by: which lists to make, of ``branch``, ``tag``, ``commit``, ``file``, ``tensor``.

        Raises:
            UsageError: no such kind of list.
        """
        return operations.du.du(self._context, revisions, by=tuple(by))

    # Care.

    def fsck(
        self, *, data: bool = False, repair: bool = False, progress: Progress = None
    ) -> FsckReport:
        """Check the repository; what is wrong is in the report, not raised.

        Args:
            data: read, decode and hash every byte.
            repair: first rebuild pack indexes that are missing or damaged.
            progress: called with bytes checked.

        Raises:
            ConflictError: ``repair`` while a gc, prune or repack is running.
            StorageError: the machine failed.
        """
        return operations.fsck.fsck(self._context, data=data, repair=repair, progress=progress)

    def doctor(self) -> DoctorReport:
        """Look at versions, file system and speed of the machine under the repository.

        Raises:
            StorageError: the machine failed.
        """
        return operations.doctor.doctor(self._context)

    def config(self) -> dict[str, str]:
        """Return the repository's settings, and the user's where it has none.

        As ``section.key`` → value.

        Raises:
            FormatError: the config is damaged.
        """
        return self._context.history.read_config()

    def set_config(self, key: str, value: str | None) -> None:
        """Set one setting, or remove it with None.

        Raises:
            NotFoundError: there is no such setting to remove.
            UsageError: not a valid key or value.
        """
        self._context.forget_settings()
        if value is None:
            self._context.history.unset_config(key)
        else:
            key = workspace.settings.check_setting(key, value, is_users=False)
            self._context.history.set_config(key, value)
