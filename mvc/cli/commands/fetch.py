"""Bring history and content from a remote, and merge it."""

from __future__ import annotations

from mvc.cli.options import CONTENT, LIMIT_RATE, QUIET_PROGRESS_JSON
from mvc.cli.output import Output, Shown, printable, stdout, write_json
from mvc.cli.parameters import (
    CommandUsageError,
    argument,
    arguments,
    flag,
    integer,
    string,
    strings,
)
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


def clone(
    url: str = argument("URL"),
    folder: str | None = argument("[DIR]"),
    content: str | None = CONTENT,
    origin: str = string("-o, --origin NAME", "What the remote is called here.", default="origin"),
    branch: str | None = string("-b, --branch NAME", "Check out this branch, not the default one."),
    no_checkout: bool = flag("--no-checkout", "Fetch everything, write no file."),
    no_content: bool = flag(
        "--no-content", "Fetch the history only; content comes when something reads it."
    ),
    depth: int | None = integer("--depth N", "Bring only the newest N commits, of one branch."),
    store: bool = flag("--store", "Leave the content there for good: each commit is pushed."),
    limit_bytes_s: int | None = LIMIT_RATE,
    shown: Shown = QUIET_PROGRESS_JSON,
) -> None:
    """Make a repository from a remote, with its default branch checked out.

    URL is s3://BUCKET/PREFIX, gs://..., az://..., hf://buckets/NAMESPACE/NAME, file:///FOLDER or a
    path. If history is on a Git host, URL is that of the repository there (https://, ssh://, USER@HOST:PATH,
    git://, git+file:///FOLDER), and --content names the store. Every byte is verified before it is used. Credentials come from where the tools of
    the platform look for them; an S3 server of your own is named by AWS_ENDPOINT_URL.
    """
    from mvc.repo.outside import clone as make

    with byte_progress("fetching", wanted=shown.progress):
        repo = make(
            url,
            folder,
            content_url=content,
            origin=origin,
            branch=branch,
            checkout=not no_checkout,
            content=not no_content,
            depth=depth,
            store=store,
            limit_bytes_s=limit_bytes_s,
        )
    head = repo.head
    fields = {"path": str(repo.worktree), "branch": head.branch, "commit": head.commit}
    place, branch = printable(str(repo.worktree)), printable(head.branch or "")
    shown.answer(fields, Output.line, f"Cloned into {place} (branch {branch}).")
