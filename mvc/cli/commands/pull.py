"""Fetch, and merge into the current branch."""

from __future__ import annotations

from mvc.cli.options import LIMIT_RATE, QUIET_PROGRESS_JSON
from mvc.cli.output import Shown, stdout
from mvc.cli.parameters import argument, flag
from mvc.cli.progress import byte_progress
from mvc.cli.render.remotes import fetch_fields, write_fetch
from mvc.cli.sequence import fast_forward, show_merge
from mvc.cli.session import open_repo


def pull(
    remote: str | None = argument("[REMOTE]"),
    branch: str | None = argument("[BRANCH]"),
    ff_only: bool = flag("--ff-only", "Refuse if that takes more than to fast-forward."),
    no_ff: bool = flag("--no-ff", "Make a merge commit even where none is needed."),
    limit_bytes_s: int | None = LIMIT_RATE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Fetch, and merge what the current branch follows (or BRANCH of REMOTE) into it."""
    way = fast_forward(only=ff_only, never=no_ff)
    repo = open_repo()
    with byte_progress("pulling", wanted=shown.progress):
        done = repo.pull(remote, branch, fast_forward=way, limit_bytes_s=limit_bytes_s)
    if shown.as_text:
        write_fetch(stdout(), done.fetched)
    show_merge(repo, "merge", done.merged, shown, fetched=fetch_fields(done.fetched))
