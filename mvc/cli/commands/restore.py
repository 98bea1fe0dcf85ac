"""Bring files back from the index or a revision."""

from __future__ import annotations

from typing import Annotated

import typer

from mvc.cli.options import Json, Quiet, ShowProgress
from mvc.cli.output import stdout, write_json
from mvc.cli.progress import byte_progress
from mvc.cli.render.moves import result_fields, write_restored
from mvc.cli.render.text import short_id
from mvc.cli.session import open_repo, to_paths


def restore(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", show_default=False)],
    source: Annotated[
        str | None,
        typer.Option("-s", "--source", metavar="REV", help="Take them from this revision."),
    ] = None,
    staged: Annotated[
        bool, typer.Option("-S", "--staged", help="Bring back what is staged: unstage.")
    ] = False,
    worktree: Annotated[
        bool, typer.Option("-W", "--worktree", help="Bring back the files (as without --staged).")
    ] = False,
    quiet: Quiet = False,
    progress: ShowProgress = True,
    as_json: Json = False,
) -> None:
    """Bring files back from the index or a revision, whatever they hold now.

    Without --source the worktree gets what is staged, and --staged gets what HEAD has.
    """
    repo = open_repo(writes=True)
    with byte_progress("restoring", wanted=progress and not quiet) as bar:
        result = repo.restore(
            to_paths(paths),
            source=source,
            staged=staged,
            worktree=worktree or not staged,
            progress=bar,
        )
    if as_json:
        write_json(result_fields(result))
    elif not quiet and result.written:
        default = "HEAD" if staged else "the index"
        origin = default if source is None else short_id(repo.resolve(source))
        write_restored(stdout(), result, origin)
