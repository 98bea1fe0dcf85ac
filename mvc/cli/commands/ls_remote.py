"""List the branches, tags and channels of a remote."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from mvc.cli.options import Json
from mvc.cli.output import paged, printable, write_json
from mvc.cli.parameters import Argument
from mvc.cli.session import open_repo


def ls_remote(
    remote: Annotated[str | None, Argument(metavar="[REMOTE]")] = None,
    as_json: Json = False,
) -> None:
    """List the refs and channels of a remote (origin by default): one request, nothing changes here.

    Behind a channel is the number of its version.
    """
    found = open_repo().list_remote(remote)
    head, refs = found.head, found.refs
    if as_json:
        channels = {name: asdict(one) for name, one in found.channels.items()}
        write_json({"head": head, "refs": refs, "channels": channels})
        return
    out = paged()
    if head in refs:
        out.line(f"{refs[head]}\tHEAD")
    out.lines(f"{value}\t{printable(name)}" for name, value in refs.items())
    out.lines(
        f"{one.commit}\tchannel {printable(name)} {one.number}"
        for name, one in found.channels.items()
    )
