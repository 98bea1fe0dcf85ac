"""Moving refs: objects durable first, then the ref by compare-and-swap, with a log entry.

``RefMoves`` is the part of ``GitHistory`` that changes where branches, tags and HEAD stand.
``refs`` below it does one move at a time; here is what must hold before one: the object is there
and of the right kind, and everything that was written so far is on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError
from mvc.history.commits import encode_tag
from mvc.history.locks import SweepLock
from mvc.history.objects import ObjectStore
from mvc.history.reflogs import Reason
from mvc.history.refnames import HEADS, NOTES, branch_ref, check_ref_name, tag_ref
from mvc.history.refs import HEAD, RefStore

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mvc.history.values import Head, ReflogEntry, Stamp
    from mvc.ids import GitId


class RefMoves:
    """HEAD, branches and tags of a repository."""

    def __init__(self, git_dir: Path) -> None:
        self.git_dir = git_dir
        self.objects = ObjectStore(git_dir / "objects")
        self.refs = RefStore(git_dir)
        self._lock = self.refs.lock
        self._sweep_lock = SweepLock(git_dir, lambda: self._lock.is_held)

    def lock(self) -> AbstractContextManager[None]:
        """Hold the repository's lock: other mvc processes wait; this thread may take it again."""
        return self._lock.hold()

    def no_sweep(self) -> AbstractContextManager[None]:
        """Hold the sweep lock together with other writers; see ``mvc.history.locks``.

        From before the first look at what is there until the index or a ref has moved. A thread
        may take it again, but not while it holds only ``lock()``.
        """
        return self._sweep_lock.shared()

    def sweep_alone(self, *, wait: bool = True) -> AbstractContextManager[None]:
        """Hold the sweep lock alone: nothing may be deleted without it."""
        return self._sweep_lock.exclusive(wait=wait)

    @property
    def is_alone(self) -> bool:
        """Whether this thread holds the sweep lock alone."""
        return self._sweep_lock.is_alone

    def head(self) -> Head:
        """Return where HEAD stands."""
        return self.refs.head()

    def find_ref(self, name: str) -> GitId | None:
        """Return the id that a full ref name such as ``refs/heads/main`` holds, or None."""
        return self.refs.find(name)

    def list_refs(self, prefix: str = "refs/") -> dict[str, GitId]:
        """Return full name → id of all refs below a prefix, sorted by name.

        Notes are not revisions to check out: they are listed only if the prefix names them.
        """
        found = self.refs.values(prefix)
        if prefix.startswith(NOTES):
            return found
        return {name: value for name, value in found.items() if not name.startswith(NOTES)}

    def update_ref(
        self,
        name: str,
        new: GitId,
        *,
        expected: GitId | None,
        message: str,
        stamp: Stamp,
    ) -> None:
        """Move a ref by compare-and-swap, durably, with a reflog entry.

        It must hold ``expected`` now; None: it must not exist.
        """
        check_ref_name(name)
        with self.lock():
            self._prepare_move(name, new)
            self.refs.set(name, new, expected, Reason(message, stamp))

    def update_head(
        self,
        new: GitId,
        *,
        expected: GitId | None,
        message: str,
        stamp: Stamp,
    ) -> None:
        """Move the current branch (or a detached HEAD) by compare-and-swap."""
        reason = Reason(message, stamp)
        with self.lock():
            branch = self.head().branch
            name = HEAD if branch is None else HEADS + branch
            self._prepare_move(name, new)
            if branch is None:
                self.refs.set_detached(new, expected, reason)
            else:
                self.refs.set(name, new, expected, reason)

    def set_head_branch(self, branch: str, *, stamp: Stamp, message: str | None = None) -> None:
        """Put HEAD onto a branch; one that does not exist yet begins with the next commit.

        The message defaults to ``checkout: moving from A to B``.
        """
        with self.lock():
            reason = Reason(message or self._switch_text(branch), stamp)
            self.refs.set_symbolic(branch, reason)

    def detach_head(self, commit: GitId, *, stamp: Stamp, message: str | None = None) -> None:
        """Put HEAD onto a commit itself, off any branch."""
        with self.lock():
            self._prepare_move(HEAD, commit)
            reason = Reason(message or self._switch_text(commit), stamp)
            self.refs.set_detached(commit, self.head().commit, reason)

    def _switch_text(self, target: str) -> str:
        head = self.head()
        return f"checkout: moving from {head.branch or head.commit} to {target}"

    def delete_ref(self, name: str, *, expected: GitId, stamp: Stamp, message: str = "") -> None:
        """Remove a ref and its log by compare-and-swap."""
        self.refs.delete(name, expected, Reason(message, stamp))

    def rename_branch(self, old: str, new: str, *, stamp: Stamp) -> None:
        """Give a branch another name; its log goes with it, and HEAD if it is on it."""
        source, target = HEADS + old, branch_ref(new)
        with self.lock():
            head = self.head()
            if head.branch == old and head.commit is None:
                self.set_head_branch(new, stamp=stamp)
                return
            if self.find_ref(source) is None:
                raise NotFoundError(f"branch {old!r} does not exist")
            if self.find_ref(target) is not None:
                raise ConflictError(f"branch {new!r} already exists", hint="choose another name")
            message = f"Branch: renamed {source} to {target}"
            self.refs.rename(source, target, Reason(message, stamp))

    def create_tag(
        self,
        name: str,
        target: GitId,
        *,
        message: str | None,
        stamp: Stamp,
        expected: GitId | None = None,
    ) -> GitId:
        """Make a tag and return the id it holds: an annotated one if there is a message.

        To replace a tag, give the id that it holds now as ``expected``.
        """
        ref = tag_ref(name)
        self._require(target, "commit")
        reason = Reason("", stamp)
        held = target
        if message is not None:
            data = encode_tag(name=name, commit=target, message=message, tagger=stamp)
            held = self.objects.write("tag", data)
        with self.lock():
            if expected is None and self.find_ref(ref) is not None:
                raise ConflictError(f"tag {name!r} already exists", hint="choose another name")
            self._require(target, "commit")
            self._prepare_move(ref, held)
            self.refs.set(ref, held, expected, reason)
        return held

    def read_reflog(self, ref: str) -> list[ReflogEntry]:
        """Return the moves of HEAD or of a full ref name, newest first.

        A line torn by a crash is left out, and so are damaged ones, which ``check`` reports.
        """
        return self.refs.logs.read_sound(ref)

    def _prepare_move(self, name: str, new: GitId) -> None:
        """Check what a ref will point to and make it durable; under the lock, as the move is."""
        if name == HEAD or name.startswith(HEADS):
            self._require(new, "commit")
        elif not self.objects.has(new):
            raise NotFoundError(f"object {new} does not exist")
        self.objects.sync()

    def _require(self, object_id: GitId, kind: str) -> None:
        header = self.objects.find_header(object_id)
        if header is None:
            raise NotFoundError(f"{kind} {object_id} does not exist")
        if header[0] != kind:
            raise NotFoundError(f"object {object_id} is a {header[0]}, not a {kind}")
