"""What every operation works on: a worktree, its history and its chunk store.

The chunk store is opened on first use, and what it needs is imported then: ``log`` and ``branch``
never pay for it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from mvc.errors import FormatError, NotFoundError, RepositoryNotFoundError
from mvc.history.git import GitHistory
from mvc.history.values import Identity, Stamp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mvc.chunkstore.store import ChunkStore
    from mvc.formats.layout import TensorView
    from mvc.formats.manifest import Manifest, StoredSegment
    from mvc.history.notes import NoteFinder
    from mvc.ids import GitId
    from mvc.workspace.releases import Release

GIT_DIR_NAME = ".mvc"
STORE_DIR_NAME = "chunks"
_DEFAULT_IDENTITY = Identity("mvc", "mvc@localhost")


@dataclass
class Context:
    """An open repository.

    Attributes:
        worktree: folder with the user's files.
        history: the Git repository in ``.mvc``.
        identity: who commits, where the call names nobody; None means the repository's config.
        threads: workers for hashing and encoding; None means all cores.
        notes_seen: the tip of the release notes and what finds them, when last looked at.
        releases_seen: that tip and all release records, when they were read.
    """

    worktree: Path
    history: GitHistory
    identity: Identity | None = None
    threads: int | None = None
    _manifests: dict[GitId, Manifest] = field(default_factory=dict, repr=False)
    _table: tuple[GitId, dict[str, tuple[TensorView, StoredSegment]]] | None = field(
        default=None, repr=False
    )
    notes_seen: tuple[GitId, NoteFinder] | None = field(default=None, repr=False)
    releases_seen: tuple[GitId, dict[GitId, tuple[Release, ...]]] | None = field(
        default=None, repr=False
    )

    @cached_property
    def store(self) -> ChunkStore:
        """The chunk store, opened on first use."""
        from mvc.chunkstore.store import ChunkStore  # noqa: PLC0415  brings NumPy
        from mvc.storage.local import LocalStorage  # noqa: PLC0415

        return ChunkStore(LocalStorage(self.git_dir / STORE_DIR_NAME), threads=self.threads)

    @property
    def git_dir(self) -> Path:
        """The ``.mvc`` folder."""
        return self.worktree / GIT_DIR_NAME

    @cached_property
    def chunk_bytes(self) -> int:
        """Where tensors are cut, from ``mvc.chunkbytes`` of the config."""
        from mvc.formats.manifest import DEFAULT_CHUNK_BYTES, check_chunk_bytes  # noqa: PLC0415

        text = self.history.get_config("mvc.chunkbytes")
        if text is None:
            return DEFAULT_CHUNK_BYTES
        if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
            raise FormatError(
                f"mvc.chunkbytes is {text[:80]!r}, not a number of bytes",
                hint='set it with "mvc config mvc.chunkbytes 4194304"',
            )
        check_chunk_bytes(int(text))
        return int(text)

    def forget_settings(self) -> None:
        """Read settings anew when they are needed next."""
        self.__dict__.pop("chunk_bytes", None)

    def resolve_commit(self, revision: str) -> GitId:
        """Return the commit that a revision names.

        Raises:
            NotFoundError: no such revision, or it names something else than a commit.
        """
        found = self.history.resolve(revision)  # apart, so that an error shows what was written
        return self.history.resolve(f"{found}^{{commit}}")

    def ref_commits(self) -> dict[str, GitId]:
        """Return full name → commit of all refs, tags followed; refs to anything else left out."""
        found: dict[str, GitId] = {}
        for name in self.history.list_refs():
            with contextlib.suppress(NotFoundError):  # a stock Git may tag anything
                found[name] = self.resolve_commit(name)
        return found

    def stamp(self, author: Identity | None = None, time_s: int | None = None) -> Stamp:
        """Return who acts, and when: defaults to ``identity`` or the config, and to now."""
        identity = author or self.identity
        if identity is None:
            name = self.history.get_config("user.name")
            email = self.history.get_config("user.email")
            identity = Identity(name or _DEFAULT_IDENTITY.name, email or _DEFAULT_IDENTITY.email)
        return Stamp.now(identity, time_s)

    def read_manifest(self, blob: GitId) -> Manifest:
        """Return the manifest in a blob; the last few are remembered.

        Raises:
            FormatError: the blob is no manifest or breaks a rule.
        """
        manifest = self._manifests.get(blob)
        if manifest is None:
            from mvc.formats.manifest import parse_manifest  # noqa: PLC0415

            manifest = parse_manifest(self.history.read_blob(blob))
            while len(self._manifests) >= _MANIFESTS_KEPT:
                self._manifests.pop(next(iter(self._manifests)))
            self._manifests[blob] = manifest
        return manifest

    def tensor_table(self, blob: GitId) -> dict[str, tuple[TensorView, StoredSegment]]:
        """Return name → place of every tensor of a stored file; the last one is remembered."""
        if self._table is None or self._table[0] != blob:
            tensors = self.read_manifest(blob).tensors()
            self._table = (blob, {view.name: (view, stored) for view, stored in tensors})
        return self._table[1]


_MANIFESTS_KEPT = 8
_MAX_DIGITS = 12
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def unswept(
    operation: Callable[Concatenate[Context, _Parameters], _Result],
) -> Callable[Concatenate[Context, _Parameters], _Result]:
    """Run an operation under ``history.no_sweep()``: it makes something reachable.

    For every operation that writes chunks or objects, or moves a ref or index entry onto old ones.
    """

    @wraps(operation)
    def run(context: Context, /, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with context.history.no_sweep():
            return operation(context, *args, **kwargs)

    return run


def init(worktree: Path, *, branch: str = "main") -> Context:
    """Create ``.mvc`` in a folder; an existing repository is opened unchanged."""
    worktree = worktree.resolve()
    git_dir = worktree / GIT_DIR_NAME
    if git_dir.exists():
        return open_at(worktree)
    return Context(worktree, GitHistory.init(git_dir, branch=branch))


def open_at(worktree: Path) -> Context:
    """Open the repository of exactly this folder.

    Raises:
        RepositoryNotFoundError: no ``.mvc`` there.
    """
    worktree = worktree.resolve()
    return Context(worktree, GitHistory.open(worktree / GIT_DIR_NAME))


def discover(start: Path) -> Context:
    """Open the repository of a folder or of the nearest folder above it.

    Raises:
        RepositoryNotFoundError: no ``.mvc`` there or above.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if os.path.isdir(folder / GIT_DIR_NAME):
            return open_at(folder)
    raise RepositoryNotFoundError(
        f"not an mvc repository (or any folder above): {start}", hint='run "mvc init" to make one'
    )


def is_inside(path: Path, folder: Path) -> bool:
    """Tell whether ``path`` is ``folder`` or lies below it, names compared as they are."""
    return path == folder or folder in path.parents


__all__ = [
    "GIT_DIR_NAME",
    "Context",
    "discover",
    "init",
    "is_inside",
    "open_at",
    "unswept",
]
