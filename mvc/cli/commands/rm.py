"""Remove files from the worktree and the index."""

from __future__ import annotations

from typing import Annotated

from mvc.cli.options import Json, Quiet
from mvc.cli.output import printable, stdout, write_json
from mvc.cli.parameters import Argument, Option
from mvc.cli.session import open_repo, shown_path, to_paths


def rm(
    paths: Annotated[list[str], Argument(metavar="PATH...", show_default=False)],
    cached: Annotated[
        bool, Option("--cached", help="Stop tracking the files but keep them on disk.")
    ] = False,
    force: Annotated[
        bool, Option("-f", "--force", help="Remove files even if no commit holds their changes.")
    ] = False,
    recursive: Annotated[
        bool, Option("-r", "--recursive", help="Remove folders with everything tracked in them.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Remove files from the worktree and the index.

    Their committed versions stay in the history.
    """
    repo = open_repo()
    removed = repo.remove(to_paths(paths), cached=cached, force=force, recursive=recursive)
    if as_json:
        write_json({"removed": removed})
    elif not quiet:
        stdout().lines(f"rm '{printable(shown_path(repo, path))}'" for path in removed)
