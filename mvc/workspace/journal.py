"""The journal of a transition: what is to happen, on disk before it begins to happen.

One line of JSON and the BLAKE3 of that line, so that a damaged journal is never followed. A sound one
is not trusted either: it may have come with someone else's repository. So every path must be one
that a tree may hold, and a staged file must be where mvc stages files. Pure, except for
``read_journal``; ``transition`` carries the journal out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from mvc.errors import CorruptionError, FormatError, UnsupportedError, translate_os_errors
from mvc.fs import TEMP_SUFFIX, open_file
from mvc.history.names import decode_path, encode_path, find_path_fault
from mvc.history.values import FILE_MODES, Stages, TreeEntry
from mvc.ids import GitId, is_git_id
from mvc.workspace.pending import HEADS, MESSAGE, OPTIONS, ORIGIN, STEPS, TODO, Pending

if TYPE_CHECKING:
    from pathlib import Path


MAX_JOURNAL_BYTES = 2**30
"""Two million files of 500 bytes each."""
_VERSION = 2
_STAGED = re.compile(rf"(\.mvc/tmp/[0-9a-f]{{16}}/|(?P<folder>.+)/)?[0-9a-f]{{16}}{TEMP_SUFFIX}")


class Was(msgspec.Struct, frozen=True):
    """The stat of a file before the transition; a file that looks different is the user's.

    Without the inode: a repository that was copied or restored after a crash has others.
    """

    size_bytes: int
    mtime_ns: int


class FileWrite(msgspec.Struct, frozen=True):
    """One file to put in place; ``staged`` is where its durable bytes wait.

    ``into_index`` false leaves the index entry alone (``restore --source`` of Git).
    """

    path: str
    mode: int
    blob: str
    into_index: bool = True
    staged: str = ""
    staged_mark: Was | None = None
    was: Was | None = None


class FileRemoval(msgspec.Struct, frozen=True):
    """One file to remove, with its index entry unless ``from_index`` is false."""

    path: str
    was: Was | None = None
    from_index: bool = True


class EntryChange(msgspec.Struct, frozen=True):
    """One index entry to set without touching a file; blob None drops the entry."""

    path: str
    mode: int = 0
    blob: str | None = None
    skip_worktree: bool = False


class Undecided(msgspec.Struct, frozen=True):
    """One path that a merge leaves undecided: (mode, blob) in base, ours and theirs, or None."""

    path: str
    asleep: bool
    stages: tuple[tuple[int, str] | None, tuple[int, str] | None, tuple[int, str] | None]

    def entries(self) -> Stages:
        """Return them as the index has them."""
        base, ours, theirs = (
            None if stage is None else TreeEntry(stage[0], GitId(stage[1])) for stage in self.stages
        )
        return base, ours, theirs


class Mark(msgspec.Struct, frozen=True):
    """A file of Git's beside HEAD that marks work under way, such as ``MERGE_HEAD``.

    In ``content`` each byte is one character; None removes the file.
    """

    name: str
    content: str | None = None


MARKS = (
    "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "CHERRY_PICK_HEAD", "REVERT_HEAD", "ORIG_HEAD",
    "sequencer/head", "sequencer/todo", "sequencer/opts", "sequencer/abort-safety",
)  # fmt: skip
"""The names that a mark may have."""


class HeadMove(msgspec.Struct, frozen=True):
    """Where HEAD goes: onto a branch, detached onto a commit, or its branch moves to a commit.

    ``stay`` moves nothing, but like the others it demands that HEAD still is where it was.
    ``on_branch`` and ``expected`` are where it is before: branch (None: detached) and commit.
    ``branch_at`` is the commit that the branch to go onto is on.
    """

    kind: str  # "branch", "detach", "move" or "stay"
    target: str
    on_branch: str | None
    expected: str | None
    message: str
    name: str
    email: str
    branch_at: str | None = None


class Transition(msgspec.Struct, frozen=True):
    """Everything that is to happen, in the order in which it happens."""

    writes: tuple[FileWrite, ...] = ()
    removals: tuple[FileRemoval, ...] = ()
    entries: tuple[EntryChange, ...] = ()
    head: HeadMove | None = None
    undecided: tuple[Undecided, ...] = ()
    marks: tuple[Mark, ...] = ()
    version: int = _VERSION

    def paths(self) -> tuple[str, ...]:
        """Return every repository path that is touched."""
        return (
            *(write.path for write in self.writes),
            *(removal.path for removal in self.removals),
            *(entry.path for entry in self.entries),
            *(entry.path for entry in self.undecided),
        )


_DECODER = msgspec.json.Decoder(Transition)


def encode_journal(transition: Transition) -> bytes:
    """Return the bytes of a journal."""
    # Paths may hold bytes that are not UTF-8, and JSON cannot: each byte becomes one character.
    line = msgspec.json.encode(_map_paths(transition, lambda path: encode_path(path).decode("l1")))
    return line + b"\n" + blake3(line).hexdigest().encode() + b"\n"


def parse_journal(data: bytes) -> Transition:
    """Return what a journal says, every rule checked: a FormatError if no mvc would write it."""
    line, _, rest = data.partition(b"\n")
    if rest != blake3(line).hexdigest().encode() + b"\n":
        raise CorruptionError("its checksum does not match")
    try:
        version = msgspec.json.decode(line, type=_Version).version
        if version > _VERSION:
            raise UnsupportedError(f"journal of version {version}", hint="upgrade mvc")
        read = _DECODER.decode(line)
        transition = _map_paths(read, lambda path: decode_path(path.encode("l1")))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise FormatError(f"malformed: {error}") from error
    _check(transition)
    return transition


class _Version(msgspec.Struct):
    version: int = _VERSION


def _map_paths(transition: Transition, change: Callable[[str], str]) -> Transition:
    replace = msgspec.structs.replace
    return replace(
        transition,
        writes=tuple(
            replace(write, path=change(write.path), staged=change(write.staged))
            for write in transition.writes
        ),
        removals=tuple(replace(part, path=change(part.path)) for part in transition.removals),
        entries=tuple(replace(part, path=change(part.path)) for part in transition.entries),
        undecided=tuple(replace(part, path=change(part.path)) for part in transition.undecided),
    )


def _check(transition: Transition) -> None:
    for path in transition.paths():
        fault = find_path_fault(path)
        if fault is not None:
            raise FormatError(f"path {path[:200]!r} {fault}")
    for write in transition.writes:
        _check_content(write.path, write.mode, write.blob)
        if not _may_be_staged(write):
            raise FormatError(f"{write.staged[:200]!r} is not where files are staged")
    for entry in transition.entries:
        if entry.blob is not None:
            _check_content(entry.path, entry.mode, entry.blob)
    _check_merge(transition)
    if transition.head is not None:
        move = transition.head
        commits = [move.expected, move.branch_at if move.kind == "branch" else move.target]
        if move.kind not in ("branch", "detach", "move", "stay") or not all(
            commit is None or is_git_id(commit) for commit in commits
        ):
            raise FormatError(f"HEAD cannot go to {move.kind[:20]!r} {move.target[:80]!r}")


def _check_merge(transition: Transition) -> None:
    for undecided in transition.undecided:
        for stage in undecided.stages:
            if stage is not None:
                _check_content(undecided.path, *stage)
    for mark in transition.marks:
        if mark.name not in MARKS:
            raise FormatError(f"{mark.name[:80]!r} is not a file that mvc keeps beside HEAD")


def _check_content(path: str, mode: int, blob: str) -> None:
    if mode not in FILE_MODES or not is_git_id(blob):
        raise FormatError(f"path {path[:200]!r} has mode {mode:o} and blob {blob[:80]!r}")


def _may_be_staged(write: FileWrite) -> bool:
    """Return whether a staged file is in a scratch folder, or in a folder above its target."""
    match = _STAGED.fullmatch(write.staged)
    if match is None:
        return False
    folder = match["folder"]
    return folder is None or write.path.startswith(folder + "/")


def read_journal(path: Path) -> Transition | None:
    """Return the journal at a path, or None if there is none."""
    hint = f'remove {path}; "mvc status" then shows how far that checkout got'
    try:
        with translate_os_errors(f"read {path}"), open_file(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            data = file.read(min(MAX_JOURNAL_BYTES, size_bytes))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError as error:
        raise CorruptionError(f"{path} is a folder", hint=hint) from error
    try:
        return parse_journal(data)
    except FormatError as error:
        text = f"the journal of an interrupted checkout is damaged: {error.message}"
        raise CorruptionError(text, hint=hint) from error


_ORIG_HEAD = "ORIG_HEAD"
ENDED = tuple(Mark(name) for name in MARKS if name != _ORIG_HEAD)
"""Removes all marks: nothing is under way any more."""


def make_marks(
    pending: Pending, head: GitId | None, conflicts: Sequence[str] = ()
) -> tuple[Mark, ...]:
    """Return the marks that say what is under way; the message names the paths in conflict."""
    lines = "".join(f"#\t{path}\n" for path in conflicts)
    notes = f"\n# Conflicts:\n{lines}" if lines else ""
    sequence = _sequence(pending, [*pending.heads, *pending.rest]) if pending.rest else {}
    texts = {
        HEADS[pending.kind]: "".join(f"{one}\n" for one in pending.heads),
        MESSAGE: pending.message.rstrip("\n") + "\n" + notes,
        **sequence,
    }
    return _make(texts) + mark_origin(head)


def mark_done(pending: Pending) -> tuple[Mark, ...]:
    """Return the marks once the commit is made: of a sequence, what is left to do."""
    return _make(_sequence(pending, pending.rest)) if pending.rest else ENDED


def mark_origin(head: GitId | None) -> tuple[Mark, ...]:
    """Return the mark of where HEAD was before."""
    return () if head is None else (_make_mark(_ORIG_HEAD, f"{head}\n"),)


def _sequence(pending: Pending, commits: Sequence[GitId]) -> dict[str, str]:
    options = "".join(f"\t{key} = {value}\n" for key, value in pending.options.items())
    step = STEPS[pending.kind]
    return {
        TODO: "".join(f"{step} {commit}\n" for commit in commits),
        ORIGIN: f"{pending.origin}\n",
        **({OPTIONS: f"[options]\n{options}"} if options else {}),
    }


def _make(texts: Mapping[str, str]) -> tuple[Mark, ...]:
    """Return marks with these texts; all others go."""
    made = tuple(_make_mark(name, text) for name, text in texts.items())
    return tuple(mark for mark in ENDED if mark.name not in texts) + made


def _make_mark(name: str, text: str) -> Mark:
    return Mark(name, text.encode("utf-8", "surrogateescape").decode("latin-1"))
