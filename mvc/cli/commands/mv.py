"""Move or rename files."""

from __future__ import annotations

from typing import Annotated

import typer

from mvc.cli.group import usage
from mvc.cli.options import Json
from mvc.cli.output import printable, stdout, write_json
from mvc.cli.session import open_repo, shown_path, to_paths


def mv(
    paths: Annotated[list[str], typer.Argument(metavar="SOURCE... TARGET", show_default=False)],
    context: typer.Context,
    force: Annotated[
        bool, typer.Option("-f", "--force", help="Replace a file that is in the way.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print what moved.")] = False,
    as_json: Json = False,
) -> None:
    """Move or rename files, in the worktree and in the index.

    Several sources need a folder as their target.
    """
    if len(paths) < 2:  # noqa: PLR2004  from and to
        raise usage("there is no target", context)
    repo = open_repo()
    *sources, target = to_paths(paths)
    moved = repo.move(sources, target, force=force)
    if as_json:
        write_json({"renamed": [{"old_path": old, "path": new} for old, new in moved]})
    elif verbose:
        stdout().lines(
            f"{printable(shown_path(repo, old))} -> {printable(shown_path(repo, new))}"
            for old, new in moved
        )
