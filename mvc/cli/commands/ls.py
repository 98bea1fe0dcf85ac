"""List files and tensors of a revision."""

from __future__ import annotations

from typing import Annotated

from mvc.cli.options import Json, Tensors
from mvc.cli.output import paged, printable, write_json
from mvc.cli.parameters import Argument, Option
from mvc.cli.render.listing import file_fields, write_listing
from mvc.cli.session import open_repo, split_revision


def ls(
    names: Annotated[list[str] | None, Argument(metavar="[REV] [[--] PATH...]")] = None,
    tensors: Tensors = None,
    long: Annotated[
        bool, Option("-l", "--long", help="Also print chunks and id of each tensor.")
    ] = False,
    name_only: Annotated[bool, Option("--name-only", help="Print paths of files only.")] = False,
    as_json: Json = False,
) -> None:
    """List files and tensors of a revision (HEAD): dtype, shape, size.

    Tensors with the same id hold the same bits, whatever their names and files.
    """
    repo = open_repo()
    revision, paths = split_revision(repo, names)
    revision = revision or "HEAD"
    found = repo.ls(revision, paths=paths, tensors=tensors)
    if as_json:
        files = [file_fields(info) for info in found]
        write_json({"commit": repo.resolve(revision), "files": files})
    elif name_only:
        paged().lines(printable(info.path) for info in found)
    else:
        write_listing(paged(), found, long=long)
