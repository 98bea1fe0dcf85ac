"""Make a repository."""

from __future__ import annotations

from pathlib import Path

from mvc.cli.options import QUIET_JSON
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import argument, string
from mvc.errors import UsageError


def init(
    path: str = argument("[PATH]", default="."),
    branch: str | None = string("-b, --initial-branch NAME", "Name of the first branch (main)."),
    store: str | None = string("--store URL", "Keep content on a store; commits are pushed there."),
    shown: Shown = QUIET_JSON,
) -> None:
    """Create an empty repository in a folder, and the folder too if it is missing.

    An existing repository is left as it is.

    With --store, content is on an object store (a URL as for clone) from the first commit on, and history
    beside it: each commit is pushed there in the same command, and only the newest content stays here as
    well, bounded by cache.size. If a push fails, the commit stands and a later one brings it.
    "mvc clone --store URL" goes on elsewhere.
    """
    from mvc.repo import Repo

    if Path(path).exists() and not Path(path).is_dir():
        raise UsageError(f"{path!r} is not a folder")
    is_new = not Path(path, ".mvc").is_dir()
    repo = Repo.init(path, branch=branch or "main", store=store)
    verb = "Initialized empty" if is_new else "Reinitialized existing"
    lines = [f"{verb} mvc repository in {printable(str(repo.git_dir))}/"]
    if store is not None:
        lines.append(f"Content goes to {printable(repo.config()['remote.origin.url'])}.")
    fields = {"git_dir": str(repo.git_dir), "branch": repo.head.branch, "created": is_new}
    shown.answer(fields, Output.lines, lines)
