"""Fetch, and merge into the current branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mvc.cli.options import Json, LimitRate, Quiet, ShowProgress, check_alone, read_rate
from mvc.cli.output import stdout
from mvc.cli.parameters import Argument, Option
from mvc.cli.progress import byte_progress
from mvc.cli.render.remotes import fetch_fields, write_fetch
from mvc.cli.sequence import Shown, show_merge
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from mvc.operations.merge import FastForward


def pull(
    remote: Annotated[str | None, Argument(metavar="[REMOTE]")] = None,
    branch: Annotated[str | None, Argument(metavar="[BRANCH]")] = None,
    ff_only: Annotated[
        bool, Option("--ff-only", help="Refuse if that takes more than to fast-forward.")
    ] = False,
    no_ff: Annotated[
        bool, Option("--no-ff", help="Make a merge commit even where none is needed.")
    ] = False,
    limit_rate: LimitRate = None,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
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
