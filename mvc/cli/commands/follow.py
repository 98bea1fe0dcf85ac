"""Keep a folder at the newest version of a channel."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import TYPE_CHECKING

from mvc.cli.options import LIMIT_RATE, QUIET_PROGRESS_JSON
from mvc.cli.output import Output, Shown, pick, printable, stderr, warn
from mvc.cli.parameters import CommandUsageError, Exit, argument, flag, integer, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import short_id, size_text

if TYPE_CHECKING:
    from mvc.errors import MvcError
    from mvc.operations.follow import Version

_LONGEST_S = 86_400


def follow(
    url: str = argument("URL"),
    channel: str = argument("CHANNEL"),
    folder: str = argument("DIR"),
    command: str | None = string("--exec CMD", "Run this after each switch to a new version."),
    once: bool = flag("--once", "End after the newest version."),
    keep: int = integer("--keep N", "Keep N versions before the newest.", default=1),
    interval: str = string(
        "--interval TIME", "Ask so often whether there is a new one: 5s, 10m, 1h.", default="5s"
    ),
    limit_bytes_s: int | None = LIMIT_RATE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Keep a folder at the newest version of a channel that "mvc publish" moves.

    DIR/current leads to the files of the newest version, DIR/weight_v000042 and so on; it is always
    whole and verified, also after a kill. CMD finds MVC_VERSION, MVC_COMMIT and MVC_DIR in its
    environment; if it fails, that is reported, and following goes on. With --json each version
    is a line.
    """
    from mvc.repo.outside import follow as watch
    from mvc.upkeep.durations import parse_duration

    interval_s = int(interval) if interval.isdecimal() else parse_duration(interval)
    if keep < 0 or not 1 <= interval_s <= _LONGEST_S:
        raise CommandUsageError("--keep takes 0 or more, --interval one second to one day")
    failed = False
    with byte_progress("following", wanted=shown.progress and once):
        for update in watch(
            url,
            channel,
            folder,
            keep=keep,
            interval_s=interval_s,
            limit_bytes_s=limit_bytes_s,
            once=once,
            waiting=_say_whether_it_answers,
        ):
            version = update.version
            size, folder = size_text(version.received_bytes), str(version.folder)
            facts = pick(version, "channel number commit previous received_bytes")
            fields = {**facts, "folder": folder}
            text = f"version {version.number}, {short_id(version.commit)}, {size} received"
            shown.answer(fields, Output.line, f"{text}: {printable(folder)}")
            failed = command is not None and not _run(command, version)
    if failed:
        raise Exit(1)


def _say_whether_it_answers(failure: MvcError | None) -> None:
    if failure is None:
        stderr().line("the remote is well again")
    else:
        warn(f"{failure.message}; the version before it stays, and this goes on asking")


def _run(command: str, one: Version) -> bool:
    variables = {
        "MVC_VERSION": str(one.number),
        "MVC_COMMIT": one.commit,
        "MVC_DIR": str(one.folder),
    }
    try:
        words = shlex.split(command)
        done = subprocess.run(words, env={**os.environ, **variables}, check=False)  # noqa: S603  theirs
    except (OSError, ValueError) as error:
        warn(f"{printable(command)} cannot be run: {error}")
        return False
    if done.returncode:
        warn(f"{printable(command)} failed with exit code {done.returncode}")
    return not done.returncode
