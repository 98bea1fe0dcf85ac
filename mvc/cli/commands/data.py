"""Keep track of the data that models learn from."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import JSON, PROGRESS, check_alone
from mvc.cli.output import paged, printable, stdout, warn, write_json
from mvc.cli.parameters import CommandUsageError, Exit, arguments, flag, string
from mvc.cli.progress import byte_progress
from mvc.cli.render.data import (
    changes_fields,
    changes_text,
    diff_fields,
    info_fields,
    map_fields,
    report_fields,
    write_added,
    write_map_diffs,
    write_maps,
    write_report,
    write_shards,
)
from mvc.cli.session import open_repo, to_paths
from mvc.errors import NotFoundError
from mvc.history.revisions import split_range
from mvc.shards.shard_map import MAP_SUFFIX
from mvc.storage.urls import has_store_scheme

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mvc.repo import Repo

VERBS = "add ls diff verify rm seen who"


@dataclass(frozen=True, slots=True)
class _DataLine:
    """A command line: the words after the verb, and the options that its verb takes."""

    words: Sequence[str]
    options: Mapping[str, Any]
    as_json: bool


def data(
    words: list[str] = arguments("VERB [WORD...]"),
    name: str | None = string("--name NAME", "add: path of the map, without .shards."),
    store: bool = flag("--store", "add: also store the shards themselves, as mvc add does."),
    dtype: str | None = string(
        "--dtype TYPE", "add: type of the numbers in .bin files, to count them."
    ),
    quick: bool = flag("--quick", "verify: read no content."),
    full: bool = flag("--full", "verify: read every byte."),
    prove: bool = flag("--prove", "seen: compute the digest again, and compare it."),
    listing: bool = flag("--list", "seen: list all samples."),
    shard: str | None = string("--shard PATH", "who: any sample of this shard."),
    everything: bool = flag("--all", "who: on all branches."),
    progress: bool = PROGRESS,
    as_json: bool = JSON,
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
    given = {
        "name": name, "store": store or None, "dtype": dtype, "quick": quick or None, "full": full or None,
        "prove": prove or None, "list": listing or None, "shard": shard, "all": everything or None,
    }  # fmt: skip
    for option, value in given.items():
        if value is not None and option not in allowed.split():
            raise CommandUsageError(f"--{option} does not go with {verb}")
    run(open_repo(), _DataLine(rest, {**given, "progress": progress}, as_json))


def _add(repo: Repo, line: _DataLine) -> None:
    if len(line.words) != 1:
        hint = ": quote the pattern" if len(line.words) > 1 else ""
        raise CommandUsageError(f"add takes one folder, pattern or URL{hint}")
    name = line.options["name"]
    with byte_progress("hashing", wanted=line.options["progress"]) as bar:
        done = repo.data.add(
            line.words[0],
            name=name,
            store=bool(line.options["store"]),
            dtype=line.options["dtype"],
            folder=os.getcwd(),
            progress=bar,
        )
    for path, reason in done.warnings:
        warn(f"{path}: the number of records is not known: {reason}")
    if line.as_json:
        warnings = [{"path": path, "reason": reason} for path, reason in done.warnings]
        changes = changes_fields(done.changes)
        write_json(
            {
                **map_fields(done.path, done.shard_map),
                "read": done.read,
                "read_bytes": done.read_bytes,
                "changes": changes,
                "warnings": warnings,
            }
        )
    else:
        write_added(stdout(), done)


def _ls(repo: Repo, line: _DataLine) -> None:
    revisions, name = _split(repo, line.words, most=1)
    found = repo.data.list(revisions[0] if revisions else None, name)
    if line.as_json:
        write_json({"maps": [info_fields(one, with_list=name is not None) for one in found]})
    elif name is not None and found[0].shard_map is not None:
        write_shards(paged(), found[0].shard_map)
    elif found:
        write_maps(paged(), found)


def _diff(repo: Repo, line: _DataLine) -> None:
    revisions, name = _split(repo, line.words, most=2)
    old, new = [*revisions, None, None][:2]
    found = repo.data.diff(old, new, name=name)
    if line.as_json:
        write_json({"maps": [diff_fields(one) for one in found]})
    else:
        write_map_diffs(paged(), found)


def _verify(repo: Repo, line: _DataLine) -> None:
    quick, full = line.options["quick"], line.options["full"]
    check_alone([("--quick", quick), ("--full", full)])
    if len(line.words) > 1:
        raise CommandUsageError(f"unexpected argument {line.words[1]!r}")
    name = _name(line.words[0]) if line.words else None
    level: Any = "quick" if quick else "full" if full else "normal"
    with byte_progress("hashing", wanted=line.options["progress"]) as bar:
        found = repo.data.verify(name, level=level, progress=bar)
    if line.as_json:
        write_json(
            {
                "ok": all(report.ok for _, report in found),
                "maps": [report_fields(path, report) for path, report in found],
            }
        )
    elif not found:
        raise NotFoundError("there are no maps here", hint='"mvc data add DIR" makes one')
    else:
        for path, report in found:
            write_report(stdout(), path, report)
    if not all(report.ok for _, report in found):
        raise Exit(NEGATIVE)


def _rm(repo: Repo, line: _DataLine) -> None:
    if not line.words:
        raise CommandUsageError("rm takes a map, and perhaps shards of it")
    name, *shards = line.words
    path, changes = repo.data.remove(_name(name), shards)
    if line.as_json:
        write_json({"path": path, **changes_fields(changes)})
    elif shards:
        stdout().line(
            f"{printable(path)}: {changes_text(changes)}; their content is left where it is"
        )
    else:
        stdout().line(f"{printable(path)}: removed; its shards are left where they are")


def _seen(repo: Repo, line: _DataLine) -> None:
    from mvc.cli.render.ledger import seen_fields, write_seen

    if len(line.words) > 1:
        raise CommandUsageError(f"unexpected argument {line.words[1]!r}")
    word = line.words[0] if line.words else "HEAD"
    parts = split_range(word)
    if parts is not None and parts[1] != "..":
        raise CommandUsageError(f"{word!r}: seen takes one revision, or A..B")
    since, revision = (None, word) if parts is None else (parts[0], parts[2])
    found = repo.data.seen(revision, since, prove=bool(line.options["prove"]))
    with_list = bool(line.options["list"])
    if line.as_json:
        write_json(seen_fields(found, with_list=with_list))
    else:
        write_seen(paged(), found, with_list=with_list)
    if any(loader.is_proven is False for loader in found.loaders):
        raise Exit(NEGATIVE)


def _who(repo: Repo, line: _DataLine) -> None:
    from mvc.cli.render.ledger import who_fields, write_who

    shard, everything = line.options["shard"], bool(line.options["all"])
    words = list(line.words)
    sample = None if shard is not None or not words else words.pop(0)
    if sample is None and shard is None:
        raise CommandUsageError("who takes a sample, or --shard PATH")
    if len(words) > 1 or (words and everything):
        raise CommandUsageError(f"unexpected argument {words[-1]!r}")
    revision = words[0] if words else "HEAD"
    found = repo.data.who_saw(sample, shard=shard, revision=revision, everything=everything)
    if line.as_json:
        write_json(who_fields(found))
    else:
        write_who(paged(), found, shard)


_VERBS: dict[str, tuple[Callable[[Repo, _DataLine], None], str]] = {
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
    if len(rest) > 1:
        raise CommandUsageError(f"unexpected argument {rest[-1]!r}")
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
