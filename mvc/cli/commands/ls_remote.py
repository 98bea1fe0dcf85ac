"""List the branches and tags of a remote."""

from __future__ import annotations

from typing import Annotated

from mvc.cli.options import Json
from mvc.cli.output import paged, printable, write_json
from mvc.cli.parameters import Argument
from mvc.cli.session import open_repo


def ls_remote(
    remote: Annotated[str | None, Argument(metavar="[REMOTE]")] = None,
    as_json: Json = False,
) -> None:
    """List the refs of a remote (origin by default): one request, nothing changes here."""
    found = open_repo().list_remote(remote)
    head, refs = found.head, found.refs
    if as_json:
        write_json({"head": head, "refs": refs})
        return
    out = paged()
    if head in refs:
        out.line(f"{refs[head]}\tHEAD")
    out.lines(f"{value}\t{printable(name)}" for name, value in refs.items())
