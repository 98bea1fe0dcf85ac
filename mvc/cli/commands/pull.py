"""Fetch, and merge into the current branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.options import JSON, LIMIT_RATE, PROGRESS, QUIET, check_alone, read_rate
from mvc.cli.output import Shown, stdout
from mvc.cli.parameters import argument, flag
from mvc.cli.progress import byte_progress
from mvc.cli.render.remotes import fetch_fields, write_fetch
from mvc.cli.sequence import show_merge
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.merge import FastForward


def pull(
    remote: str | None = argument("[REMOTE]"),
    branch: str | None = argument("[BRANCH]"),
    ff_only: bool = flag("--ff-only", "Refuse if that takes more than to fast-forward."),
    no_ff: bool = flag("--no-ff", "Make a merge commit even where none is needed."),
    limit_rate: str | None = LIMIT_RATE,
    quiet: bool = QUIET,
    progress: bool = PROGRESS,
    as_json: bool = JSON,
) -> None:
    """Fetch, and merge what the current branch follows (or BRANCH of REMOTE) into it."""
    check_alone([("--ff-only", ff_only), ("--no-ff", no_ff)])
    way: FastForward = "only" if ff_only else "never" if no_ff else "allowed"
    repo, shown = open_repo(), Shown(quiet, progress and not quiet, as_json)
    limit = read_rate(limit_rate)
    with byte_progress("pulling", wanted=shown.progress) as bar:
        done = repo.pull(remote, branch, fast_forward=way, limit_bytes_s=limit, progress=bar)
    if not as_json and not quiet:
        write_fetch(stdout(), done.fetched)
    show_merge(repo, "merge", done.merged, shown, fetched=fetch_fields(done.fetched))
