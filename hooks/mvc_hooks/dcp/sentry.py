"""Notices that a rank failed before its writer was asked to write.

DCP catches what a planner raises there, and waits until all ranks have written, who wait for this one. It
calls nobody, so this looks at where the thread is that saves. Should DCP do it otherwise one day, nothing
is noticed, and the others wait as long as they are willing to.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_LOOK_S = 0.2
_SAVE, _WRITE = "_save_state_dict", ("all_reduce", "write")
"""Names in torch: the function that saves, and the function and step in which all ranks write."""


class Sentry:
    """Watches the thread that made it until it is relieved, or that thread's save is over."""

    def __init__(self, tell: Callable[[Any, BaseException], object]) -> None:
        """Take what is told of a failure: the plan of this rank for the save, and the error."""
        self._tell, self._watched = tell, threading.get_ident()
        self._is_relieved = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def relieve(self) -> None:
        """Stop watching."""
        self._is_relieved.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_relieved.wait(_LOOK_S):
            frame = sys._current_frames().get(self._watched)  # noqa: SLF001  its only name
            is_saving, plan, error = find_failure(frame)
            if error is not None and plan is not None:
                with contextlib.suppress(Exception):  # then they have to wait
                    self._tell(plan, error)
            if error is not None or not is_saving:
                return


def find_failure(frame: FrameType | None) -> tuple[bool, Any, BaseException | None]:
    """Return of a thread whether it saves, its plan, and the error with which its part has failed."""
    error: BaseException | None = None
    while frame is not None:
        name, values = frame.f_code.co_name, frame.f_locals
        if (name, values.get("step")) == _WRITE:
            said = values.get("local_data")
            first = said[0] if isinstance(said, tuple) and said else None
            error = first if isinstance(first, BaseException) else None
        if name == _SAVE:
            return True, values.get("central_plan"), error
        frame = frame.f_back
    return False, None, None
