"""A run that is open, and its end: by ``close``, an error, a signal, the end of the program, or the next run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mvc import MvcError, UsageError
from mvc_hooks.reports import DivergedError, RollbackReport
from mvc_hooks.training import StepRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from mvc_hooks.opening import OpenRun


class EndingRun(StepRun):
    """A run on a branch, from when it is opened until all of it is durable and released."""

    _is_closed = True  # until everything is open
    _has_diverged = False

    def _open(self, opened: OpenRun) -> None:
        """Take what works for the run, be open, and see to it that the end is not missed."""
        self._closing, self._pid, self._calls = opened.closing, os.getpid(), 0
        self._session = session = opened.session
        self.repo, self.branch = session.repo, session.branch
        self._run, self._judge, self._log = session.run, session.judge, session.log
        self._messages = session.messages
        self._ranks, self._talk, self._signals = session.ranks, session.talk, opened.signals
        self._commits, self._recovery = opened.commits, opened.recovery
        resumed = opened.resumed
        self.rollbacks: list[RollbackReport] = []
        self.resumed_from = None if resumed is None else resumed.commit
        self.environment_changes = [] if resumed is None else list(resumed.changes)
        self._exit_hook: Callable[[], None] = functools.partial(_end_at_exit, weakref.ref(self))
        if self._ranks.size > 1:  # the garbage collectors of the ranks do not agree on an end
            self._exit_hook = self._at_exit
        atexit.register(self._exit_hook)
        self._is_closed = False
        _OPEN.add(self)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, by the user or by a signal."""
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("this checkpointer is closed", hint="make a new one; it resumes")
        if os.getpid() != self._pid:
            raise UsageError(
                f"this checkpointer belongs to process {self._pid}, and this one was forked from it",
                hint="call it in the process that made it",
            )

    def _obey_signal(self) -> None:
        name = self._signals.caught if self._ranks.is_alone else self._talk.heard.signal
        if name is None:
            return
        self._signals.take(name)
        self._log.stop(self.step_count, name)
        self.close(last=self._name_last(f"at {name}"))
        self._signals.deliver()

    def close(self, *, last: str | None = None) -> None:
        """Wait until everything is durable, then release run, branch and writer.

        Args:
            last: first commit the state of the last complete step with this message, if it is
                consistent and not committed yet.

        Raises:
            CommitFailedError: a commit failed, and ``on_failure`` is "raise".
        """
        if self._is_closed or os.getpid() != self._pid:  # a forked child leaves it to its parent
            return
        try:
            if last is not None:
                self._commits.commit_last(last)
            self._commits.wait(with_marks=True)
            self._log.stop(self.step_count, "ended")
        finally:
            self._is_closed = True
            _OPEN.discard(self)
            atexit.unregister(self._exit_hook)
            self._closing.close()

    def remove(self) -> None:
        """Take all hooks off and close; the handle that other libraries expect."""
        self.close()

    def _name_last(self, how: str = "the last one") -> str:
        """Return the message of the commit that ends the run."""
        return f"step {self.step_count}, {how}"

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(kind)

    def _end(self, kind: type[BaseException] | None) -> None:
        if kind is None:
            self.close(last=self._name_last())
            return
        if self._is_closed or os.getpid() != self._pid:
            return
        self._log.stop(self.step_count, kind.__name__)
        self._ranks.leave()  # where the other ranks are now, this one cannot know
        self._commits.queue.has_ended = self._ranks.size == 1
        is_last = self._ranks.size == 1 and not issubclass(kind, DivergedError)
        self._end_quietly(self._name_last(f"at {kind.__name__}") if is_last else None)

    def _end_quietly(self, last: str | None) -> None:
        """Close where an error has nowhere to go, or would hide another one; the log has it."""
        try:
            self.close(last=None if self._has_diverged else last)
        except Exception as error:  # noqa: BLE001  whatever it is
            self._log.failed_end(error)

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        with contextlib.suppress(KeyboardInterrupt):  # the writer finishes by itself
            if error is None:
                self._end_quietly(self._name_last())
            else:
                self._end(type(error))

    def __del__(self) -> None:
        if not self._is_closed:
            with contextlib.suppress(KeyboardInterrupt):
                self._end_quietly(self._name_last())


_OPEN: weakref.WeakSet[EndingRun] = weakref.WeakSet()


def _end_at_exit(find: weakref.ref[EndingRun]) -> None:
    run = find()
    if run is not None:
        run._at_exit()  # noqa: SLF001  the same module


def end_earlier(path: str | os.PathLike[str], branch: str | None) -> None:
    """End the run that this process has of a branch, None for the current one."""
    try:
        folder = Path(path).resolve()
    except TypeError:
        raise UsageError(f"path is {path!r}, not the path of a folder") from None
    for earlier in list(_OPEN):
        current: str | None = branch or earlier.branch
        with contextlib.suppress(MvcError):  # the folder may have been deleted since
            current = branch or earlier.repo.head.branch
        is_same = earlier.repo.worktree == folder and earlier.branch == current
        if is_same and os.getpid() == earlier._pid:  # noqa: SLF001  the same module
            earlier._log.hand_over(earlier.branch, earlier.step_count)  # noqa: SLF001
            earlier._end_quietly(earlier._name_last())  # noqa: SLF001
