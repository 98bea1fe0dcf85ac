"""Comparisons by identity and by value, gates, and verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc import operations
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from mvc.operations import diff  # noqa: F401
    from mvc.operations.compare import ModelDiff
    from mvc.operations.file_diff import FileDiff
    from mvc.operations.gate import GateReport
    from mvc.operations.verify import WorktreeCheck
    from mvc.operations.verify_models import ModelCheck
    from mvc.repo.opening import Paths, Progress
    from mvc.workspace.models import Operand


class Comparing(OpenRepo):
    """Comparisons by identity and by value, gates, and verification."""

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
            tensors: only these tensors.
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
        """Compare two models in numbers: how far each tensor moved, and what that means.

        Tensors with equal ids are not read. The statistics of all others are cached in the
        repository by their two ids, so a second look reads nothing.

        Args:
            old: a revision, ``REV:PATH``, a checkpoint file, a folder of them, or a live model or its
                state dict; defaults to the index (HEAD with ``staged``). A ``Path`` is never a
                revision.
            new: the same; defaults to the worktree (the index with ``staged``).
            staged: compare with the index instead of the worktree.
            paths: only these files, folders or wildcards of revisions, index and worktree.
            tensors: only tensors that have such a name on either side.
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

    def check_gates(
        self, old: str | None = None, new: str | None = None, *, staged: bool = False
    ) -> GateReport:
        """Check the newer side of a comparison, as in ``diff``, against the gates that are set.

        Args:
            old: the base of a norm's growth; defaults to HEAD.
            new: revision to judge; defaults to the worktree (the index with ``staged``).
            staged: judge the index.

        Raises:
            UsageError: no gate is set.
        """
        return operations.gate.check_gates(self._context, old, new, staged=staged)

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
