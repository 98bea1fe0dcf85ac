"""Make a repository from a remote."""

from __future__ import annotations

from mvc.cli.options import CONTENT, LIMIT_RATE, QUIET_PROGRESS_JSON
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import argument, flag, integer, string
from mvc.cli.progress import byte_progress


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
