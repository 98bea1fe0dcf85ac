"""Pushes and fetches as text, as Git writes them, and for ``--json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import pick, printable
from mvc.cli.render.text import count_text, pad, short_id, size_text, table_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc.cli.output import Output
    from mvc.operations.fetch import FetchResult, RefFetch
    from mvc.operations.push import PushResult
    from mvc.operations.remotes import RemoteState
    from mvc.operations.sending import RefPush
    from mvc.remotes.root import Channel
    from mvc.remotes.tracking import Upstream

_PREFIXES = ("refs/heads/", "refs/tags/", "refs/remotes/")
_WIDTH = 17


def push_fields(done: PushResult) -> dict[str, object]:
    """Return a push for ``--json``."""
    return pick(done, "url sent_bytes refs(name old new status)")


def fetch_fields(done: FetchResult) -> dict[str, object]:
    """Return a fetch for ``--json``."""
    return pick(done, "url head received_bytes refs(source name old new status)")


def upstream_fields(one: Upstream | None) -> dict[str, object] | None:
    """Return what a branch follows for ``--json``."""
    return None if one is None else pick(one, "remote branch commit ahead behind")


def channel_fields(channels: Mapping[str, Channel]) -> dict[str, object]:
    """Return name → where a channel stands for ``--json``."""
    return {name: pick(channel, "commit number") for name, channel in channels.items()}


def state_fields(found: RemoteState) -> dict[str, object]:
    """Return a remote and what is known of it for ``--json``."""
    return {
        **pick(found, "url head branches"),
        "followers": {name: upstream_fields(one) for name, one in found.followers.items()},
        "channels": channel_fields(found.channels),
    }


def write_state(out: Output, found: RemoteState) -> None:
    """Write a remote beside what is known of it here."""
    out.line(f"{printable(found.url)}, default branch {printable(found.head)}")
    notes = {"new": 'new: "mvc fetch" brings it', "gone": 'gone: "mvc remote prune" forgets it'}
    _section(out, "Branches there", {k: notes.get(v, v) for k, v in found.branches.items()})
    follows = {name: upstream_text(one) for name, one in found.followers.items()}
    _section(out, "Branches here that follow them", follows)
    numbers = {
        k: f"{short_id(one.commit)}, number {one.number}" for k, one in found.channels.items()
    }
    _section(out, "Channels", numbers)


def _section(out: Output, title: str, rows: Mapping[str, str]) -> None:
    if rows:
        out.line(f"{title}:")
        cells = [(printable(name), printable(text)) for name, text in rows.items()]
        out.lines(table_lines(out, cells, "<<", indent="  "))


def write_push(out: Output, done: PushResult, *, dry_run: bool) -> None:
    """Write what became of the refs of a remote."""
    if all(one.status == "unchanged" for one in done.refs):
        out.line("Everything up-to-date")
        return
    out.line(f"To {printable(done.url)}")
    for ref in done.refs:
        if ref.status != "unchanged":
            out.line(_pushed(out, ref))
    if done.sent_bytes:
        out.line(f"{size_text(done.sent_bytes)} sent")
    elif dry_run:
        out.line("(nothing was sent)")


def _pushed(out: Output, one: RefPush) -> str:
    name = short_ref(one.name)
    if one.status == "deleted":
        return _row(out, "-", "[deleted]", name)
    if one.status == "created":
        kind = "tag" if one.name.startswith("refs/tags/") else "branch"
        return _row(out, "*", f"[new {kind}]", name)
    return _moved(out, one.old, one.new, name, is_forced=one.status == "forced")


def write_fetch(out: Output, done: FetchResult) -> None:
    """Write which refs here moved; nothing if none did and nothing came."""
    moved = [ref for ref in done.refs if ref.status != "unchanged"]
    if not (moved or done.received_bytes):
        return
    out.line(f"From {printable(done.url)}")
    out.lines(fetched_line(out, one) for one in moved)
    if done.received_bytes:
        out.line(f"{size_text(done.received_bytes)} received")


def fetched_line(out: Output, one: RefFetch) -> str:
    """Return what became of one ref here."""
    source = short_ref(one.source)
    name = f"{source} -> {short_ref(one.name)}" if one.name is not None else source
    if one.status == "pruned":
        return _row(out, "-", "[gone]", short_ref(one.name or ""))
    if one.status == "fetched":
        return _row(out, "*", short_id(one.new), name)
    if one.status == "created":
        kind = "tag" if one.source.startswith("refs/tags/") else "branch"
        return _row(out, "*", f"[new {kind}]", name)
    return _moved(out, one.old, one.new, name, is_forced=one.status == "forced")


def _moved(out: Output, old: str | None, new: str | None, name: str, *, is_forced: bool) -> str:
    dots = "..." if is_forced else ".."
    line = _row(out, "+" if is_forced else " ", f"{short_id(old)}{dots}{short_id(new)}", name)
    return line + (" (forced)" if is_forced else "")


def _row(out: Output, mark: str, what: str, name: str) -> str:
    return f" {mark} {out.style(pad(what, _WIDTH), 'yellow')} {printable(name)}"


def short_ref(name: str) -> str:
    """Return a full ref name as people say it."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def upstream_line(one: Upstream) -> str:
    """Return how a branch stands to what it follows."""
    name = f"{one.remote}/{one.branch}"
    if one.commit is None:
        return f"Your branch follows '{name}', which is not known yet."
    if one.ahead and one.behind:
        return (
            f"Your branch and '{name}' have diverged: "
            f"{one.ahead} and {one.behind} commits that the other lacks."
        )
    if one.ahead:
        return f"Your branch is ahead of '{name}' by {count_text(one.ahead, 'commit')}."
    if one.behind:
        count = count_text(one.behind, "commit")
        return f"Your branch is behind '{name}' by {count}: \"mvc pull\" catches up."
    return f"Your branch is up to date with '{name}'."


def upstream_text(one: Upstream) -> str:
    """Return what a branch follows and how far the two are apart, as short as Git says it."""
    parts = [f"ahead {one.ahead}"] * bool(one.ahead) + [f"behind {one.behind}"] * bool(one.behind)
    parts = ["gone"] if one.commit is None else parts
    return f"{one.remote}/{one.branch}" + (f": {', '.join(parts)}" if parts else "")
