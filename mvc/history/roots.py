"""Where reachability begins: HEAD, refs, reflogs, and the names Git keeps beside HEAD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.history.reflog_expiry import ExpiringLogs, ReflogExpiry, entries_of
from mvc.history.refnames import NOTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc.history.commitstore import CommitStore
    from mvc.history.refs import RefStore
    from mvc.ids import GitId

_TOP_NAMES = ("ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD")


def find_roots(
    objects: CommitStore,
    refs: RefStore,
    *,
    notes: bool = False,
    expiry: ReflogExpiry | None = None,
) -> list[GitId]:
    """Return every commit, tag or other object that something names, each once; not the index.

    Args:
        objects: tells which exist.
        refs: the refs and logs.
        notes: also notes, which hold texts and no files.
        expiry: leave out what only expired entries of the reflogs know.

    Raises:
        CorruptionError: HEAD or a ref is damaged; a commit, where ``expiry`` made it look at one.
    """
    found = [refs.head().commit]
    found += [value for name, value in refs.values().items() if notes or not _is_note(name)]
    found += _existing(objects, (refs.find(name) for name in _TOP_NAMES))
    logs = ExpiringLogs(objects, refs, expiry) if expiry is not None else None
    for name in refs.logs.names():
        if not notes and _is_note(name):
            continue
        lines = refs.logs.read_lines(name) if logs is None else logs.split(name)[0]
        for entry in entries_of(lines, name):
            # A log may know commits that a stock Git has pruned since.
            found += _existing(objects, iter((entry.new, entry.old)))
    return list(dict.fromkeys(one for one in found if one is not None))


def _is_note(name: str) -> bool:
    return name.startswith(NOTES)


def _existing(objects: CommitStore, values: Iterator[GitId | None]) -> Iterator[GitId]:
    return (value for value in values if value is not None and objects.has(value))
