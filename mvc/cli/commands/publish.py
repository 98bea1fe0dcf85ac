"""Let a channel of a remote name a commit, for those who follow it."""

from __future__ import annotations

from mvc.cli.options import JSON, LIMIT_RATE, PROGRESS, QUIET, read_rate
from mvc.cli.output import pick, printable, stdout, write_json
from mvc.cli.parameters import argument, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.text import short_id, size_text
from mvc.cli.session import open_repo


def publish(
    channel: str = argument("CHANNEL"),
    remote: str | None = argument("[REMOTE]"),
    to: str = string(
        "--to REV", "Publish this revision (HEAD), also an older one.", default="HEAD"
    ),
    limit_rate: str | None = LIMIT_RATE,
    quiet: bool = QUIET,
    progress: bool = PROGRESS,
    as_json: bool = JSON,
) -> None:
    """Send a commit to a remote and let a channel name it; those who follow the channel get it.

    Only what is missing there travels. Each move of a channel has a number, so taking it back with
    --to is a new version of old content.
    """
    limit = read_rate(limit_rate)
    with byte_progress("publishing", wanted=progress and not quiet) as bar:
        done = open_repo().publish(channel, to, remote=remote, limit_bytes_s=limit, progress=bar)
    if as_json:
        write_json(pick(done, "url channel commit number previous new=is_new sent_bytes"))
    elif not quiet:
        what = f"{printable(channel)} is version {done.number}, {short_id(done.commit)}"
        sent = f", {size_text(done.sent_bytes)} sent" if done.sent_bytes else ""
        stdout().line(f"{what}{sent}" if done.is_new else f"{what}, as before")
