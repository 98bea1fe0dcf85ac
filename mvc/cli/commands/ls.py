"""List the files and tensors of a revision."""

from __future__ import annotations

from typing import Annotated

import typer

from mvc.cli.group import paths_after, usage
from mvc.cli.options import Json, Tensors
from mvc.cli.output import printable, stdout, write_json
from mvc.cli.render.listing import file_fields, write_listing
from mvc.cli.session import open_repo, split_revisions


def ls(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="[REV] [[--] PATH...]")] = None,
    tensors: Tensors = None,
    long: Annotated[
        bool, typer.Option("-l", "--long", help="Also chunks and identity of every tensor.")
    ] = False,
    name_only: Annotated[bool, typer.Option("--name-only", help="Paths of files only.")] = False,
    as_json: Json = False,
) -> None:
    """List files and tensors of a revision (HEAD): dtype, shape, size.

    Tensors of equal identity hold the same bits, whatever their names and files.
    """
    repo = open_repo()
    revisions, paths = split_revisions(repo, names or (), paths_after(context))
    if len(revisions) > 1:
        raise usage(f"ls looks at one revision, not {len(revisions)}", context)
    revision = revisions[0] if revisions else "HEAD"
    found = repo.ls(revision, paths=paths, tensors=tensors)
    if as_json:
        files = [file_fields(info) for info in found]
        write_json({"commit": repo.resolve(revision), "files": files})
    elif name_only:
        stdout().lines(printable(info.path) for info in found)
    else:
        write_listing(stdout(), found, long=long)
