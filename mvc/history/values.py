"""The values that go in and out of the history, without dulwich.

The index is path → blob plus stat data, and the stat data answer "did this file change?" without
reading it. They can be wrong in one case: a file written twice within one tick of the clock, the
second time after it was hashed, keeps its time and perhaps its size. Git's answer, taken over here:
an entry whose time is not older than the index file itself is *racy*, never trusted, and when it is
carried over into a younger index, it is written with size 0, so that it can never match before the
content has been compared and made a new entry. The mark sits on the entry (``racy``), so it
survives any way of building a new ``Index`` from an old one.
"""

from __future__ import annotations

import re
import stat as stat_bits
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from mvc.history.messages import message_body, message_subject, parse_trailers
from mvc.ids import GitId

if TYPE_CHECKING:
    from mvc.fs import FileStat

MODE_FILE = 0o100644
MODE_EXECUTABLE = 0o100755
MODE_SYMLINK = 0o120000
FILE_MODES = frozenset({MODE_FILE, MODE_EXECUTABLE, MODE_SYMLINK})
"""The kinds of entry that mvc keeps; folders follow from the paths."""
SWITCH_TEXT = "checkout: moving from {} to {}"
_SWITCH = re.compile(SWITCH_TEXT.format(r"(\S+)", r"(\S+)"))

EMPTY_BLOB = GitId("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")
NO_ID = GitId("0" * 40)
"""How Git writes "nothing" where an id must stand, as in a reflog."""

_WORD = 0xFFFFFFFF


def clean_mode(mode: int) -> int | None:
    """Return a stored mode as mvc keeps it; None if it is neither a file nor a link."""
    if stat_bits.S_ISREG(mode):
        # Old Gits stored other permission bits; only this one has a meaning.
        return MODE_EXECUTABLE if mode & stat_bits.S_IXUSR else MODE_FILE
    return mode if mode in FILE_MODES else None


@dataclass(frozen=True, slots=True)
class Identity:
    """Who did something: a name and a mail address."""

    name: str
    email: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who did something, and when: what Git records with every commit, tag and move of a ref."""

    identity: Identity
    time_s: int  # seconds since 1970
    timezone_s: int  # offset of that clock from UTC

    @classmethod
    def now(cls, identity: Identity, time_s: int | None = None) -> Stamp:
        """Return a stamp of now (or of a given time) in this machine's current timezone."""
        now_s = int(time.time())
        timezone_s = time.localtime(now_s).tm_gmtoff
        return cls(identity, now_s if time_s is None else time_s, timezone_s)


@dataclass(frozen=True, slots=True)
class Head:
    """Where HEAD is."""

    branch: str | None  # short name of the current branch; None while HEAD is detached
    commit: GitId | None  # None before the first commit of a branch


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """What a commit records for one path: Git's file mode and the blob."""

    mode: int
    blob: GitId


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit."""

    id: GitId
    tree: GitId  # the tree it records
    parents: tuple[GitId, ...]  # the first is the branch it was made on
    author: Identity  # who wrote it
    committer: Identity  # who recorded it
    author_time_s: int  # when it was written, seconds since 1970
    author_timezone_s: int  # offset of that clock from UTC
    commit_time_s: int  # when it was recorded, seconds since 1970
    message: str  # the whole message as stored

    @property
    def subject(self) -> str:
        """The first paragraph, on one line."""
        return message_subject(self.message)

    @property
    def body(self) -> str:
        """What stands between the subject and the trailers."""
        return message_body(self.message)

    @property
    def trailers(self) -> tuple[tuple[str, str], ...]:
        """The ``Key: value`` lines at the end of the message, in order."""
        return parse_trailers(self.message)


@dataclass(frozen=True, slots=True)
class ReflogEntry:
    """One move of a ref."""

    old: GitId | None  # where it was; None when it was made
    new: GitId | None  # where it went; None when it was deleted
    who: Identity
    time_s: int  # seconds since 1970
    timezone_s: int  # offset of that clock from UTC
    message: str  # why, one line

    @property
    def switch(self) -> tuple[str, str] | None:
        """The branches or commits that HEAD went from and to, if this move is a switch."""
        match = _SWITCH.match(self.message)
        return None if match is None else (match[1], match[2])


@dataclass(frozen=True, slots=True)
class HistoryProblem:
    """One thing that ``check`` found."""

    # ``object-damaged``, ``object-missing``, ``ref-broken``, ``head-broken``, ``ref-missing``,
    # ``reflog-broken`` or ``index-broken``
    kind: str
    what: str  # the object id, ref or file it is about
    detail: str


def stored_size(size_bytes: int) -> int:
    """Return a file's length as Git's index holds it: modulo 2**32, 0 only for empty files."""
    word = size_bytes & _WORD
    return word if word or not size_bytes else 0x80000000


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the index knows of one path.

    The stat data are those of the file when it was read, 0 if there is no such file; size, inode
    and device are modulo 2**32 once they were stored.
    """

    path: str  # ``/``-separated, relative to the worktree
    blob: GitId
    mode: int
    size_bytes: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    device: int = 0
    skip_worktree: bool = False  # the file need not exist in the worktree (a sparse checkout)
    # read from an index that is not younger than the file; see the module's theory
    racy: bool = field(default=False, compare=False)

    @property
    def version(self) -> TreeEntry:
        """What a commit of the index records."""
        return TreeEntry(self.mode, self.blob)

    def matches(self, stat: FileStat) -> bool:
        """Return whether a file surely is the one that was staged, from its stat data alone."""
        if self.racy or (self.size_bytes == 0 and self.blob != EMPTY_BLOB):  # stored as racy
            return False
        mode = MODE_EXECUTABLE if stat.is_executable else MODE_FILE
        if stat.is_symlink:
            mode = MODE_SYMLINK
        return (
            (stat.is_symlink or stat.is_regular)
            and self.mode == mode
            and self.mtime_ns == stat.mtime_ns
            and self.ctime_ns == stat.ctime_ns
            and self.inode & _WORD == stat.inode & _WORD
            and stored_size(self.size_bytes) == stored_size(stat.size_bytes)
        )


Stages: TypeAlias = "tuple[TreeEntry | None, TreeEntry | None, TreeEntry | None]"
"""An undecided path as the base, ours and theirs have it: stages 1 to 3 of Git's index."""


@dataclass(frozen=True, slots=True)
class Index:
    """The staging area: what the next commit will hold."""

    entries: dict[str, IndexEntry] = field(default_factory=dict)
    timestamp_ns: int = 0  # when the index file was written; 0 if it was not read from a file
    # paths that a merge left undecided, which have no entry: as the base, ours and theirs have them
    unmerged: dict[str, Stages] = field(default_factory=dict)
    # those of them that were committed from memory, and are not in the worktree
    asleep: frozenset[str] = frozenset()

    def blobs(self) -> Iterator[tuple[str, GitId]]:
        """Yield (path, blob) of everything that the index names, undecided versions included."""
        yield from ((path, entry.blob) for path, entry in self.entries.items())
        for path, stages in self.unmerged.items():
            yield from ((path, stage.blob) for stage in stages if stage is not None)

    def as_ours(self) -> Index:
        """Return it with every undecided path as ours has it."""
        ours = {
            path: IndexEntry(path, stage.blob, stage.mode, skip_worktree=path in self.asleep)
            for path, (_, stage, _) in self.unmerged.items()
            if stage is not None
        }
        return Index({**self.entries, **ours}, self.timestamp_ns)

    def is_racy(self, entry: IndexEntry) -> bool:
        """Return whether an entry's stat data cannot be trusted: compare the content instead."""
        return entry.racy or 0 < self.timestamp_ns <= entry.mtime_ns
