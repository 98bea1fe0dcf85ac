"""Git notes that mvc writes about commits and reads again: paragraphs of ``Key: value``.

A note changes no commit's id, and ``git log --notes=NAME`` of stock Git shows it. Anyone may write
such notes with stock Git too. So a paragraph that does not begin with the kind's own key is left
alone, and what is read is taken as far as it makes sense and cut where it would be endless.

This module is part of ``log`` and loads nothing heavy.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from mvc.errors import FormatError
from mvc.history.notes import NoteFinder, find_notes, read_notes, write_notes

if TYPE_CHECKING:
    from mvc.history.git import GitHistory
    from mvc.history.values import Stamp
    from mvc.ids import GitId

_Entry = TypeVar("_Entry")

MAX_LINE_CHARS = 500
"""How long a reason or remark may be; an ellipsis replaces the rest."""

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", re.ASCII)
_EMPTY_LINE = re.compile(r"\n[ \t]*\n")


@dataclass(frozen=True, slots=True)
class NoteKind(Generic[_Entry]):
    """One kind of note: its ref, its name in messages, and how the text of a note is parsed.

    ``parse`` raises FormatError for a damaged note. If ``is_utf8``, a note that is not UTF-8 is
    damaged; else its odd bytes are carried along.
    """

    ref: str
    name: str
    parse: Callable[[GitId, str], tuple[_Entry, ...]]
    max_bytes: int = 2**20
    is_utf8: bool = False


class Notebook(Generic[_Entry]):
    """The notes of one kind. They are listed and read again only after their ref has moved."""

    def __init__(self, history: GitHistory, kind: NoteKind[_Entry]) -> None:
        self._history = history
        self._kind = kind
        self._found: tuple[GitId, NoteFinder] | None = None
        self._read: tuple[GitId, dict[GitId, tuple[_Entry, ...]]] | None = None

    def open(self) -> NoteFinder | None:
        """Return what finds single notes as they are now, or None if there never was one."""
        tip = self._history.find_ref(self._kind.ref)
        if tip is None:
            return None
        if self._found is None or self._found[0] != tip:
            finder = find_notes(self._history, self._kind.ref)
            if finder is None:
                return None
            self._found = (tip, finder)
        return self._found[1]

    def find_note(self, commit: GitId) -> GitId | None:
        """Return the blob of a commit's note, or None; only the folders above it are read."""
        notes = self.open()
        return None if notes is None else notes.find(commit)

    def find(self, commit: GitId) -> tuple[_Entry, ...]:
        """Return the entries of a commit's note, oldest first; none if it has no note."""
        note = self.find_note(commit)
        return () if note is None else self.parse(commit, note)

    def read(self) -> Mapping[GitId, tuple[_Entry, ...]]:
        """Return commit → entries of all notes that have any; damaged notes are left out."""
        tip = self._history.find_ref(self._kind.ref)
        if tip is None:
            return {}
        if self._read is None or self._read[0] != tip:
            entries: dict[GitId, tuple[_Entry, ...]] = {}
            for commit, note in read_notes(self._history, self._kind.ref).items():
                with contextlib.suppress(FormatError):
                    found = self.parse(commit, note)
                    if found:
                        entries[commit] = found
            self._read = (tip, entries)
        return self._read[1]

    def check(self) -> Iterator[tuple[GitId, str]]:
        """Yield (commit, what is wrong) for every damaged note."""
        for commit, note in read_notes(self._history, self._kind.ref).items():
            try:
                self.parse(commit, note)
            except FormatError as error:
                yield commit, error.message

    def find_paragraphs(self, commit: GitId) -> list[str]:
        """Return the paragraphs of a commit's note; none if it has no note."""
        note = self.find_note(commit)
        return [] if note is None else split_paragraphs(self._read_text(commit, note))

    def write(self, changes: Mapping[GitId, Sequence[str]], *, message: str, stamp: Stamp) -> None:
        """Replace the notes of some commits durably; no paragraphs take the note away."""
        notes = {
            commit: ("\n\n".join(paragraphs) + "\n").encode("utf-8", "surrogateescape")
            if paragraphs
            else None
            for commit, paragraphs in changes.items()
        }
        write_notes(self._history, self._kind.ref, notes, message=message, stamp=stamp)

    def parse(self, commit: GitId, note: GitId) -> tuple[_Entry, ...]:
        """Return the entries of a note (a blob)."""
        return self._kind.parse(commit, self._read_text(commit, note))

    def _read_text(self, commit: GitId, note: GitId) -> str:
        what = f"{self._kind.name} of commit {commit}"
        size_bytes = self._history.find_blob_size(note)
        if size_bytes is None or size_bytes > self._kind.max_bytes:
            raise FormatError(f"{what} is missing or over the limit")
        try:
            errors = "strict" if self._kind.is_utf8 else "surrogateescape"
            return self._history.read_blob(note).decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise FormatError(f"{what} is not text") from error


def split_paragraphs(text: str) -> list[str]:
    """Return the parts of a text between empty lines."""
    return [part.strip("\n") for part in _EMPTY_LINE.split(text) if part.strip()]


def one_line(text: str) -> str:
    """Return a text on one line: spaces for what cannot be printed, shortened if it is long."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    line = " ".join(plain.split())
    return line if len(line) <= MAX_LINE_CHARS else line[: MAX_LINE_CHARS - 1] + "…"


def time_text(time_s: int) -> str:
    """Return seconds since 1970 as ``2026-11-20T16:00:00Z``."""
    return time.strftime(_TIME_FORMAT, time.gmtime(time_s))


def find_time(text: str) -> int | None:
    """Return the seconds since 1970 that ``time_text`` turned into this text, or None."""
    if not _TIME.fullmatch(text):
        return None
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        return None
