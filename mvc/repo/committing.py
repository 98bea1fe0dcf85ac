"""Files into the index and history."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mvc import operations, workspace
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.history.ignore import IgnoreRule
    from mvc.history.values import Identity
    from mvc.operations import aftercare, check_ignore, commit, move, remove  # noqa: F401
    from mvc.operations.add import AddPlan, AddResult
    from mvc.operations.status import Status
    from mvc.repo.opening import Paths, Progress, StrPath
    from mvc.workspace.commits import CommitResult


class Committing(OpenRepo):
    """Files into the index and history."""

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
            annotations=workspace.trailers.Annotations(step, metrics, meta),
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
