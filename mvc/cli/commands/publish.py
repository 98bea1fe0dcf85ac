"""Let a channel of a remote name a commit, for those who follow it."""

from __future__ import annotations

from mvc.cli.options import LIMIT_RATE, QUIET_PROGRESS_JSON
from mvc.cli.output import Output, Shown, pick, printable
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
    limit_bytes_s: int | None = LIMIT_RATE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Send a commit to a remote and let a channel name it; those who follow the channel get it.

    Only what is missing there travels. Each move of a channel has a number, so taking it back with
    --to is a new version of old content.
    """
    with byte_progress("publishing", wanted=shown.progress):
        done = open_repo().publish(channel, to, remote=remote, limit_bytes_s=limit_bytes_s)
    facts = "url channel commit number previous new=is_new sent_bytes"
    sent = f", {size_text(done.sent_bytes)} sent" if done.sent_bytes else ""
    text = f"{printable(channel)} is version {done.number}, {short_id(done.commit)}"
    text += sent if done.is_new else ", as before"
    shown.answer(pick(done, facts), Output.line, text)
