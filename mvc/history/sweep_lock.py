"""Who may delete: no process while others write, and none writes while something is deleted.

A command that writes chunks or objects owns them before anything points to them, and one that makes
an old commit reachable again builds on what may be garbage at that moment. Both hold the sweep lock
*shared*, from before their first look until the index or the ref has moved. A process that deletes
holds it *exclusively* and looks at all roots again once it has it: then garbage is garbage.

Two files in ``.mvc``, locked by the kernel, which drops both locks when a process dies:

    shared       gate shared ──► sweep.lock shared ──► gate given back
    exclusive    gate exclusive ──► sweep.lock exclusive, both kept to the end

The gate is a turnstile: a sweeper who waits for the writers at work closes it, so a stream of new
writers cannot keep it waiting forever. A thread that holds the lock does not pass the gate again,
or it would wait for a sweeper that waits for it.

The sweep lock is always taken before ``mvc.lock``.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOCK_NAME = "sweep.lock"
GATE_NAME = "sweep.gate"


@dataclass(slots=True)
class _Held:
    """How a thread holds the lock of one repository."""

    depth: int = 0
    is_alone: bool = False


class _PerThread(threading.local):
    """Lock file → how this thread holds it.

    By file, so that a thread that has opened a repository twice does not wait for itself.
    """

    def __init__(self) -> None:
        self.held: dict[Path, _Held] = {}


_THREAD = _PerThread()


class SweepLock:
    """The lock between those who write and those who delete what nothing refers to."""

    def __init__(self, git_dir: Path, is_locked: Callable[[], bool]) -> None:
        """Take the folder; ``is_locked`` returns whether this thread holds ``mvc.lock``."""
        self._path = git_dir / LOCK_NAME
        self._gate = git_dir / GATE_NAME
        self._is_locked = is_locked

    @property
    def is_held(self) -> bool:
        """Whether this thread holds it, in either way."""
        return self._path in _THREAD.held

    @property
    def is_alone(self) -> bool:
        """Whether this thread holds it exclusively."""
        held = _THREAD.held.get(self._path)
        return held is not None and held.is_alone

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Keep what is being written from being swept; waits for a sweep that is going on.

        A thread that holds the lock, in either way, may take it so again.
        """
        with contextlib.ExitStack() as stack:
            if not self.is_held:
                self._check_order()
                with fs.shared_lock(self._gate):
                    stack.enter_context(fs.shared_lock(self._path))
            stack.enter_context(self._noted(is_alone=False))
            yield

    @contextlib.contextmanager
    def exclusive(self, *, wait: bool = True) -> Iterator[None]:
        """Be the only one: waits for all who write, and lets no new one begin.

        A thread that holds the lock exclusively may take it so again. Unless ``wait``, a lock that
        another process holds is a ConflictError.
        """
        with contextlib.ExitStack() as stack:
            if not self.is_held:
                self._check_order()
                stack.enter_context(fs.exclusive_lock(self._gate, wait=wait))
                stack.enter_context(fs.exclusive_lock(self._path, wait=wait))
            elif not self.is_alone:
                raise UsageError("a thread that writes cannot sweep at the same time")
            stack.enter_context(self._noted(is_alone=True))
            yield

    def _check_order(self) -> None:
        if self._is_locked():
            raise UsageError("the sweep lock is taken before the repository's lock, not under it")

    @contextlib.contextmanager
    def _noted(self, *, is_alone: bool) -> Iterator[None]:
        held = _THREAD.held.setdefault(self._path, _Held(is_alone=is_alone))
        held.depth += 1
        try:
            yield
        finally:
            held.depth -= 1
            if held.depth == 0:
                del _THREAD.held[self._path]
