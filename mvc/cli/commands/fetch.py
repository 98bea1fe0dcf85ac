"""Bring history and content from a remote."""

from __future__ import annotations

from typing import Annotated

from mvc.cli.options import CommandUsageError, Json, LimitRate, Quiet, ShowProgress, read_rate
from mvc.cli.output import stdout, write_json
from mvc.cli.parameters import Argument, Option
from mvc.cli.progress import byte_progress
from mvc.cli.render.remotes import fetch_fields, write_fetch
from mvc.cli.session import open_repo


def fetch(
    remote: Annotated[str | None, Argument(metavar="[REMOTE]")] = None,
    refspecs: Annotated[list[str] | None, Argument(metavar="[REFSPEC...]")] = None,
    every: Annotated[bool, Option("--all", help="Fetch from all remotes.")] = False,
    tags: Annotated[
        bool | None,
        Option("--tags/--no-tags", show_default=False, help="Bring all new tags too, or none."),
    ] = None,
    prune: Annotated[
        bool, Option("-p", "--prune", help="Forget branches that are gone on the remote.")
    ] = False,
    no_content: Annotated[
        bool, Option("--no-content", help="Bring the history only, not the content of files.")
    ] = False,
    content: Annotated[
        list[str] | None,
        Option("--content", metavar="REV", help="Bring all content of this revision."),
    ] = None,
    depth: Annotated[
        int | None, Option("--depth", metavar="N", help="Deepen a shallow clone to N commits.")
    ] = None,
    unshallow: Annotated[
        bool, Option("--unshallow", help="Bring the whole history of a shallow clone.")
    ] = False,
    limit_rate: LimitRate = None,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Bring what is new on a remote; nothing here moves but the refs that follow it.

    Only what is missing travels, and every chunk is hashed before it counts. New tags come along,
    unless a REFSPEC says what is wanted. FETCH_HEAD is what came last.
    """
    repo = open_repo()
    if every and remote is not None:
        raise CommandUsageError("--all goes with no REMOTE")
    limit = read_rate(limit_rate)
    told = []
    for name in repo.remotes() if every else [remote]:
        with byte_progress("fetching", wanted=progress and not quiet) as bar:
            done = repo.fetch(
                name,
                refspecs or [],
                prune=prune,
                tags=tags,
                content=False if no_content else None,
                content_of=content or (),
                depth=depth,
                unshallow=unshallow,
                limit_bytes_s=limit,
                progress=bar,
            )
        told.append(fetch_fields(done))
        if not (as_json or quiet):
            write_fetch(stdout(), done)
    if as_json:
        write_json(told if every else told[0])
