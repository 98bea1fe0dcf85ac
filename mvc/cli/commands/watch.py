"""Show a training run while it trains."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mvc.cli.options import CommandUsageError, Json
from mvc.cli.output import Output, pick, stdout, write_json
from mvc.cli.render.text import utc_date
from mvc.cli.render.watch import frame_lines
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.operations.watch import RunFollower
    from mvc.runs.records import RunAlarm, RunCommit, RunEvent, RunRollback, RunView

_PIPE_WIDTH = 100
_SHORTEST_S, _LONGEST_S = 0.1, 3600.0
_QUITS = (b"q", b"Q", b"\x04", b"")


def watch(
    branch: Annotated[str | None, Argument(metavar="[BRANCH]", show_default=False)] = None,
    once: Annotated[bool, Option("--once", help="Print the run once, as it is now.")] = False,
    interval: Annotated[
        str, Option("--interval", metavar="S", help="Seconds between two updates.")
    ] = "1",
    as_json: Json = False,
) -> None:
    """Show a training run while it trains: steps, loss, commits, alarms, rollbacks.

    BRANCH defaults to the current branch if it has a run, or else to that of the latest run. Each
    column of the curve is the highest loss of a few steps, yellow where the run went back; ! is NaN
    or infinite. Commits turn green once the run has gone on for long enough without an alarm, and
    red if it went back to before them. "stall" is how long training paused for a commit, "new" the
    bytes it stored "of" the whole state. q quits. A pipe, --once and --json show the run once.
    """
    interval_s = _interval(interval)
    follower = open_repo().follow_run(branch)
    out = stdout()
    if as_json:
        write_json(_fields(follower.read()))
    elif once or out.width is None or os.environ.get("TERM") == "dumb":
        width = out.width or _PIPE_WIDTH
        out.lines(frame_lines(out, follower.read(), width=width, height=None, now_s=time.time()))
    else:
        _show(out, follower, interval_s)


def _fields(view: RunView) -> dict[str, object]:
    commits = (
        "commit subject stall_s write_s written_bytes plain_bytes queue_depth healthy=is_healthy "
        "abandoned=is_abandoned"
    )
    rollbacks = "to_commit diverged_branch skipped_batches seconds reason"
    return {
        **pick(view, "branch alive stopped pid host"),
        "started": utc_date(view.started_s),
        "updated": utc_date(view.updated_s),
        **pick(view, "step total every steps_per_s loss grad_norm lr stall_s queue_depth"),
        "losses": {
            "steps": [step for step, _ in view.losses],
            "values": [loss for _, loss in view.losses],
        },
        "commits": [
            _event(one, "step", commits) | {"commit": one.commit or None} for one in view.commits
        ],
        "alarms": [_event(one, "step", "cause reason") for one in view.alarms],
        "rollbacks": [
            _event(one, "step to_step", rollbacks)
            | {"to_commit": one.to_commit or None, "diverged_branch": one.diverged_branch or None}
            for one in view.rollbacks
        ],
        "events": [_event(one, "kind step", "text") for one in view.events],
        "errors": [_event(one, "kind step", "text") for one in view.errors],
        "damaged_lines": view.damaged_lines,
    }


def _event(
    one: RunCommit | RunAlarm | RunRollback | RunEvent, before: str, after: str
) -> dict[str, object]:
    return {**pick(one, before), "time": utc_date(one.time_s), **pick(one, after)}


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        wanted = f"a number of seconds from {_SHORTEST_S} to {_LONGEST_S:.0f}"
        raise CommandUsageError(f"--interval {text!r} is not {wanted}")
    return seconds


def _show(out: Output, follower: RunFollower, interval_s: float) -> None:
    """Redraw the run on the alternate screen until the user quits."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=out.stream)
    view = follower.read()  # before the screen opens, which would hide an error
    with _keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            width, height = console.size
            lines = frame_lines(out, view, width=width, height=height - 1, now_s=time.time())
            lines += [""] * (height - 1 - len(lines))
            lines.append(out.style("q quits", "dim"))
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True), refresh=True)
            if _wait(interval_s) in _QUITS:
                return
            view = follower.read()


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Read keys as they are pressed, without echo; restore the terminal afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _wait(seconds: float) -> bytes | None:
    """Wait for a key; return it, empty at the end of input, or None if none came."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return None
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), 1) if ready else None
