"""Bring history and content from a remote, and merge it."""

from __future__ import annotations

from mvc.cli.options import LIMIT_RATE, QUIET_PROGRESS_JSON
from mvc.cli.output import Shown, stdout, write_json
from mvc.cli.parameters import CommandUsageError, argument, arguments, flag, integer, strings
from mvc.cli.progress import byte_progress
from mvc.cli.render.remotes import fetch_fields, write_fetch
from mvc.cli.sequence import fast_forward, show_merge
from mvc.cli.session import open_repo


def fetch(
    remote: str | None = argument("[REMOTE]"),
    refspecs: list[str] = arguments("[REFSPEC...]"),
    every: bool = flag("--all", "Fetch from all remotes."),
    tags: bool | None = flag(
        "--tags / --no-tags", "Bring all new tags too, or none.", default=None
    ),
    prune: bool = flag("-p, --prune", "Forget branches that are gone on the remote."),
    no_content: bool = flag("--no-content", "Bring the history only, not the content of files."),
    content: list[str] = strings("--content REV", "Bring all content of this revision."),
    depth: int | None = integer("--depth N", "Deepen a shallow clone to N commits."),
    unshallow: bool = flag("--unshallow", "Bring the whole history of a shallow clone."),
    limit_bytes_s: int | None = LIMIT_RATE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Bring what is new on a remote; nothing here moves but the refs that follow it.

    Only what is missing travels, and every chunk is hashed before it counts. New tags come along,
    unless a REFSPEC says what is wanted. FETCH_HEAD is what came last.
    """
    repo = open_repo()
    if every and remote is not None:
        raise CommandUsageError("--all goes with no REMOTE")
    fields = []
    for name in repo.remotes.list() if every else [remote]:
        with byte_progress("fetching", wanted=shown.progress):
            done = repo.fetch(
                name,
                refspecs,
                prune=prune,
                tags=tags,
                content=False if no_content else None,
                content_of=content,
                depth=depth,
                unshallow=unshallow,
                limit_bytes_s=limit_bytes_s,
            )
        fields.append(fetch_fields(done))
        if shown.as_text:
            write_fetch(stdout(), done)
    if shown.as_json:
        write_json(fields if every else fields[0])


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
