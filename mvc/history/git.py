"""The history of a repository: a real Git repository, seen as plain values.

``GitHistory`` is the front door of this layer. It knows nothing of tensors or manifests: a blob is
bytes. No type of dulwich leaves it, and no error but those of mvc. What only some commands need
are functions over a history, in modules of their own: ``notes``, ``check`` (fsck), ``reachability``
and ``object_sweep`` (gc).

Order of a durable change: write objects, ``sync_objects``, move a ref. Every method that moves a
ref calls ``sync_objects`` itself first, so a ref never points to something that is not on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from mvc import fs
from mvc.errors import (
    ConflictError,
    FormatError,
    NotFoundError,
    RepositoryNotFoundError,
    StorageError,
    UnsupportedError,
    UsageError,
)
from mvc.history.config import RepositoryConfig, encode_config, last_value
from mvc.history.locks import SweepLock, hide_from_git
from mvc.history.names import HEADS, NOTES, TAGS, branch_ref, check_ref_name, tag_ref
from mvc.history.object_formats import (
    encode_commit,
    encode_tag,
    parse_tag_message,
    read_tree,
    write_tree,
)
from mvc.history.objects import ObjectStore
from mvc.history.reflogs import Reason
from mvc.history.refs import HEAD, RefStore
from mvc.history.revisions import Revisions
from mvc.history.values import SWITCH_TEXT, CommitInfo, Index, Stamp, TreeEntry
from mvc.history.walks import find_merge_bases, is_ancestor, walk

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.ids import GitId

_FOLDERS = ("objects/info", "objects/pack", "refs/heads", "refs/tags")
_CONFIG = {
    "core.repositoryformatversion": ["0"],
    "core.filemode": ["true"],
    "core.bare": ["false"],
    "core.logallrefupdates": ["true"],
    "core.fsync": ["all"],  # for a stock Git that works here
    "core.loosecompression": ["1"],
    "gc.auto": ["0"],  # "mvc gc" decides, never a stock Git in passing
}
_EXTENSIONS = ("sha1", "files")  # the only values mvc supports for objectformat and refstorage
_DESCRIPTION = b"A repository of mvc; stock Git reads its history with --git-dir.\n"


class GitHistory:
    """An open Git repository; cheap to open, safe to use from several threads."""

    def __init__(self, git_dir: Path) -> None:
        """Take a folder that is known to be a repository; use ``init`` or ``open``."""
        self.git_dir = git_dir
        self.objects = ObjectStore(git_dir / "objects")
        self.refs = RefStore(git_dir)
        self._lock = self.refs.lock
        self._sweep_lock = SweepLock(git_dir, lambda: self._lock.is_held)
        self.config = RepositoryConfig(git_dir / "config", self._lock)
        self._revisions = Revisions(self.objects, self.refs, self.config)
        # What a part does as it is, documented there.
        self.has_object = self.objects.has
        self.read_commit = self.objects.read_commit
        self.sync_objects = self.objects.sync
        self.gathering = self.objects.gathering
        self.resolve = self._revisions.resolve
        self.resolve_commit = self._revisions.resolve_commit
        self.resolve_ref_name = self._revisions.find_ref_name
        self.lock = self._lock.hold
        self.no_sweep = self._sweep_lock.shared
        self.sweep_alone = self._sweep_lock.exclusive
        self.head = self.refs.head
        self.find_ref = self.refs.find
        self.read_reflog = self.refs.logs.read_sound

    @classmethod
    def init(cls, git_dir: Path, *, branch: str = "main") -> Self:
        """Create a repository durably and open it; an existing one is opened unchanged."""
        name = branch_ref(branch)
        if fs.find_stat(git_dir / HEAD) is not None:
            return cls.open(git_dir)
        try:
            for folder in _FOLDERS:
                fs.make_dirs(git_dir / folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StorageError(f"cannot create {git_dir}: a file is in the way") from error
        fs.write_durable(git_dir / "description", [_DESCRIPTION])
        hide_from_git(git_dir)
        fs.write_durable(git_dir / "config", [encode_config(_CONFIG)])
        # Last, because a folder with HEAD is a repository: a crash before leaves none.
        fs.write_durable(git_dir / HEAD, [f"ref: {name}\n".encode()])
        return cls.open(git_dir)

    @classmethod
    def open(cls, git_dir: Path) -> Self:
        """Open an existing repository."""
        parts = [fs.find_stat(git_dir / part) for part in (HEAD, "objects", "refs")]
        if None in parts:
            raise RepositoryNotFoundError(
                f"{git_dir} is not a repository", hint='run "mvc init" to create one'
            )
        history = cls(git_dir)
        history._check_format()
        history.refs.read_head()  # not its branch: with a damaged one, fsck must still run
        return history

    def _check_format(self) -> None:
        config = self.config.parse()
        version = last_value(config, "core.repositoryformatversion") or "0"
        if version not in ("0", "1"):
            raise UnsupportedError(
                f"{self.git_dir} has repository format {version!r}", hint="upgrade mvc"
            )
        for key, values in config.items():
            if version == "1" and key.startswith("extensions.") and values[-1] not in _EXTENSIONS:
                raise UnsupportedError(f"{self.git_dir} needs {key} = {values[-1]!r}")

    def close(self) -> None:
        """Close files that are kept open for reading; the history can still be used."""
        self.objects.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- objects

    def write_blob(self, data: bytes) -> GitId:
        """Store bytes, at most 512 MiB, and return their id; durable after ``sync_objects``."""
        return self.objects.write("blob", data)

    def read_blob(self, blob: GitId) -> bytes:
        """Return the bytes of a blob, hashed against its id."""
        return self.objects.read_kind(blob, "blob")

    def find_blob_size(self, blob: GitId) -> int | None:
        """Return the length of a blob in bytes, or None if there is no such blob."""
        header = self.objects.find_header(blob)
        return header[1] if header is not None and header[0] == "blob" else None

    def blob_start(self, blob: GitId, count: int) -> tuple[int, bytes]:
        """Return length and first ``count`` bytes of a blob without reading the rest; not hashed."""
        kind, size_bytes, start = self.objects.read_start(blob, count)
        if kind != "blob":
            raise FormatError(f"object {blob} is a {kind}, not a blob")
        return size_bytes, start

    def write_tree(self, entries: Mapping[str, TreeEntry]) -> GitId:
        """Store the trees that the paths need and return the id of the outermost."""
        return write_tree(entries, self.objects.write)

    def read_tree(self, commit_or_tree: GitId) -> dict[str, TreeEntry]:
        """Return path → mode and blob of everything in a commit, tag or tree, sorted by path."""
        tree = self._revisions.find_tree(commit_or_tree)
        return read_tree(tree, lambda tree_id: self.objects.read_kind(tree_id, "tree"))

    def write_commit(
        self,
        *,
        tree: GitId,
        parents: Sequence[GitId],
        message: str,
        author: Stamp,
        committer: Stamp | None = None,
    ) -> GitId:
        """Store a commit and return its id; no ref moves. The committer defaults to the author."""
        data = encode_commit(
            tree=tree,
            parents=parents,
            message=message,
            author=author,
            committer=committer or author,
        )
        return self.objects.write("commit", data)

    # -- the graph

    def walk(
        self, starts: Sequence[GitId], *, limit: int | None = None, first_parent: bool = False
    ) -> Iterator[CommitInfo]:
        """Yield reachable commits, children before parents, youngest first."""
        return walk(self.objects, starts, limit=limit, first_parent=first_parent)

    def find_merge_bases(self, left: GitId, right: GitId) -> list[GitId]:
        """Return all best common ancestors of two commits, youngest first."""
        return find_merge_bases(self.objects, left, right)

    def is_ancestor(self, ancestor: GitId, descendant: GitId) -> bool:
        """Return whether one commit can be reached from another (a commit reaches itself)."""
        return is_ancestor(self.objects, ancestor, descendant)

    def find_commit(self, revision: str) -> GitId | None:
        """Return that commit, or None: a ref may be gone, and stock Git may tag anything."""
        try:
            return self.resolve_commit(revision)
        except NotFoundError:
            return None

    def find_tag_message(self, name: str) -> str | None:
        """Return the message of the annotated tag that a short or full name stands for, or None."""
        ref = self.resolve_ref_name(name)
        tag = self.find_ref(ref) if ref is not None and ref.startswith(TAGS) else None
        if tag is None or (self.objects.find_header(tag) or ("", 0))[0] != "tag":
            return None
        return parse_tag_message(tag, self.objects.read_kind(tag, "tag"))

    # -- locks, refs and HEAD

    @property
    def is_alone(self) -> bool:
        """Whether this thread holds the sweep lock alone."""
        return self._sweep_lock.is_alone

    def get_branch(self, name: str) -> GitId:
        """Return the commit that a branch is at."""
        commit = self.find_ref(HEADS + name)
        if commit is None:
            raise NotFoundError(f"no branch {name!r}", hint='"mvc branch" lists them')
        return commit

    def list_refs(self, prefix: str = "refs/") -> dict[str, GitId]:
        """Return full name → id of all refs below a prefix, sorted by name.

        Notes are not revisions to check out: they are listed only if the prefix names them.
        """
        ids = self.refs.values(prefix)
        if prefix.startswith(NOTES):
            return ids
        return {name: value for name, value in ids.items() if not name.startswith(NOTES)}

    def update_ref(
        self, name: str, new: GitId, *, expected: GitId | None, message: str, stamp: Stamp
    ) -> None:
        """Move a ref by compare-and-swap, durably, with a reflog entry.

        It must hold ``expected`` now; None: it must not exist.
        """
        check_ref_name(name)
        with self.lock():
            self._prepare_move(name, new)
            self.refs.set(name, new, expected, Reason(message, stamp))

    def update_head(
        self, new: GitId, *, expected: GitId | None, message: str, stamp: Stamp
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
        return SWITCH_TEXT.format(head.branch or head.commit, target)

    def delete_ref(self, name: str, *, expected: GitId, stamp: Stamp, message: str = "") -> None:
        """Remove a ref and its log by compare-and-swap."""
        self.refs.delete(name, expected, Reason(message, stamp))

    def rename_branch(self, old: str, new: str, *, stamp: Stamp, force: bool = False) -> None:
        """Give a branch another name; its log goes with it, and HEAD if it is on it.

        ``force`` replaces a branch of that name, but not the current one.
        """
        source, target = HEADS + old, branch_ref(new)
        with self.lock():
            head, existing = self.head(), self.find_ref(target)
            is_unborn = head.branch == old and head.commit is None
            if not is_unborn:
                self.get_branch(old)
            if old == new:
                return
            if existing is not None:
                if not force or head.branch == new:
                    raise ConflictError(f"branch {new!r} already exists")
                self.delete_ref(target, expected=existing, stamp=stamp)
            if is_unborn:
                self.set_head_branch(new, stamp=stamp)
                return
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
        reason: str = "",
        is_alias: bool = False,
    ) -> GitId:
        """Make a tag and return the id it holds: an annotated one if there is a message.

        To replace a tag, give the id that it holds now as ``expected``. An alias is a tag that is
        meant to move: it has a log of its moves, which get the ``reason``.
        """
        ref, held = tag_ref(name), target
        with self.lock():
            self._require(target, "commit")
            if expected is None and self.find_ref(ref) is not None:
                raise ConflictError(f"tag {name!r} already exists", hint="choose another name")
            if message is not None:
                data = encode_tag(name=name, commit=target, message=message, tagger=stamp)
                held = self.objects.write("tag", data)
            self._prepare_move(ref, held)
            self.refs.set(ref, held, expected, Reason(reason, stamp), is_logged=is_alias)
        return held

    def is_alias(self, ref: str) -> bool:
        """Return whether a full ref name is that of a tag that is meant to move, with a log."""
        return ref.startswith(TAGS) and self.refs.logs.wants(ref)

    def drop_reflog_entry(self, ref: str, number: int, *, stamp: Stamp) -> None:
        """Take one move out of a ref's log, 0 the newest; with its only one, the ref goes."""
        self.refs.drop_logged(ref, number, Reason("", stamp))

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

    # -- index

    def read_index(self) -> Index:
        """Return the staging area; an empty one before the first ``add``."""
        from mvc.history.index import NAME, read_index_file  # noqa: PLC0415  log needs none

        return read_index_file(self.git_dir / NAME)

    def write_index(self, index: Index) -> None:
        """Replace the staging area durably; only under ``lock()``.

        The blobs it names are made durable first. Racy entries are written so that they match no
        file until its content has been compared.
        """
        from mvc.history.index import NAME, write_index_file  # noqa: PLC0415  log needs none

        if not self._lock.is_held:
            raise UsageError("the index is written under the repository's lock only")
        self.sync_objects()
        with self._lock.writing([NAME]):
            write_index_file(self.git_dir / NAME, index)
