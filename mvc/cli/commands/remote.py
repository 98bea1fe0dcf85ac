"""Remotes: their names, and what they hold."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import CONTENT, JSON
from mvc.cli.output import Output, Shown, pick, printable
from mvc.cli.parameters import CommandUsageError, Exit, argument, arguments, flag
from mvc.cli.render.remotes import channel_fields, fetched_line, state_fields, write_state
from mvc.cli.render.text import table_lines
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.remotes.settings import RemoteSettings
    from mvc.repo import Repo
    from mvc.storage.probe import ProbeReport


VERBS = "add remove rename set-url get-url show prune check"


def remote(
    words: list[str] = arguments("[WORD...]"),
    verbose: bool = flag("-v, --verbose", "List the URLs too."),
    content: str | None = CONTENT,
    shown: Shown = JSON,
) -> None:
    """Name the places to push to and fetch from.

    mvc remote lists them; add NAME URL, remove NAME, rename OLD NEW, set-url NAME URL and get-url
    NAME do what they say. show NAME compares a remote with what is known of it here, and prune NAME
    forgets the branches that are gone there. History can be on any Git host: then URL is that of the
    repository there, as of mvc clone, and --content names the store of what is in checkpoints. A URL
    never holds credentials: they come from where the tools of the platform
    look for them.

    check NAME (or a URL) asks a store, with a few dozen requests, what it keeps of its promises, and
    exits with 1 if it lacks what mvc needs. A push refuses such a store.
    """
    repo = open_repo()
    verb, *rest = words or ["list"]
    if content is not None and verb not in ("add", "set-url"):
        raise CommandUsageError("--content goes with add and set-url")
    if verb == "list":
        _take(rest, 0, "")
        remotes = repo.remotes.list()
        fields_of = [_fields(settings) for settings in remotes.values()]
        shown.answer(fields_of, _write_list, remotes, verbose=verbose)
    elif verb == "check":
        report = repo.remotes.check(*_take(rest, len(rest[:1]), "check [NAME|URL]"))
        promises = list(map(asdict, report.promises))
        answer = {"ok": report.ok, "tags": report.tags, "promises": promises}
        shown.answer(answer, _write_check, report)
        if not report.ok:
            raise Exit(NEGATIVE)
    elif verb == "show":
        state = repo.remotes.show(*_take(rest, len(rest[:1]), "show [NAME]"))
        shown.answer(state_fields(state), write_state, state)
    elif verb == "prune":
        gone = repo.remotes.prune(*_take(rest, len(rest[:1]), "prune [NAME]"))
        facts = [pick(ref, "source name old") for ref in gone]
        shown.answer(facts, lambda out: out.lines(fetched_line(out, ref) for ref in gone))
    else:
        fields = _change(repo, verb, rest, content)
        lines = [printable(str(fields["url"]))] if verb == "get-url" else []
        shown.answer(fields, Output.lines, lines)


def _change(repo: Repo, verb: str, words: Sequence[str], content: str | None) -> dict[str, object]:
    """Carry out a verb that changes a remote, or get-url; return what ``--json`` prints."""
    if verb == "add":
        name, url = _take(words, 2, "add NAME URL")
        return _fields(repo.remotes.add(name, url, content))
    if verb in ("remove", "rm"):
        (name,) = _take(words, 1, "remove NAME")
        repo.remotes.remove(name)
        return {"removed": name}
    if verb == "rename":
        old, new = _take(words, 2, "rename OLD NEW")
        return {"old_name": old, **_fields(repo.remotes.rename(old, new))}
    if verb == "set-url":
        name, url = _take(words, 2, "set-url NAME URL")
        return _fields(repo.remotes.set_url(name, url, content))
    if verb == "get-url":
        (name,) = _take(words, 1, "get-url NAME")
        remotes = repo.remotes.list()
        if name not in remotes:
            raise CommandUsageError(f"the repository has no remote {name!r}")
        return _fields(remotes[name])
    raise CommandUsageError(f"{verb!r} is not one of {VERBS.replace(' ', ', ')}")


def _write_list(out: Output, remotes: Mapping[str, RemoteSettings], *, verbose: bool) -> None:
    for name, remote in remotes.items():
        content = f" (content: {remote.content})" if remote.content else ""
        url = f"\t{printable(f'{remote.url}{content}')}" if verbose else ""
        out.line(printable(name) + url)


def _fields(settings: RemoteSettings) -> dict[str, object]:
    fields: dict[str, object] = {"name": settings.name, "url": str(settings.url)}
    return fields | ({"content": str(settings.content)} if settings.content else {})


def _write_check(out: Output, report: ProbeReport) -> None:
    words = {True: "yes", False: "no", None: "?"}
    rows = []
    for promise in report.promises:
        colour = "green" if promise.kept else "red" if promise.needed else "yellow"
        rows.append((promise.name, (words[promise.kept], colour), printable(promise.detail)))
    out.lines(table_lines(out, rows, "<<<"))
    if report.ok:
        out.line(f"{out.style('ok:', 'green', 'bold')} the store keeps what mvc needs")
    else:
        lacks = ", ".join(promise.name for promise in report.failed)
        out.line(f"{out.style('not safe to push to:', 'red', 'bold')} it lacks {lacks}")


def _take(words: Sequence[str], count: int, usage: str) -> Sequence[str]:
    if len(words) != count:
        raise CommandUsageError(
            f"expected: mvc remote {usage}" if usage else f"unexpected {words[0]!r}"
        )
    return words


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
