"""A new process goes on where the last one was: it finds the tip of the branch, and restores it.

The tip is what rank 0 says it is. Every rank restores its own state of it, hashed and compared; then
counters and judge follow.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mvc import MvcError, NotFoundError, UsageError
from mvc_hooks.environment import compare_environments
from mvc_hooks.parts.sources import from_commit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc import Repo
    from mvc_hooks.judge import Judge
    from mvc_hooks.parts.sources import StateSource
    from mvc_hooks.ranks.group import Ranks
    from mvc_hooks.run.live import LiveRun
    from mvc_hooks.run.log import RunLog
    from mvc_hooks.settings import Settings


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a run goes on from.

    Attributes:
        commit: id of the commit.
        changes: what changed in the environment since then: (item, then, now).
    """

    commit: str
    changes: Sequence[tuple[str, object, object]]


@dataclass(frozen=True, slots=True)
class Resuming:
    """Takes a live run to where its branch is, on all ranks alike."""

    repo: Repo
    branch: str
    run: LiveRun
    judge: Judge
    ranks: Ranks
    log: RunLog
    settings: Settings

    def resume(self) -> Resumed | None:
        """Restore the tip of the branch; None: it has no commits, so the run begins."""
        tip = self.ranks.ask_first(self._find_tip)
        if tip is None:
            if self.ranks.is_first:
                self.log.missing(self.branch, self._last_committed())
            return None
        if not self.settings.resume:
            raise UsageError(
                f"branch {self.branch!r} already has commits, and resume is off",
                hint="pass branch=... to start a new branch",
            )
        if self.settings.warm_up is not None:
            self.settings.warm_up()
        started_s = time.perf_counter()
        changes = self.ranks.together(partial(self._restore, tip))
        self.log.resume(self.run.counters.step, tip, time.perf_counter() - started_s, changes)
        return Resumed(tip, self.ranks.share(changes))

    def _find_tip(self) -> str | None:
        with contextlib.suppress(NotFoundError):
            return self.repo.resolve(f"refs/heads/{self.branch}")
        return None

    def _last_committed(self) -> int | None:
        """Return the step of the last commit that a run made here, by its feed."""
        with contextlib.suppress(MvcError):
            for record in self.repo.read_run(self.branch, losses=0).commits:
                return record.step
        return None

    def _restore(self, commit: str) -> list[tuple[str, object, object]]:
        """Restore a commit, with counters and judge; return what changed in the environment since then."""
        run = self.run
        stored = run.restore(self._find_source(commit), allow=self.settings.allow)
        run.counters = stored.counters
        run.is_clean = True
        self.judge.restore(stored.watch, stored.ladder)
        if self.ranks.is_first:  # the other ranks mark no commit
            self.judge.note_commit(run.counters.step, commit)
        return list(compare_environments(stored.environment, run.environment))

    def _find_source(self, commit: str) -> StateSource:
        """Return where this rank reads a commit from: here other tiers join in, and commits are fetched."""
        return from_commit(self.repo, commit)
