"""List the branches, tags and channels of a remote."""

from __future__ import annotations

from fnmatch import fnmatchcase

from mvc.cli.options import JSON
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import argument, arguments, flag
from mvc.cli.render.remotes import channel_fields
from mvc.cli.session import open_repo


def ls_remote(
    remote: str | None = argument("[REMOTE]"),
    patterns: list[str] = arguments("[PATTERN...]"),
    heads: bool = flag("--heads, --branches", "List branches only."),
    tags: bool = flag("--tags", "List tags only."),
    shown: Shown = JSON,
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
    has_head = head in found.refs and is_wanted("HEAD")
    rows = [(found.refs[head], "HEAD")] if has_head else []
    rows += [(value, printable(name)) for name, value in refs.items()]
    for name, channel in channels.items():
        rows.append((channel.commit, f"channel {printable(name)} {channel.number}"))
    fields = {"head": head, "refs": refs, "channels": channel_fields(channels)}
    shown.page(fields, Output.lines, map("\t".join, rows))
