"""A progress bar on standard error, if it is a terminal and the work takes a while."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mvc.cli.render.text import size_text
from mvc.progress import reporting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

QUIET_S = 0.5
"""Shorter work shows no bar."""
REDRAW_S = 0.1


class ByteBar:
    """Counts bytes; shows a bar with speed and time left once the work has taken ``quiet_s``.

    It is the callback of ``mvc.reporting``, and may be called from any thread.
    """

    def __init__(self, label: str, *, quiet_s: float = QUIET_S) -> None:
        self._label = label
        self._quiet_s = quiet_s
        self._started_s = time.monotonic()
        self._lock = threading.Lock()
        self._expected_bytes = 0
        self._done_bytes = 0
        self._bar: tuple[Progress, TaskID] | None = None
        self._drawn_s = 0.0

    def expect(self, size_bytes: int) -> None:
        """Announce bytes that are still to come."""
        with self._lock:
            self._expected_bytes += size_bytes
            self._update()

    def __call__(self, size_bytes: int) -> None:
        """Count bytes that are done."""
        with self._lock:
            self._done_bytes += size_bytes
            self._update()

    def stop(self) -> None:
        """Remove the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar[0].stop()
                self._bar = None

    def _update(self) -> None:
        if self._bar is None:
            if time.monotonic() - self._started_s < self._quiet_s:
                return
            self._bar = self._show()
        bar, task = self._bar
        bar.update(task, completed=self._done_bytes, total=self._expected_bytes or None)
        if time.monotonic() - self._drawn_s >= REDRAW_S:
            self._drawn_s = time.monotonic()
            bar.refresh()

    def _show(self) -> tuple[Progress, TaskID]:
        import shutil

        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        # Defined here because rich is imported only if there is a bar to show.
        class SpeedColumn(ProgressColumn):
            """Bytes per second in the units that mvc uses everywhere."""

            def render(self, task: Task) -> Text:
                speed = task.finished_speed or task.speed
                return Text("" if speed is None else f"{size_text(round(speed))}/s")

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DownloadColumn(binary_units=True),
            SpeedColumn(),
            TimeRemainingColumn(),
            # Two columns stay free: a terminal's "^C" would break the line, which is then not removed.
            console=Console(file=sys.stderr, width=shutil.get_terminal_size().columns - 2),
            transient=True,
            auto_refresh=False,  # a thread of its own would forbid forks
            expand=True,
        )
        task = bar.add_task(self._label, total=None)
        bar.start()
        return bar, task


@contextmanager
def byte_progress(label: str, *, wanted: bool = True) -> Iterator[None]:
    """Show what the ``with`` block does in a bar, unless that would not be seen."""
    if not wanted or not sys.stderr.isatty():
        yield
        return
    bar = ByteBar(label)
    try:
        with reporting(bar):
            yield
    finally:
        bar.stop()
