"""Keep track of the data that models learn from."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import PROGRESS_JSON, check_alone, check_no_more, check_options
from mvc.cli.output import Output, Shown, printable, warn
from mvc.cli.parameters import CommandUsageError, Exit, arguments, flag, named, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.data import (
    added_fields,
    changes_fields,
    changes_text,
    diff_fields,
    info_fields,
    report_fields,
    seen_fields,
    who_fields,
    write_added,
    write_map_diffs,
    write_maps,
    write_reports,
    write_seen,
    write_shards,
    write_who,
)
from mvc.cli.session import open_repo, to_paths
from mvc.errors import NotFoundError
from mvc.history.revisions import split_range
from mvc.shards.shard_map import MAP_SUFFIX
from mvc.storage.urls import has_store_scheme

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mvc.repo import Repo

    Words = list[str]
    Options = Mapping[str, Any]

VERBS = "add ls diff verify rm seen who"


_OPTIONS = named(
    string("--name NAME", "add: path of the map, without .shards."),
    flag("--store", "add: also store the shards themselves, as mvc add does."),
    string("--dtype TYPE", "add: type of the numbers in .bin files, to count them."),
    flag("--quick", "verify: read no content."),
    flag("--full", "verify: read every byte."),
    flag("--prove", "seen: compute the digest again, and compare it."),
    flag("--list", "seen: list all samples."),
    string("--shard PATH", "who: any sample of this shard."),
    flag("--all", "who: on all branches."),
)


def data(
    words: list[str] = arguments("VERB [WORD...]"),
    options: dict[str, Any] = _OPTIONS,
    shown: Shown = PROGRESS_JSON,
) -> None:
    """Keep track of the data that models learn from.

    A shard map is a small file, data/train.shards, with path, size, SHA-256 and number of records of
    every file of a data set. It is committed like any file; the data stays where it is.

    add SOURCE makes or renews the map of a folder, a quoted pattern ('data/*.parquet') or the URL of
    one (s3://bucket/train), and stages it. Only what changed is read. ls [REV] [MAP] lists maps, or
    the shards of one. diff [REV [REV]] [MAP] shows which shards differ. rm MAP [SHARD...] removes a
    map, or shards from it, and no content.

    verify [MAP] compares maps with the shards and names each that is missing, changed, swapped,
    stale (listing and store disagree) or extra; the exit code is 1 if there is one. What was not
    read since it changed is read.

    seen [REV] tells which samples the state of a training commit saw since its parent, and which
    were skipped and why; seen A..B since A. who SAMPLE (SOURCE:INDEX, an index or a key), or who
    --shard PATH, tells which commits saw it. See docs/data-ledger.md.
    """
    verb, *rest = words or ["ls"]
    if verb not in _VERBS:
        raise CommandUsageError(f"{verb!r} is not one of {VERBS.replace(' ', ', ')}")
    run, allowed = _VERBS[verb]
    check_options(verb, options, allowed)
    run(open_repo(), rest, options, shown)


def _add(repo: Repo, words: Words, options: Options, shown: Shown) -> None:
    if len(words) != 1:
        hint = ": quote the pattern" if len(words) > 1 else ""
        raise CommandUsageError(f"add takes one folder, pattern or URL{hint}")
    how = {name: options[name] for name in ("name", "store", "dtype")}
    with byte_progress("hashing", wanted=shown.progress):
        done = repo.data.add(words[0], **how, folder=os.getcwd())
    for path, reason in done.warnings:
        warn(f"{path}: the number of records is not known: {reason}")
    shown.answer(lambda: added_fields(done), write_added, done)


def _ls(repo: Repo, words: Words, _: Options, shown: Shown) -> None:
    revisions, name = _split(repo, words, most=1)
    found = repo.data.list(revisions[0] if revisions else None, name)

    def fields() -> dict[str, object]:
        return {"maps": [info_fields(info, with_list=name is not None) for info in found]}

    if name is not None and found[0].shard_map is not None:
        shown.page(fields, write_shards, found[0].shard_map)
    else:
        shown.page(fields, write_maps, found)


def _diff(repo: Repo, words: Words, _: Options, shown: Shown) -> None:
    revisions, name = _split(repo, words, most=2)
    old, new = [*revisions, None, None][:2]
    found = repo.data.diff(old, new, name=name)
    shown.page(lambda: {"maps": list(map(diff_fields, found))}, write_map_diffs, found)


def _verify(repo: Repo, words: Words, options: Options, shown: Shown) -> None:
    check_alone([("--quick", options["quick"]), ("--full", options["full"])])
    check_no_more(words, 1)
    name = _name(words[0]) if words else None
    level: Any = "quick" if options["quick"] else "full" if options["full"] else "normal"
    with byte_progress("hashing", wanted=shown.progress):
        found = repo.data.verify(name, level=level)
    if not found and not shown.as_json:
        raise NotFoundError("there are no maps here", hint='"mvc data add DIR" makes one')
    ok = all(report.ok for _, report in found)
    maps = [report_fields(path, report) for path, report in found]
    shown.answer({"ok": ok, "maps": maps}, write_reports, found)
    if not ok:
        raise Exit(NEGATIVE)


def _rm(repo: Repo, words: Words, _: Options, shown: Shown) -> None:
    if not words:
        raise CommandUsageError("rm takes a map, and perhaps shards of it")
    name, *shards = words
    path, changes = repo.data.remove(_name(name), shards)
    text = f"{printable(path)}: removed; its shards are left where they are"
    if shards:
        text = f"{printable(path)}: {changes_text(changes)}; their content is left where it is"
    shown.answer({"path": path, **changes_fields(changes)}, Output.line, text)


def _seen(repo: Repo, words: Words, options: Options, shown: Shown) -> None:
    check_no_more(words, 1)
    word = words[0] if words else "HEAD"
    parts = split_range(word)
    if parts is not None and parts[1] != "..":
        raise CommandUsageError(f"{word!r}: seen takes one revision, or A..B")
    since, revision = (None, word) if parts is None else (parts[0], parts[2])
    found = repo.data.seen(revision, since, prove=options["prove"])
    with_list = options["list"]
    fields = partial(seen_fields, found, with_list=with_list)
    shown.page(fields, write_seen, found, with_list=with_list)
    if any(loader.is_proven is False for loader in found.loaders):
        raise Exit(NEGATIVE)


def _who(repo: Repo, words: Words, options: Options, shown: Shown) -> None:
    shard, everything = options["shard"], options["all"]
    sample = None if shard is not None or not words else words.pop(0)
    if sample is None and shard is None:
        raise CommandUsageError("who takes a sample, or --shard PATH")
    if len(words) > 1 or (words and everything):
        raise CommandUsageError(f"unexpected argument {words[-1]!r}")
    revision = words[0] if words else "HEAD"
    found = repo.data.who_saw(sample, shard=shard, revision=revision, everything=everything)
    shown.page(lambda: who_fields(found), write_who, found, shard)


_VERBS: dict[str, tuple[Callable[[Repo, Words, Options, Shown], None], str]] = {
    "add": (_add, "name store dtype"),
    "ls": (_ls, ""),
    "diff": (_diff, ""),
    "verify": (_verify, "quick full"),
    "rm": (_rm, ""),
    "seen": (_seen, "prove list"),
    "who": (_who, "shard all"),
}
"""What each verb does, and which options it takes."""


def _split(repo: Repo, words: Sequence[str], *, most: int) -> tuple[list[str], str | None]:
    """Return the revisions, at most ``most``, and the map that words name."""
    rest = list(words)
    revisions: list[str] = []
    while rest and len(revisions) < most:
        if len(rest) == 1 and _is_map(repo, rest[0], revisions):
            break
        revision = rest.pop(0)
        parts = split_range(revision)
        if parts is not None and most > 1 and not revisions and parts[1] == "..":
            revisions += [parts[0], parts[2]]
        else:
            revisions.append(revision)
    for revision in revisions:
        try:
            repo.resolve(revision)
        except NotFoundError as error:
            raise NotFoundError(
                f"{revision!r} is neither a revision nor a map", hint='"mvc data ls" lists the maps'
            ) from error
    check_no_more(rest, 1)
    return revisions, _name(rest[0]) if rest else None


def _is_map(repo: Repo, word: str, revisions: Sequence[str]) -> bool:
    for revision in (None, *revisions):
        with contextlib.suppress(NotFoundError):
            return bool(repo.data.names(revision, _name(word)))
    return False


def _name(word: str) -> str:
    """Return a map as the repository takes it: a word with a slash, or of a file, is a path."""
    if has_store_scheme(word):
        raise CommandUsageError(f"{word!r} is a URL: name its map")
    is_path = "/" in word or os.path.lexists(word) or os.path.lexists(word + MAP_SUFFIX)
    return to_paths([word])[0] if is_path else word
