"""watch: a training run, live."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from mvc.cli.group import usage
from mvc.cli.options import Json
from mvc.cli.output import Output, stdout, write_json
from mvc.cli.render.watch import frame_lines
from mvc.cli.render.watch_fields import run_fields
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.operations.watch import RunFollower


_PIPE_WIDTH = 100
_SHORTEST_S, _LONGEST_S = 0.1, 3600.0
_QUITS = (b"q", b"Q", b"\x04", b"")


def watch(
    context: Context,
    branch: Annotated[str | None, Argument(metavar="[BRANCH]", show_default=False)] = None,
    once: Annotated[bool, Option("--once", help="Print the run as it is now, once.")] = False,
    interval: Annotated[
        str, Option("--interval", metavar="S", help="Seconds between two looks.")
    ] = "1",
    as_json: Json = False,
) -> None:
    """Show a training run while it trains: steps, loss, commits, alarms, rollbacks.

    Without BRANCH the run of the current branch, or else the latest. A column of the curve is the
    highest loss of a few steps, yellow where the run went back; ! is NaN or infinite. Commits turn
    green when the run went on without alarm for long enough, red when it went back to before them;
    stall is how long the training stood still, new what was stored, of the whole state. q quits.
    A pipe, --once and --json get one look.
    """
    interval_s = _interval(context, interval)
    follower = open_repo().follow_run(branch)
    out = stdout()
    if as_json:
        write_json(run_fields(follower.read()))
    elif once or out.width is None or os.environ.get("TERM") == "dumb":
        width = out.width or _PIPE_WIDTH
        out.lines(frame_lines(out, follower.read(), width=width, height=None, now_s=time.time()))
    else:
        _show(out, follower, interval_s)


def _interval(context: Context, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        wanted = f"a number of seconds from {_SHORTEST_S} to {_LONGEST_S:.0f}"
        raise usage(f"--interval {text!r} is not {wanted}", context)
    return seconds


def _show(out: Output, follower: RunFollower, interval_s: float) -> None:
    """Redraw the run on a screen of its own until the user quits."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=out.stream)
    view = follower.read()  # before the screen: an error is to be seen
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
    """Get keys as they are pressed and do not show them; as before afterwards."""
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
    """Wait for a key; return it, empty at the end of input, or None where none came."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return None
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), 1) if ready else None
