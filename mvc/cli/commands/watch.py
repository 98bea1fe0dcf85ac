"""Show a training run while it trains."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import sys
import time
from typing import TYPE_CHECKING

from mvc.cli.options import JSON
from mvc.cli.output import Output, Shown, stdout, write_json
from mvc.cli.parameters import CommandUsageError, argument, flag, string
from mvc.cli.render.text import utc_date
from mvc.cli.render.watch import frame_lines
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mvc.operations.watch import RunFollower
    from mvc.runs.records import RunAlarm, RunCommit, RunEvent, RunRollback, RunView

_PIPE_WIDTH = 100
_SHORTEST_S, _LONGEST_S = 0.1, 3600.0
_QUITS = (b"q", b"Q", b"\x04", b"")
_TIMES = ("time_s", "started_s", "updated_s")
_NAMES = ("commit", "to_commit", "diverged_branch")  # null if they are empty


def watch(
    branch: str | None = argument("[BRANCH]"),
    once: bool = flag("--once", "Print the run once, as it is now."),
    interval: str = string("--interval S", "Seconds between two updates.", default="1"),
    shown: Shown = JSON,
) -> None:
    """Show a training run while it trains: steps, loss, commits, alarms, rollbacks.

    BRANCH defaults to the current branch if it has a run, or else to that of the latest run. Each
    column of the curve is the highest loss of a few steps, yellow where the run went back; ! is NaN
    or infinite. Commits turn green once the run has gone on for long enough without an alarm, and
    red if it went back to before them. "stall" is how long training paused for a commit, "new" the
    bytes it stored "of" the whole state. q quits. A pipe, --once and --json show the run once.
    """
    interval_s = _interval(interval)
    follower = open_repo().runs.follow(branch)
    out = stdout()
    if shown.as_json:
        write_json(_fields(follower.read()))
    elif once or out.width is None or os.environ.get("TERM") == "dumb":
        width = out.width or _PIPE_WIDTH
        out.lines(frame_lines(out, follower.read(), width=width, height=None, now_s=time.time()))
    else:
        _show(out, follower, interval_s)


def _fields(value: RunView | RunAlarm | RunCommit | RunEvent | RunRollback) -> dict[str, object]:
    """Return a run, or something that happened in it, as docs/json.md has it."""
    found: dict[str, object] = {}
    for name in (field.name for field in dataclasses.fields(value)):
        one = getattr(value, name)
        if name in _TIMES:
            found[name.removesuffix("_s")] = utc_date(one)
        elif name in ("losses", "scales"):
            found[name] = {"steps": [step for step, _ in one], "values": [x for _, x in one]}
        elif isinstance(one, tuple):
            found[name] = [_fields(each) for each in one]
        else:
            found[name.removeprefix("is_")] = one if one or name not in _NAMES else None
    return found


def _interval(text: str) -> float:
    with contextlib.suppress(ValueError):
        seconds = float(text)
        if _SHORTEST_S <= seconds <= _LONGEST_S:
            return seconds
    wanted = f"a number of seconds from {_SHORTEST_S} to {_LONGEST_S:.0f}"
    raise CommandUsageError(f"--interval {text!r} is not {wanted}")


def _show(out: Output, follower: RunFollower, interval_s: float) -> None:
    """Redraw the run on the alternate screen until the user quits."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=out.stream)
    view = follower.read()  # before the screen opens, which would hide an error
    with _keys() as wait, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            width, height = console.size
            lines = frame_lines(out, view, width=width, height=height - 1, now_s=time.time())
            lines += [""] * (height - 1 - len(lines))
            lines.append(out.style("q quits", "dim"))
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True), refresh=True)
            if wait(interval_s) in _QUITS:
                return
            view = follower.read()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bytes | None]]:
    """Read keys as they are pressed, without echo; restore the terminal afterwards.

    Yields a function that waits for a key and returns it, empty at the end of input, or None if
    none came.
    """
    if not sys.stdin.isatty():
        yield time.sleep
        return
    import termios
    import tty

    def wait(seconds: float) -> bytes | None:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1) if ready else None

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
