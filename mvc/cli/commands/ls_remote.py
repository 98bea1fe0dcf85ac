"""List the branches, tags and channels of a remote."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatchcase

from mvc.cli.options import JSON
from mvc.cli.output import paged, printable, write_json
from mvc.cli.parameters import argument, arguments, flag
from mvc.cli.session import open_repo


def ls_remote(
    remote: str | None = argument("[REMOTE]"),
    patterns: list[str] = arguments("[PATTERN...]"),
    heads: bool = flag("--heads, --branches", "List branches only."),
    tags: bool = flag("--tags", "List tags only."),
    as_json: bool = JSON,
) -> None:
    """List the refs and channels of a remote (origin by default): one request, nothing changes here.

    Behind a channel is the number of its version. As in Git, PATTERN is the end of a name, from a
    "/" on, and may have wildcards: main, 'v*'.
    """
    prefixes = ("refs/heads/",) * heads + ("refs/tags/",) * tags

    def is_wanted(name: str) -> bool:
        is_match = any(fnmatchcase(f"/{name}", f"*/{pattern}") for pattern in patterns or ["*"])
        return is_match and (not prefixes or name.startswith(prefixes))

    found = open_repo().remotes.refs(remote)
    head, refs = found.head, {name: one for name, one in found.refs.items() if is_wanted(name)}
    channels = {name: one for name, one in found.channels.items() if is_wanted(name)}
    if as_json:
        shown = {name: asdict(one) for name, one in channels.items()}
        write_json({"head": head, "refs": refs, "channels": shown})
        return
    out = paged()
    if head in found.refs and is_wanted("HEAD"):
        out.line(f"{found.refs[head]}\tHEAD")
    out.lines(f"{value}\t{printable(name)}" for name, value in refs.items())
    out.lines(
        f"{one.commit}\tchannel {printable(name)} {one.number}" for name, one in channels.items()
    )
