"""Make a repository from a remote."""

from __future__ import annotations

from typing import Annotated

from mvc.cli.options import Content, Json, LimitRate, Quiet, ShowProgress, read_rate
from mvc.cli.output import printable, stdout, write_json
from mvc.cli.parameters import Argument, Option
from mvc.cli.progress import byte_progress


def clone(
    url: Annotated[str, Argument(metavar="URL")],
    folder: Annotated[str | None, Argument(metavar="[DIR]")] = None,
    content: Content = None,
    origin: Annotated[
        str, Option("-o", "--origin", metavar="NAME", help="What the remote is called here.")
    ] = "origin",
    branch: Annotated[
        str | None,
        Option(
            "-b", "--branch", metavar="NAME", help="Check out this branch, not the default one."
        ),
    ] = None,
    no_checkout: Annotated[
        bool, Option("--no-checkout", help="Fetch everything, write no file.")
    ] = False,
    no_content: Annotated[
        bool,
        Option(
            "--no-content", help="Fetch the history only; content comes when something reads it."
        ),
    ] = False,
    depth: Annotated[
        int | None,
        Option("--depth", metavar="N", help="Bring only the newest N commits, of one branch."),
    ] = None,
    store: Annotated[
        bool,
        Option("--store", help="Leave the content there for good: each commit is pushed."),
    ] = False,
    limit_rate: LimitRate = None,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Make a repository from a remote, with its default branch checked out.

    URL is s3://BUCKET/PREFIX, gs://..., az://..., hf://buckets/NAMESPACE/NAME, file:///FOLDER or a
    path. If history is on a Git host, URL is that of the repository there (https://, ssh://, USER@HOST:PATH,
    git://, git+file:///FOLDER), and --content names the store. Every byte is verified before it is used. Credentials come from where the tools of
    the platform look for them; an S3 server of your own is named by AWS_ENDPOINT_URL.
    """
    from mvc.repo import clone as make

    limit = read_rate(limit_rate)
    with byte_progress("fetching", wanted=progress and not quiet) as bar:
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
            limit_bytes_s=limit,
            progress=bar,
        )
    head = repo.head
    if as_json:
        write_json({"path": str(repo.worktree), "branch": head.branch, "commit": head.commit})
    elif not quiet:
        where = printable(str(repo.worktree))
        stdout().line(f"Cloned into {where} (branch {printable(head.branch or '')}).")
