"""Remove files from the worktree and the index."""

from __future__ import annotations

from typing import Annotated

import typer

from mvc.cli.options import Json, Quiet
from mvc.cli.output import printable, stdout, write_json
from mvc.cli.session import open_repo, shown_path, to_paths

_Paths = Annotated[list[str], typer.Argument(metavar="PATH...", show_default=False)]


def rm(
    paths: _Paths,
    cached: Annotated[
        bool, typer.Option("--cached", help="Untrack only; the files stay on disk.")
    ] = False,
    force: Annotated[
        bool, typer.Option("-f", "--force", help="Also files with changes that no commit holds.")
    ] = False,
    recursive: Annotated[
        bool, typer.Option("-r", help="Also folders, with all that is tracked in them.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Remove files from the worktree and the index.

    What commits hold stays in the history.
    """
    repo = open_repo()
    removed = repo.remove(to_paths(paths), cached=cached, force=force, recursive=recursive)
    if as_json:
        write_json({"removed": removed})
    elif not quiet:
        stdout().lines(f"rm '{printable(shown_path(repo, path))}'" for path in removed)
