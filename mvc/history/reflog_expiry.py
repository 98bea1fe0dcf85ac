"""Which entries of the reflogs are too old to keep, by Git's two limits.

An entry older than the first limit goes. One older than the second, shorter limit goes if the ref
no longer leads to what it names: what was amended or reset away is kept for a month, the ordinary
past for three. The newest entry of a log always stays, and so does the log of the stash, because
the stash is nothing but its log.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc.history.reflogs import find_entry
from mvc.history.refs import HEAD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mvc.history.git import GitHistory
    from mvc.history.objects import ObjectStore
    from mvc.history.refs import RefStore
    from mvc.history.values import ReflogEntry
    from mvc.ids import GitId

DAY_S = 24 * 3600
_KEPT_WHOLE = "refs/stash"


@dataclass(frozen=True, slots=True)
class ReflogExpiry:
    """How long the reflogs remember."""

    reachable_older_than_s: int = 90 * DAY_S  # age in seconds at which any entry goes
    # age at which an entry goes that its ref does not lead to
    unreachable_older_than_s: int = 30 * DAY_S
    # the time that ages are counted from, seconds since 1970
    now_s: float = field(default_factory=time.time)


class ExpiringLogs:
    """The reflogs of a repository, with what expired told apart."""

    def __init__(self, objects: ObjectStore, refs: RefStore, expiry: ReflogExpiry) -> None:
        self._objects = objects
        self._refs = refs
        self._expiry = expiry
        self._parents: dict[GitId, tuple[GitId, ...]] = {}

    def split(self, name: str) -> tuple[list[bytes], list[bytes]]:
        """Return the lines of a log that stay and those that expired, oldest first.

        A damaged line stays, for fsck to report.
        """
        lines = self._refs.logs.read_lines(name)
        if name == _KEPT_WHOLE:
            return lines, []
        reached: set[GitId] | None = None
        kept: list[bytes] = []
        expired: list[bytes] = []
        for line in lines[:-1]:
            entry = find_entry(line, name)
            if entry is not None and self._is_doubtful(entry) and reached is None:
                reached = self._reach(name)
            is_over = entry is not None and self._is_over(entry, reached or set())
            (expired if is_over else kept).append(line)
        return kept + lines[-1:], expired

    def _age_s(self, entry: ReflogEntry) -> float:
        return self._expiry.now_s - entry.time_s

    def _is_doubtful(self, entry: ReflogEntry) -> bool:
        """Return whether the age alone does not decide: it depends on where the ref leads."""
        age_s = self._age_s(entry)
        return self._expiry.unreachable_older_than_s < age_s <= self._expiry.reachable_older_than_s

    def _is_over(self, entry: ReflogEntry, reached: set[GitId]) -> bool:
        if self._age_s(entry) > self._expiry.reachable_older_than_s:
            return True
        values = {value for value in (entry.old, entry.new) if value is not None}
        return self._is_doubtful(entry) and not values <= reached

    def _reach(self, name: str) -> set[GitId]:
        """Return the commits that a ref leads to; for HEAD, those of all refs, as in Git."""
        if name == HEAD:
            tips = [self._refs.head().commit, *self._refs.values().values()]
        else:
            tips = [self._refs.find(name)]
        return self._ancestors(tip for tip in tips if tip is not None)

    def _ancestors(self, tips: Iterable[GitId]) -> set[GitId]:
        found: set[GitId] = set()
        pending = list(tips)
        while pending:
            commit = pending.pop()
            if commit not in found:
                found.add(commit)
                pending.extend(self._read_parents(commit))
        return found

    def _read_parents(self, commit: GitId) -> tuple[GitId, ...]:
        if commit not in self._parents:
            header = self._objects.find_header(commit)
            is_other = header is not None and header[0] != "commit"  # a tag leads on elsewhere
            self._parents[commit] = () if is_other else self._objects.read_commit(commit).parents
        return self._parents[commit]


def expire_reflogs(
    history: GitHistory, expiry: ReflogExpiry | None = None, *, dry_run: bool = False
) -> dict[str, int]:
    """Remove expired entries from all reflogs, durably; return how many by ref.

    The newest entry of a log stays. The ages default to Git's 90 and 30 days.
    """
    refs, counts = history.refs, dict[str, int]()
    with refs.lock.hold():
        if not dry_run:
            refs.logs.remove_strays()
        logs = ExpiringLogs(history.objects, refs, expiry or ReflogExpiry())
        for name in refs.logs.names():
            kept, expired = logs.split(name)
            if expired:
                counts[name] = len(expired)
                if not dry_run:
                    refs.rewrite_log(name, kept)
    return counts
