"""The history of a repository: a real Git repository, seen as plain values.

``GitHistory`` is the front door of this layer; each group of its methods forwards to one module:
objects and trees, refs and logs, revisions, walks, index, config. It knows nothing of tensors or
manifests: a blob is bytes. Nothing of dulwich goes out of it, and no error but those of mvc.

Order of a durable change: write objects, ``sync_objects``, move a ref. Every method that moves a
ref calls ``sync_objects`` itself first, so a ref never reaches what is not on the disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from mvc import fs
from mvc.errors import (
    FormatError,
    NotFoundError,
    RepositoryNotFoundError,
    StorageError,
    UnsupportedError,
    UsageError,
)
from mvc.history import config as config_format
from mvc.history.commits import encode_commit
from mvc.history.locks import git_lock
from mvc.history.moves import RefMoves
from mvc.history.refnames import branch_ref
from mvc.history.refs import HEAD
from mvc.history.revisions import Revisions
from mvc.history.trees import read_tree, write_tree
from mvc.history.walks import find_merge_bases, is_ancestor, walk

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from mvc.history.notes import NoteFinder
    from mvc.history.object_sweep import GarbageObject
    from mvc.history.reflog_expiry import ReflogExpiry
    from mvc.history.values import (
        CommitInfo,
        HistoryProblem,
        Index,
        Stamp,
        TreeEntry,
    )
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
_EXTENSIONS = ("sha1", "files")  # what mvc is: objectformat and refstorage may say so
_DESCRIPTION = b"A repository of mvc; stock Git reads its history with --git-dir.\n"


class GitHistory(RefMoves):
    """An open Git repository; cheap to open, safe to use from several threads."""

    def __init__(self, git_dir: Path) -> None:
        """Take a folder that is known to be a repository; use ``init`` or ``open``."""
        super().__init__(git_dir)
        self._revisions = Revisions(self._objects, self._refs)

    @classmethod
    def init(cls, git_dir: Path, *, branch: str = "main") -> Self:
        """Make a repository durably and open it; one that exists is opened as it is.

        Args:
            git_dir: folder to make.
            branch: the branch that the first commit will be on.

        Raises:
            UsageError: no valid name for a branch.
            StorageError: the machine refused.
        """
        name = branch_ref(branch)
        if fs.find_stat(git_dir / HEAD) is not None:
            return cls.open(git_dir)
        try:
            for folder in _FOLDERS:
                fs.make_dirs(git_dir / folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StorageError(f"cannot make {git_dir}: a file is in the way") from error
        fs.write_durable(git_dir / "description", [_DESCRIPTION])
        fs.write_durable(git_dir / "config", [config_format.encode_config(_CONFIG)])
        # Last, because a folder with HEAD is a repository: a crash before leaves none.
        fs.write_durable(git_dir / HEAD, [f"ref: {name}\n".encode()])
        return cls.open(git_dir)

    @classmethod
    def open(cls, git_dir: Path) -> Self:
        """Open an existing repository.

        Raises:
            RepositoryNotFoundError: there is none at this place.
            FormatError: its config or HEAD is damaged.
            UnsupportedError: it is of a kind of Git that mvc does not know.
        """
        parts = [fs.find_stat(git_dir / part) for part in (HEAD, "objects", "refs")]
        if None in parts:
            raise RepositoryNotFoundError(
                f"{git_dir} is no repository", hint='run "mvc init" to make one'
            )
        history = cls(git_dir)
        history._check_format()
        history._refs.read_head()  # not its branch: with a damaged one, fsck must still run
        return history

    def _check_format(self) -> None:
        config = self._read_config()
        version = config_format.last_value(config, "core.repositoryformatversion") or "0"
        if version not in ("0", "1"):
            raise UnsupportedError(
                f"{self.git_dir} has repository format {version!r}", hint="upgrade mvc"
            )
        for key, values in config.items():
            if version == "1" and key.startswith("extensions.") and values[-1] not in _EXTENSIONS:
                raise UnsupportedError(f"{self.git_dir} needs {key} = {values[-1]!r}")

    def close(self) -> None:
        """Close files that are kept open for reading; the history can still be used."""
        self._objects.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- objects

    def write_blob(self, data: bytes) -> GitId:
        """Store bytes and return their id; durable after ``sync_objects``.

        Raises:
            UsageError: more than 512 MiB.
        """
        return self._objects.write("blob", data)

    def read_blob(self, blob: GitId) -> bytes:
        """Return the bytes of a blob, hashed against its id.

        Raises:
            CorruptionError: it is damaged or missing.
            FormatError: the id is that of another kind of object.
        """
        return self._objects.read_kind(blob, "blob")

    def find_blob_size(self, blob: GitId) -> int | None:
        """Return the length of a blob in bytes, or None where there is no such blob.

        Raises:
            CorruptionError: it is damaged at its beginning.
        """
        header = self._objects.find_header(blob)
        return header[1] if header is not None and header[0] == "blob" else None

    def blob_prefix(self, blob: GitId, count: int) -> bytes:
        """Return the first ``count`` bytes of a blob without reading the rest; not hashed.

        Raises:
            CorruptionError: it is damaged there, or missing.
            FormatError: the id is that of another kind of object.
        """
        kind, prefix = self._objects.read_prefix(blob, count)
        if kind != "blob":
            raise FormatError(f"object {blob} is a {kind}, not a blob")
        return prefix

    def has_object(self, object_id: GitId) -> bool:
        """Tell whether an object exists."""
        return self._objects.has(object_id)

    def write_tree(self, entries: Mapping[str, TreeEntry]) -> GitId:
        """Store the trees of a commit and return the id of the outermost.

        Args:
            entries: path → mode and blob; folders follow from the paths.

        Raises:
            UsageError: a path or mode that no tree may hold.
        """
        return write_tree(entries, self._objects.write)

    def read_tree(self, commit_or_tree: GitId) -> dict[str, TreeEntry]:
        """Return path → mode and blob of everything in a commit (or tag, or tree), by path.

        Raises:
            FormatError: paths or modes that mvc does not allow.
            CorruptionError: something is damaged or missing.
        """
        tree = self._revisions.find_tree(commit_or_tree)
        return read_tree(tree, lambda tree_id: self._objects.read_kind(tree_id, "tree"))

    def write_commit(
        self,
        *,
        tree: GitId,
        parents: Sequence[GitId],
        message: str,
        author: Stamp,
        committer: Stamp | None = None,
    ) -> GitId:
        """Store a commit and return its id; no ref moves.

        Args:
            tree: id from ``write_tree``.
            parents: the commits before it.
            message: its text, trailers included.
            author: who wrote it, and when.
            committer: who records it, and when; defaults to the author.

        Raises:
            UsageError: a text or time that Git cannot store.
        """
        data = encode_commit(
            tree=tree,
            parents=parents,
            message=message,
            author=author,
            committer=committer or author,
        )
        return self._objects.write("commit", data)

    def read_commit(self, commit: GitId) -> CommitInfo:
        """Return a commit.

        Raises:
            CorruptionError: it is damaged or missing.
            FormatError: the object is no commit.
        """
        return self._objects.read_commit(commit)

    def sync_objects(self) -> None:
        """Make every object written so far durable, name and bytes.

        Raises:
            StorageError: the machine failed, now or in an earlier call.
        """
        self._objects.sync()

    # -- the graph

    def walk(
        self, starts: Sequence[GitId], *, limit: int | None = None, first_parent: bool = False
    ) -> Iterator[CommitInfo]:
        """Yield reachable commits, children before parents, youngest first.

        Raises:
            CorruptionError: a commit is damaged or missing.
        """
        return walk(self._objects, starts, limit=limit, first_parent=first_parent)

    def find_merge_base(self, left: GitId, right: GitId) -> GitId | None:
        """Return the best common ancestor of two commits, or None."""
        return next(iter(find_merge_bases(self._objects, left, right)), None)

    def find_merge_bases(self, left: GitId, right: GitId) -> list[GitId]:
        """Return all best common ancestors of two commits, youngest first."""
        return find_merge_bases(self._objects, left, right)

    def is_ancestor(self, ancestor: GitId, descendant: GitId) -> bool:
        """Tell whether one commit can be reached from another (a commit reaches itself)."""
        return is_ancestor(self._objects, ancestor, descendant)

    # -- revisions

    def resolve(self, revision: str) -> GitId:
        """Return the id that a revision names, tags followed; see ``mvc.history.revisions``.

        Raises:
            NotFoundError: there is none, or more than one; the hint names close ones.
        """
        return self._revisions.resolve(revision)

    def resolve_ref_name(self, name: str) -> str | None:
        """Return the full name of the ref that a short name stands for, or None."""
        return self._revisions.find_ref_name(name)

    # -- index

    def read_index(self) -> Index:
        """Return the staging area; an empty one before the first ``add``.

        Raises:
            CorruptionError: the index is damaged.
        """
        from mvc.history.index import NAME, read_index_file  # noqa: PLC0415  see its text

        return read_index_file(self.git_dir / NAME)

    def write_index(self, index: Index) -> None:
        """Replace the staging area durably; only under ``lock()``.

        The blobs it names are made durable first. Entries that are racy are written so that they
        match no file before somebody has compared its content.

        Raises:
            UsageError: the lock is not held, or an entry that no index may hold.
            ConflictError: a stock Git holds the index.
        """
        from mvc.history.index import NAME, write_index_file  # noqa: PLC0415  see its text

        if not self._lock.is_held:
            raise UsageError("the index is written under the repository's lock only")
        self.sync_objects()
        with self._lock.writing([NAME]):
            write_index_file(self.git_dir / NAME, index)

    # -- notes

    def read_notes(self, ref: str) -> dict[GitId, GitId]:
        """Return commit → blob of its note; empty where there is no such ref.

        Args:
            ref: full name, such as ``refs/notes/released``.

        Raises:
            UsageError: no name for notes.
            FormatError: the notes are damaged or missing.
        """
        from mvc.history.notes import read_notes  # noqa: PLC0415  few commands need it

        return read_notes(self, ref)

    def find_notes(self, ref: str) -> NoteFinder | None:
        """Return what finds the notes of single commits, or None where there is no such ref.

        Args:
            ref: full name, such as ``refs/notes/released``.

        Raises:
            FormatError: the newest commit of the notes is damaged or missing.
        """
        from mvc.history.notes import NoteFinder  # noqa: PLC0415  few commands need it

        tip = self.find_ref(ref)
        if tip is None:
            return None
        return NoteFinder(self.read_commit(tip).tree, self._objects.read_tree_items)

    def write_notes(
        self, ref: str, changes: Mapping[GitId, bytes | None], *, message: str, stamp: Stamp
    ) -> None:
        """Replace the notes of some commits durably (None takes one away); others stay.

        Takes ``no_sweep()`` and ``lock()`` itself, so not to be called under ``lock()`` alone.

        Args:
            ref: full name, such as ``refs/notes/released``.
            changes: commit → its new note.
            message: why, for the log of the notes.
            stamp: who writes them, and when.

        Raises:
            UsageError: no name for notes, or no commit id.
            FormatError: the notes that are there are damaged.
        """
        from mvc.history.notes import write_notes  # noqa: PLC0415  few commands need it

        write_notes(self, ref, changes, message=message, stamp=stamp)

    # -- config

    def read_config(self) -> dict[str, str]:
        """Return ``section.key`` → value; the last one where there are several.

        Raises:
            FormatError: the config is damaged.
        """
        return {key: values[-1] for key, values in self._read_config().items()}

    def get_config(self, key: str) -> str | None:
        """Return one value, or None.

        Raises:
            UsageError: it is no key.
        """
        return config_format.last_value(self._read_config(), config_format.normal_key(key))

    def set_config(self, key: str, value: str) -> None:
        """Set a value durably, in place of all there are for that key.

        Raises:
            UsageError: no key, or no value that a config can hold.
        """
        self._change_config(config_format.normal_key(key), [config_format.check_value(value)])

    def unset_config(self, key: str) -> None:
        """Remove a key durably.

        Raises:
            NotFoundError: it is not set.
        """
        key = config_format.normal_key(key)
        with self.lock():
            if key not in self._read_config():
                raise NotFoundError(f"{key} is not set")
            self._change_config(key, [])

    def _read_config(self) -> config_format.Config:
        return config_format.read_config_file(self.git_dir / "config")

    def _change_config(self, key: str, values: list[str]) -> None:
        path = self.git_dir / "config"
        with self._lock.writing(["config"]), git_lock(path) as file:
            config = self._read_config()
            config[key] = values
            file.write([config_format.encode_config(config)])
            file.publish(path)

    # -- looking after it

    def check(self) -> Iterator[HistoryProblem]:
        """Yield everything that is wrong with the history: all objects, links, refs and logs."""
        from mvc.history.check import check  # noqa: PLC0415  only fsck needs it

        return check(self._objects, self._refs, self.read_index)

    def reachable_blobs(
        self, starts: Sequence[GitId] | None = None
    ) -> Iterator[tuple[GitId, str, GitId]]:
        """Yield (commit, path, blob) of every blob that history holds, each blob once.

        Args:
            starts: commits or tags to begin at; None means all ``roots()``. The index is not
                part of it, and notes hold no files.

        Raises:
            FormatError: a damaged or missing object.
        """
        from mvc.history.check import reachable_blobs  # noqa: PLC0415  only fsck and gc need it

        return reachable_blobs(self._objects, self.roots() if starts is None else starts)

    def roots(self, *, expiry: ReflogExpiry | None = None) -> list[GitId]:
        """Return what HEAD, all refs but notes, and the reflogs name; not the index.

        Args:
            expiry: leave out what only entries know that ``expire_reflogs`` would take out.

        Raises:
            CorruptionError: HEAD or a ref is damaged.
        """
        from mvc.history.roots import find_roots  # noqa: PLC0415  only fsck and gc need it

        return find_roots(self._objects, self._refs, expiry=expiry)

    def reachable_objects(self, *, expiry: ReflogExpiry | None = None) -> set[GitId]:
        """Return all commits, tags, trees and blobs in use: by roots, notes and the index.

        Args:
            expiry: as in ``roots``.

        Raises:
            CorruptionError: something is missing or damaged: nothing may be removed then.
        """
        from mvc.history.object_sweep import reachable_objects  # noqa: PLC0415  only gc needs it
        from mvc.history.roots import find_roots  # noqa: PLC0415

        roots = find_roots(self._objects, self._refs, notes=True, expiry=expiry)
        blobs = [entry.blob for entry in self.read_index().entries.values()]
        return reachable_objects(self._objects, roots, blobs)

    def find_recent(
        self, reachable: Collection[GitId], *, older_than_s: float, now_s: float | None = None
    ) -> set[GitId]:
        """Return what is in use no more but too young to go, and all that it leads to.

        Args:
            reachable: what ``reachable_objects`` returned.
            older_than_s: age in seconds that an object needs to be garbage.
            now_s: the time that ages are counted to; now where None.
        """
        from mvc.history.object_sweep import find_recent  # noqa: PLC0415  only gc needs it

        return find_recent(self._objects, reachable, older_than_s=older_than_s, now_s=now_s)

    def list_garbage(
        self, reachable: Collection[GitId], *, older_than_s: float, now_s: float | None = None
    ) -> list[GarbageObject]:
        """Return loose objects and left temporary files that may go, in the order of removal.

        Args:
            reachable: what ``reachable_objects`` returned.
            older_than_s: age in seconds that they need; what younger ones lead to stays as well.
            now_s: the time that ages are counted to; now where None.
        """
        from mvc.history.object_sweep import list_garbage  # noqa: PLC0415  only gc needs it

        return list_garbage(self._objects, reachable, older_than_s=older_than_s, now_s=now_s)

    def remove_objects(self, garbage: Iterable[GarbageObject]) -> int:
        """Remove what ``list_garbage`` listed, durably; return the bytes that it took.

        Under ``sweep_alone()`` only, and once the roots were looked at under it. What is gone
        already, or was written again since, is passed over.

        Raises:
            UsageError: the lock is not held.
            StorageError: the machine refused.
        """
        from mvc.history.object_sweep import remove_objects  # noqa: PLC0415  only gc needs it

        if not self._sweep_lock.is_alone:
            raise UsageError("objects are removed under the sweep lock only")
        return remove_objects(self._objects, garbage)

    def expire_reflogs(
        self, expiry: ReflogExpiry | None = None, *, dry_run: bool = False
    ) -> dict[str, int]:
        """Take old entries out of all reflogs durably; the newest one of a log stays.

        Args:
            expiry: how old; Git's 90 and 30 days where None.
            dry_run: only count.

        Returns:
            Ref → how many entries, for each log that has any.

        Raises:
            CorruptionError: a commit that had to be looked at is damaged or missing.
        """
        from mvc.history import reflog_expiry  # noqa: PLC0415  only gc needs it

        expiry = reflog_expiry.ReflogExpiry() if expiry is None else expiry
        return reflog_expiry.expire_reflogs(self._objects, self._refs, expiry, dry_run=dry_run)
