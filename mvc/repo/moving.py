"""Files and branches to other commits, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc import merging, operations
from mvc.errors import UsageError
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations import checkout, restore  # noqa: F401
    from mvc.operations.merge import MergeResult
    from mvc.operations.stash import StashEntry
    from mvc.operations.undo import UndoResult
    from mvc.repo.opening import Paths, Progress
    from mvc.workspace.checkout_plan import CheckoutResult


class Moving(OpenRepo):
    """Files and branches to other commits, and back."""

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
            raise UsageError("only a new branch can have a start")
        return operations.checkout.switch(self._context, branch, force=force, progress=progress)

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

    def stash(
        self,
        message: str | None = None,
        *,
        paths: Paths = (),
        untracked: bool = False,
        keep_index: bool = False,
        progress: Progress = None,
    ) -> StashEntry | None:
        """Save local changes, and restore index and files to HEAD.

        Args:
            message: what to call it; defaults to the branch and its last commit.
            paths: only the changes of these files, folders or wildcards.
            untracked: take files that are not tracked too, but not ignored ones.
            keep_index: leave what is staged, in the index and in the files.
            progress: called with bytes stored and written.

        Returns:
            The stash, or None if there is nothing to put aside.

        Raises:
            ConflictError: a merge is under way, a file changes meanwhile, or there is no commit.
            NotFoundError: a path that names nothing.
        """
        return operations.stash.push(
            self._context,
            message=message,
            paths=self._paths(paths),
            untracked=untracked,
            keep_index=keep_index,
            progress=progress,
        )

    def stashes(self) -> list[StashEntry]:
        """Return what was put aside, the newest first."""
        return operations.stash.list_stashes(self._context)

    def stash_apply(
        self,
        number: int = 0,
        *,
        pop: bool = False,
        index: bool = False,
        strategy: str | None = None,
        rules: Sequence[tuple[str, str]] = (),
        progress: Progress = None,
    ) -> MergeResult:
        """Merge what was put aside into the files; the index keeps what it has.

        Args:
            number: which stash, 0 the newest.
            pop: forget it then, unless there are conflicts.
            index: stage what was staged then.
            strategy: what decides conflicts, as in ``merge``; ``theirs`` is the stash.
            rules: (pattern, strategy).
            progress: called with bytes stored and written.

        Returns:
            What was done; files with conflicts wait to be added.

        Raises:
            NotFoundError: there is no such stash.
            ConflictError: local changes or untracked files are in the way, or what was staged is.
        """
        told = merging.strategies.make_choices(strategy, rules, {}, 0)
        return operations.stash.apply(
            self._context, number, told=told, pop=pop, index=index, progress=progress
        )

    def stash_drop(self, number: int = 0) -> StashEntry:
        """Forget a stash, 0 the newest; return what it was.

        Raises:
            NotFoundError: there is no such stash.
        """
        return operations.stash.drop(self._context, number)

    def stash_clear(self) -> int:
        """Drop all stashes; return how many there were."""
        return operations.stash.clear(self._context)
