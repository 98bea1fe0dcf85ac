"""Refs and HEAD on disk: every move is a compare-and-swap, logged and durable.

One move, in this order, under the repository's lock with the files marked:

    <ref>.lock made → value compared → new value written and synced → reflogs appended and synced
    → lock file renamed onto the ref → folder synced

A process that dies before the rename leaves a lock file and perhaps a log line for a move that
never happened; the repository's lock takes both back (``locks``). A ref is a file below ``refs/``
or a line of ``packed-refs``, where stock Git puts many of them; the file wins.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import ConflictError, CorruptionError, NotFoundError
from mvc.history.locks import RepositoryLock, git_lock
from mvc.history.names import HEADS, branch_ref, check_ref_name, is_ref_name, is_top_name
from mvc.history.reflogs import Reason, Reflogs, find_entry, remove_empty_folders
from mvc.history.translate import translate_damage
from mvc.history.values import Head
from mvc.ids import GitId, is_git_id

if TYPE_CHECKING:
    from pathlib import Path

    from dulwich.objects import ObjectID
    from dulwich.refs import Ref

HEAD = "HEAD"
MERGE_HEAD = "MERGE_HEAD"
_MERGE_HINT = (
    '"mvc reset" gives the merge up and keeps the files, "mvc reset --hard" takes them back'
)
PACKED = "packed-refs"
_FETCHED = "FETCH_HEAD"
_ID_DIGITS = 40
_SYMREF = b"ref:"
_MAX_DEPTH = 5  # as in Git
_MAX_REF_BYTES = 4096
_MAX_PACKED_BYTES = 1 << 28


class RefStore:
    """The refs of a repository."""

    def __init__(self, git_dir: Path) -> None:
        self._git_dir = git_dir
        self.logs = Reflogs(git_dir)
        self.lock = RepositoryLock(git_dir)
        self._packed: tuple[fs.FileStat | None, dict[str, GitId]] = (None, {})

    # -- reading

    def head(self) -> Head:
        """Return where HEAD stands."""
        value = self.read_head()
        if value.startswith("ref: "):
            name = value.removeprefix("ref: ")
            return Head(name.removeprefix(HEADS), self.find(name))
        return Head(None, GitId(value))

    def read_head(self) -> str:
        """Return what HEAD itself says: ``ref: `` and a branch, or a commit id.

        What its branch holds is not looked at.
        """
        value = self._read_loose(HEAD)
        if value is None:
            raise _broken(HEAD, "is missing")
        if value.startswith("ref: ") and not value.startswith(f"ref: {HEADS}"):
            raise _broken(HEAD, f"points to {value[5:]}, which is not a branch")
        return value

    def find(self, name: str) -> GitId | None:
        """Return the id a full ref name holds (symbolic refs followed), or None."""
        return self._follow(name)[1]

    def merge_heads(self) -> list[GitId]:
        """Return the commits that are being merged: all lines of ``MERGE_HEAD``."""
        with translate_damage(MERGE_HEAD, hint=_MERGE_HINT):
            try:
                with fs.open_file(self._git_dir / MERGE_HEAD) as file:
                    lines = file.read(_MAX_PACKED_BYTES).decode("ascii").split()
            except FileNotFoundError:
                return []
        if not all(map(is_git_id, lines)):
            raise CorruptionError(
                f"{MERGE_HEAD} holds something that is not an object id", hint=_MERGE_HINT
            )
        return [GitId(line) for line in lines]

    def _follow(self, name: str) -> tuple[str, GitId | None]:
        """Return the last name of a chain of symbolic refs and what it holds."""
        for _ in range(_MAX_DEPTH):
            if not (is_ref_name(name) or is_top_name(name)):
                return name, None
            value = self._read_loose(name)
            if value is None:
                return name, self._read_packed().get(name)
            if not value.startswith("ref: "):
                return name, GitId(value)
            name = value.removeprefix("ref: ")
        raise _broken(name, "is a symbolic ref that leads round in a circle")

    def values(self, prefix: str = "refs/") -> dict[str, GitId]:
        """Return full name → id of all refs below a prefix, sorted."""
        ids: dict[str, GitId] = {}
        for name in self.names(prefix):
            value = self.find(name)
            if value is not None:
                ids[name] = value
        return ids

    def names(self, prefix: str = "refs/") -> list[str]:
        """Return the full names of all refs below a prefix, damaged ones too, sorted."""
        names = {name for name in self._read_packed() if name.startswith(prefix)}
        for folder, _, files in os.walk(self._git_dir / "refs"):
            base = os.path.relpath(folder, self._git_dir)
            names.update(f"{base}/{file}" for file in files)
        return sorted(name for name in names if name.startswith(prefix) and is_ref_name(name))

    def _read_loose(self, name: str) -> str | None:
        """Return an id, ``ref: NAME``, or None if there is no such file."""
        with translate_damage(f"ref {name}", hint=_ref_hint(name)):
            try:
                with fs.open_file(self._git_dir / name) as file:
                    data = file.read(_MAX_REF_BYTES)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
            line = data.split(b"\n", 1)[0].strip()
            if name == _FETCHED:
                line = line.split(b"\t", 1)[0]  # what follows says where it is from
            if line.startswith(_SYMREF):
                target = line[len(_SYMREF) :].strip().decode()
                if not is_ref_name(target):
                    raise _broken(name, f"points to {target[:80]!r}, which is not a ref")
                return f"ref: {target}"
            value = line.decode("ascii")
            if not is_git_id(value):
                raise _broken(name, f"holds {value[:80]!r}, which is not an object id")
            return value

    def _read_packed(self) -> dict[str, GitId]:
        stat = fs.find_stat(self._git_dir / PACKED)
        if stat is None:
            return {}
        if stat != self._packed[0]:
            values, _ = self._parse_packed()
            named = {
                name.decode("utf-8", "replace"): GitId(v.decode()) for name, v in values.items()
            }
            self._packed = (stat, named)
        return self._packed[1]

    def _parse_packed(self) -> tuple[dict[Ref, ObjectID], dict[Ref, ObjectID] | None]:
        """Return name → id and name → peeled id of ``packed-refs``."""
        with translate_damage(PACKED):
            try:
                with fs.open_file(self._git_dir / PACKED) as file:
                    data = file.read(_MAX_PACKED_BYTES + 1)
            except FileNotFoundError:
                return {}, None
            if len(data) > _MAX_PACKED_BYTES:
                raise CorruptionError(f"{PACKED} is longer than {_MAX_PACKED_BYTES:,} bytes")
            # Only stock Git makes this file.
            from dulwich.refs import read_packed_refs, read_packed_refs_with_peeled  # noqa: PLC0415

            header, _, rest = data.partition(b"\n")
            if not (header.startswith(b"# pack-refs") and b" peeled" in header):
                return {name: value for value, name in read_packed_refs(io.BytesIO(data))}, None
            values, peeled = {}, {}
            for value, name, target in read_packed_refs_with_peeled(io.BytesIO(rest)):
                values[name] = value
                if target is not None:
                    peeled[name] = target
            return values, peeled

    # -- moving

    def set(
        self,
        name: str,
        new: GitId,
        expected: GitId | None,
        reason: Reason,
        *,
        is_logged: bool = False,
    ) -> None:
        """Move a ref from the expected value (None: it must not exist) to a new one.

        Where HEAD is on that branch, HEAD's log gets the entry too, as in Git. ``is_logged`` begins a
        log for a ref that Git would not log.
        """
        name, _ = self._follow(check_ref_name(name))
        with self.lock.hold():
            if self.find(name) is None:
                self._clear_way(name)
            logs = [name] if is_logged or self.logs.wants(name) else []
            if self._head_target() == name:
                logs.append(HEAD)
            self._replace(name, f"{new}\n", logs=logs, expected=expected, new=new, reason=reason)

    def set_detached(self, new: GitId, expected: GitId | None, reason: Reason) -> None:
        """Make HEAD hold a commit, no branch; ``expected`` is the commit HEAD is on now."""
        with self.lock.hold():
            self._replace(HEAD, f"{new}\n", logs=[HEAD], expected=expected, new=new, reason=reason)

    def set_symbolic(self, branch: str, reason: Reason) -> None:
        """Put HEAD onto a branch, which need not exist yet."""
        name = branch_ref(branch)
        with self.lock.hold():
            old, new = self.head().commit, self.find(name)
            logs = [HEAD] if new is not None else []
            self._replace(HEAD, f"ref: {name}\n", logs=logs, expected=old, new=new, reason=reason)

    def delete(self, name: str, expected: GitId, reason: Reason) -> None:
        """Remove a ref and its log."""
        check_ref_name(name)
        with self.lock.writing([name, PACKED]):
            path = self._git_dir / name
            fs.make_dirs(path.parent)
            with git_lock(path):
                self._compare(name, expected)
                self._drop_packed(name)
                with translate_damage(f"ref {name}"):
                    path.unlink(missing_ok=True)
            # Synced after the lock file is gone, or a loss of power would bring that back.
            fs.fsync_dir(path.parent)
            if self._head_target() == name:
                self.logs.append(HEAD, expected, None, reason)
            self.logs.remove(name)
            fs.remove_empty_dirs(path.parent, self._git_dir / "refs" / name.split("/")[1])

    def rename(self, old: str, new: str, reason: Reason) -> None:
        """Give a branch another name; its log goes with it, and HEAD if it is on it.

        A crash in between leaves both names, never none, and neither without its log.
        """
        with self.lock.hold():
            value = self.find(old)
            if value is None:
                raise ConflictError(f"{old} does not exist")
            is_current = self._head_target() == old
            self._clear_way(new)
            self._replace(
                new,
                f"{value}\n",
                logs=[new],
                expected=None,
                new=value,
                reason=reason,
                log_from=old,
            )
            if is_current:
                self._replace(
                    HEAD, f"ref: {new}\n", logs=[HEAD], expected=value, new=value, reason=reason
                )
            self.delete(old, value, reason)

    def drop_logged(self, name: str, number: int, reason: Reason) -> None:
        """Take one move out of a ref's log, 0 the newest; the ref is where the newest left went.

        With its only move the ref goes, too.
        """
        with self.lock.hold():
            lines, held = self.logs.read_lines(name), self.find(name)
            sound = [place for place, line in enumerate(lines) if find_entry(line, name)]
            if held is None or number >= len(sound):
                raise NotFoundError(f"the log of {name} has {len(sound)} entries")
            if len(sound) == 1:
                self.delete(name, held, reason)
                return
            place = sound[-1 - number]
            gone = lines.pop(place)
            if place < len(lines):  # as Git does, so that each begins where the one before ended
                lines[place] = gone[:_ID_DIGITS] + lines[place][_ID_DIGITS:]
            left = find_entry(lines[sound[-2]], name)
            if number == 0 and left is not None and left.new is not None:
                self._replace(
                    name, f"{left.new}\n", logs=[], expected=held, new=left.new, reason=reason
                )
            self.rewrite_log(name, lines)

    def rewrite_log(self, name: str, lines: Sequence[bytes]) -> None:
        """Replace the log of a ref; a stock Git is kept from extending it meanwhile."""
        path = self._git_dir / name
        with self.lock.writing([name]), contextlib.ExitStack() as stack:
            if path.parent.is_dir():  # otherwise there is no such ref, and no Git extends its log
                stack.enter_context(git_lock(path))
            self.logs.write_lines(name, lines)

    def _replace(
        self,
        name: str,
        content: str,
        *,
        logs: Sequence[str],
        expected: GitId | None,
        new: GitId | None,
        reason: Reason,
        log_from: str | None = None,
    ) -> None:
        """Put a ref in place with its log lines; ``log_from`` is the ref it was renamed from."""
        path = self._git_dir / name
        # Folders first: making one syncs its parent, which must not make a lock file durable.
        for folder in (path.parent, *(self.logs.path(log).parent for log in logs)):
            fs.make_dirs(folder)
        sizes = {log: self.logs.size_bytes(log) for log in logs}
        with self.lock.writing([name], sizes), git_lock(path) as file:
            self._compare(name, expected)
            file.write([content.encode()])
            try:
                for log in logs:
                    if log_from is not None:
                        self.logs.copy(log_from, log)
                    self.logs.append(log, expected if log_from is None else new, new, reason)
                file.publish(path)
            except BaseException:
                for log, size_bytes in sizes.items():
                    self.logs.undo(log, size_bytes)
                raise

    def _compare(self, name: str, expected: GitId | None) -> None:
        current = self.find(name)
        if current != expected:
            raise ConflictError(
                f"{name} moved: expected {expected or 'nothing'}, found {current or 'nothing'}",
                hint='another process was faster: look at it with "mvc log", then try again',
            )

    def _head_target(self) -> str | None:
        branch = self.head().branch
        return None if branch is None else HEADS + branch

    def _clear_way(self, name: str) -> None:
        """Check that no ref is a folder of this one or this one of a ref; drop empty folders."""
        parts = name.split("/")
        above = ["/".join(parts[:end]) for end in range(3, len(parts))]
        clash = next((folder for folder in above if self.find(folder) is not None), None)
        clash = clash or next(iter(self.names(name + "/")), None)
        if clash is not None:
            raise ConflictError(
                f"{name} cannot exist together with {clash}", hint="choose another name"
            )
        remove_empty_folders(self._git_dir / name)
        self.logs.clear_way(name, above)

    def _drop_packed(self, name: str) -> None:
        if name not in self._read_packed():
            return
        from dulwich.refs import write_packed_refs  # noqa: PLC0415  as above

        path = self._git_dir / PACKED
        with git_lock(path) as file:
            values, peeled = self._parse_packed()
            kept = {key: value for key, value in values.items() if key != name.encode()}
            buffer = io.BytesIO()
            write_packed_refs(buffer, kept, {k: v for k, v in (peeled or {}).items() if k in kept})
            file.write([buffer.getvalue()])
            file.publish(path)


def _ref_hint(name: str) -> str:
    if name == HEAD:
        return 'write the line "ref: refs/heads/main" (or your branch) into .mvc/HEAD'
    return f'the last line of .mvc/logs/{name} says where it was; "mvc fsck" shows the rest'


def _broken(name: str, detail: str) -> CorruptionError:
    return CorruptionError(f"ref {name} {detail}", hint=_ref_hint(name))
