"""Reflogs: where each ref was before, one line per move, the format of stock Git.

A crash can tear the last line. It is passed over when reading and cut off before the next append
(``fs.append_line``), so it never glues to another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import CorruptionError, FormatError
from mvc.history.object_formats import encode_stamp, parse_id, parse_identity, parse_stamp
from mvc.history.translate import FSCK_HINT, translate_damage
from mvc.history.values import NO_ID, ReflogEntry, Stamp

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.ids import GitId

_MAX_LOG_BYTES = 1 << 30
_LOGGED = ("refs/heads/", "refs/remotes/", "refs/notes/", "refs/stash")


@dataclass(frozen=True, slots=True)
class Reason:
    """What a reflog says about a move: why (line breaks become spaces), who and when."""

    message: str
    stamp: Stamp

    def encode(self, old: GitId | None, new: GitId | None) -> bytes:
        """Return the line of one move."""
        message = b" ".join(self.message.encode("utf-8", "replace").split())
        ids = f"{old or NO_ID} {new or NO_ID} ".encode()
        return b"%s%s\t%s\n" % (ids, encode_stamp(self.stamp), message)


class Reflogs:
    """The ``logs`` folder of a repository."""

    def __init__(self, git_dir: Path) -> None:
        self._folder = git_dir / "logs"

    def wants(self, name: str) -> bool:
        """Return whether moves of a ref are logged: branches, and others once a log exists."""
        return (
            name == "HEAD" or name.startswith(_LOGGED) or fs.find_stat(self.path(name)) is not None
        )

    def path(self, name: str) -> Path:
        """Return the place of a ref's log."""
        return self._folder / name

    def append(self, name: str, old: GitId | None, new: GitId | None, reason: Reason) -> int:
        """Add a move durably; return the log's length before it, for ``undo``."""
        with translate_damage(f"reflog of {name}"):
            return fs.append_line(self.path(name), reason.encode(old, new))

    def undo(self, name: str, size_bytes: int) -> None:
        """Take back the append that returned ``size_bytes``."""
        fs.truncate_file(self.path(name), size_bytes)

    def read(self, name: str) -> list[ReflogEntry]:
        """Return the moves of a ref, newest first; empty if there is no log.

        Only a torn last line is passed over; any other damage is a CorruptionError.
        """
        return [parse_line(line, name) for line in reversed(self.read_lines(name))]

    def read_sound(self, name: str) -> list[ReflogEntry]:
        """Return the moves of a ref, newest first, damaged lines left out (as Git does)."""
        return sound_entries(reversed(self.read_lines(name)), name)

    def read_lines(self, name: str) -> list[bytes]:
        """Return the whole lines of a log as they are stored, oldest first."""
        path = self.path(name)
        with translate_damage(f"reflog of {name}"):
            try:
                with fs.open_file(path) as file:
                    size_bytes = os.fstat(file.fileno()).st_size
                    data = file.read(min(_MAX_LOG_BYTES, size_bytes) + 1)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return []
        if len(data) > _MAX_LOG_BYTES:
            raise CorruptionError(f"reflog of {name} is larger than any log", hint=FSCK_HINT)
        return data.split(b"\n")[:-1]  # after the last line feed: a torn line

    def size_bytes(self, name: str) -> int:
        """Return the length of a ref's log; 0 if there is none."""
        stat = fs.find_stat(self.path(name))
        return 0 if stat is None or not stat.is_regular else stat.size_bytes

    def names(self) -> list[str]:
        """Return the names of all refs that have a log, sorted."""
        names = []
        for path in self._folder.rglob("*"):
            stat = fs.find_stat(path)
            if stat is not None and stat.is_regular and path.suffix != fs.TEMP_SUFFIX:
                names.append(path.relative_to(self._folder).as_posix())
        return sorted(names)

    def remove(self, name: str) -> None:
        """Remove a ref's log and the folders it leaves empty."""
        path = self.path(name)
        fs.remove_file(path)
        fs.remove_empty_dirs(path.parent, self._folder)

    def clear_way(self, name: str, above: Sequence[str]) -> None:
        """Remove logs that a crash left of refs that are gone, where this one's log will be.

        ``above`` are the names of the folders it is in; none of them is a ref.
        """
        for folder in above:
            if self.size_bytes(folder):
                fs.remove_file(self.path(folder))
        for path in self.path(name).rglob("*"):
            if path.is_file():
                fs.remove_file(path)
        remove_empty_folders(self.path(name))

    def copy(self, source: str, target: str) -> None:
        """Make the log of one ref the log of another, durably."""
        fs.make_dirs(self.path(target).parent)
        self.write_lines(target, self.read_lines(source))

    def write_lines(self, name: str, lines: Sequence[bytes]) -> None:
        """Replace a whole log durably."""
        fs.write_durable(self.path(name), [line + b"\n" for line in lines])


def parse_line(line: bytes, name: str) -> ReflogEntry:
    """Return one line of a reflog."""
    with translate_damage(f"reflog of {name}"):
        if b"\t" not in line:
            line += b"\t"  # Git omits the tab if there is no message
        begin, message = line.split(b"\t", 1)
        old, new, stamp = begin.split(b" ", 2)
        who, time_s, timezone_s = parse_stamp(stamp)
        return ReflogEntry(
            old=_parse_id(old),
            new=_parse_id(new),
            who=parse_identity(who),
            time_s=time_s,
            timezone_s=timezone_s,
            message=message.decode("utf-8", "replace"),
        )


def find_entry(line: bytes, name: str) -> ReflogEntry | None:
    """Return one line of a reflog, or None if it is damaged."""
    try:
        return parse_line(line, name)
    except FormatError:
        return None


def sound_entries(lines: Iterable[bytes], name: str) -> list[ReflogEntry]:
    """Return the entries of a log, damaged lines left out."""
    entries = (find_entry(line, name) for line in lines)
    return [entry for entry in entries if entry is not None]


def _parse_id(text: bytes) -> GitId | None:
    return None if text == NO_ID.encode() else parse_id(text)


def remove_empty_folders(path: Path) -> None:
    """Remove a folder that stands in the way of a file, if it holds nothing but empty folders."""
    stat = fs.find_stat(path)
    if stat is None or not stat.is_directory:
        return
    for folder in sorted(path.rglob("*"), reverse=True):
        fs.remove_empty_dirs(folder, path)
    fs.remove_empty_dirs(path, path.parent)
