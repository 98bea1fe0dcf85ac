"""The handle that every operation gets: a worktree, its history and its chunk store.

What a handle needs is imported when it is first used: ``log`` and ``branch`` never pay for the
chunk store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from mvc.errors import FormatError, RepositoryNotFoundError
from mvc.history.config import is_true
from mvc.history.git import GitHistory
from mvc.history.values import Identity, Stamp

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.chunkstore.listing import PackListing
    from mvc.chunkstore.nearby import Nearby
    from mvc.chunkstore.relatives import DeltaMode
    from mvc.chunkstore.store import ChunkStore
    from mvc.formats.layout import TensorView
    from mvc.formats.manifest import Manifest, StoredSegment
    from mvc.ids import ChunkId, GitId
    from mvc.storage.protocol import Storage
    from mvc.workspace.kept import Kept, PartDigests
    from mvc.workspace.notebook import Notebook, NoteKind

GIT_DIR_NAME = ".mvc"
STORE_DIR_NAME = "chunks"
STORE = "mvc.store"
"""The setting that names the remote that has the content, if one has."""
JOURNAL_NAME = "transition.json"
RELEASED_REF = "refs/notes/released"
_MANIFESTS_KEPT = 8
_FETCH_THREADS = 4  # at least, where reading is mostly waiting
_Entry = TypeVar("_Entry")
_Verb = TypeVar("_Verb", bound="Callable[..., Any]")
"""A decorator that returns what it was given is understood by type checkers wherever it is used."""


class ManifestReader:
    """Reads manifests; the last few are kept, for a verb asks for the same ones again and again."""

    def __init__(self, history: GitHistory) -> None:
        read = lru_cache(_MANIFESTS_KEPT)(partial(_read_manifest, history))
        self._read = read
        self._name = lru_cache(_MANIFESTS_KEPT)(lambda blob: read(blob).tensors_by_name())
        self.holders: dict[tuple[GitId, str], GitId] = {}
        """(commit, path) → manifest of the files whose tensors were asked for one by one."""

    def read(self, blob: GitId) -> Manifest:
        """Return the manifest in a blob."""
        return self._read(blob)

    def tensors(self, blob: GitId) -> dict[str, tuple[TensorView, StoredSegment]]:
        """Return name → place of every tensor of a stored file; the last tables are kept."""
        return self._name(blob)


def _read_manifest(history: GitHistory, blob: GitId) -> Manifest:
    from mvc.formats.manifest_lines import parse_manifest  # noqa: PLC0415  log needs none

    return parse_manifest(history.read_blob(blob))


@dataclass
class Context:
    """An open repository; ``identity`` None means whom Git would name, ``threads`` None all cores.

    ``nearby`` is where chunks are asked for before they are read from any store; ``open_promised`` returns what remotes promise to give, if the config names such remotes.
    """

    worktree: Path
    history: GitHistory
    identity: Identity | None = None
    threads: int | None = None
    niceness: Callable[[], int] | None = None
    open_promised: Callable[[Context], Sequence[Storage]] | None = None
    nearby: list[Nearby] = field(default_factory=list, init=False, repr=False, compare=False)
    _notebooks: dict[str, Notebook[Any]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def here(self) -> ChunkStore:
        """The chunks that are here: new ones are written here, and gc and repack work on these alone."""
        from mvc.chunkstore.store import ChunkStore  # noqa: PLC0415  brings NumPy

        return ChunkStore(
            self._storage(), threads=self.threads, niceness=self.niceness, nearby=self.nearby
        )

    @cached_property
    def store(self) -> ChunkStore:
        """The chunks to read: those that are here, and those that a remote promises to give."""
        if self.open_promised is None or not has_promisor(self.history.config.read()):
            return self.here
        from mvc.chunkstore.store import ChunkStore  # noqa: PLC0415  brings NumPy
        from mvc.storage.joined import JoinedStorage  # noqa: PLC0415  few repositories need it

        joined = JoinedStorage([self.here.storage, *self.open_promised(self)])
        threads = max(self.here.threads, _FETCH_THREADS)
        return ChunkStore(joined, threads=threads, nearby=self.nearby)

    def _storage(self) -> Storage:
        from mvc.storage.local import LocalStorage  # noqa: PLC0415  no obstore is needed

        return LocalStorage(self.store_folder)

    def stored_sizes(self, chunks: Collection[ChunkId]) -> Mapping[ChunkId, int]:
        """Return chunk → bytes in its pack, without those that no pack has."""
        if chunks and "here" not in self.__dict__:
            from mvc.chunkstore.listing import find_stored_sizes  # noqa: PLC0415  as above

            sizes = find_stored_sizes(self._storage(), chunks)
            if sizes is not None:
                return sizes
        places = ((chunk, self.here.find(chunk)) for chunk in chunks)
        return {chunk: place.stored_size_bytes for chunk, place in places if place is not None}

    def list_packs(self) -> PackListing:
        """Return names, sizes and times of all packs; no index is read, and no NumPy needed."""
        from mvc.chunkstore.listing import PackListing  # noqa: PLC0415  as above

        return PackListing(self._storage())

    @property
    def has_releases(self) -> bool:
        """Whether anything was ever released (``mvc prune``)."""
        return self.history.find_ref(RELEASED_REF) is not None

    def close(self) -> None:
        """Close the files that are kept open for reading; they are opened again when needed."""
        self.__dict__.pop("store", None)
        self.__dict__.pop("here", None)
        self.history.close()

    @cached_property
    def manifests(self) -> ManifestReader:
        """Reads manifests from the history."""
        return ManifestReader(self.history)

    @cached_property
    def kept(self) -> Kept:
        """The cache of statistics of tensors and chunks, keyed by id."""
        from mvc.workspace.kept import FILE_NAME, Kept  # noqa: PLC0415  few commands need it

        return Kept(self.git_dir / FILE_NAME)

    @cached_property
    def digests(self) -> PartDigests:
        """Hashes of parts that were read."""
        from mvc.workspace.kept import PartDigests  # noqa: PLC0415  as above

        return PartDigests()

    def notebook(self, kind: NoteKind[_Entry]) -> Notebook[_Entry]:
        """Return the Git notes of a kind; the same object each time."""
        from mvc.workspace.notebook import Notebook  # noqa: PLC0415  few commands need it

        return self._notebooks.setdefault(kind.ref, Notebook(self.history, kind))

    @property
    def git_dir(self) -> Path:
        """The ``.mvc`` folder."""
        return self.worktree / GIT_DIR_NAME

    @property
    def store_folder(self) -> Path:
        """Where the chunks are that are here."""
        return self.git_dir / STORE_DIR_NAME

    @cached_property
    def chunk_bytes(self) -> int:
        """Where tensors are cut, from ``mvc.chunkbytes`` of the config."""
        from mvc.formats.manifest import DEFAULT_CHUNK_BYTES  # noqa: PLC0415
        from mvc.workspace.settings import parse_chunk_bytes  # noqa: PLC0415

        text = self.history.config.get("mvc.chunkbytes")
        return DEFAULT_CHUNK_BYTES if text is None else parse_chunk_bytes(text)

    def delta_mode(self, *, insist: bool | None) -> DeltaMode:
        """Return when chunks are stored as differences: as a caller insists, else as configured."""
        from mvc.chunkstore.relatives import DeltaMode  # noqa: PLC0415  brings NumPy

        if insist is not None:
            return DeltaMode.ALWAYS if insist else DeltaMode.NEVER
        text = self.history.config.get("mvc.delta") or DeltaMode.AUTO.value
        try:
            return DeltaMode(text)
        except ValueError as error:
            raise FormatError(
                f"mvc.delta is {text[:80]!r}, not never, auto or always",
                hint='set it with "mvc config mvc.delta auto"',
            ) from error

    def forget_settings(self) -> None:
        """Read settings again when they are next needed."""
        self.__dict__.pop("chunk_bytes", None)
        self.__dict__.pop("store", None)

    def ref_commits(self) -> dict[str, GitId]:
        """Return full name → commit of all refs, tags followed; refs to other objects left out."""
        found = {name: self.history.find_commit(name) for name in self.history.list_refs()}
        return {name: commit for name, commit in found.items() if commit is not None}

    def stamp(self, author: Identity | None = None, time_s: int | None = None) -> Stamp:
        """Return who acts, and when: defaults to ``identity`` or whom Git would name, and to now."""
        identity = author or self.identity
        if identity is None:
            from mvc.workspace.settings import find_identity  # noqa: PLC0415  readers need none

            identity, _ = find_identity(self.history.config.read())
        return Stamp.now(identity, time_s)

    def check_identity(self) -> None:
        """Check that a commit can name who acts; UsageError if that is not a name."""
        from mvc.history.object_formats import encode_identity  # noqa: PLC0415  only writers need it

        encode_identity(self.stamp().identity)


def has_promisor(config: Mapping[str, str]) -> bool:
    """Return whether a remote promises to give what is not here."""
    return any(
        key.startswith("remote.") and key.endswith(".promisor") and is_true(value)
        for key, value in config.items()
    )


def holds_sweep_lock(operation: _Verb) -> _Verb:
    """Make an operation hold the sweep lock, shared, from its first look to its last write.

    The Git objects it writes are gathered: many become one pack.

    For every operation that writes chunks or objects, or points a ref or index entry at old ones:
    until they are reachable, a sweep would take them for garbage.
    """

    @wraps(operation)
    def run(context: Context, /, *args: Any, **options: Any) -> Any:
        with context.history.no_sweep(), context.history.gathering():
            return operation(context, *args, **options)

    return run  # type: ignore[return-value]  # it has the same signature


def threads_of(context: Context | None) -> int:
    """Return how many threads work for a handle, or for none, outside of a repository."""
    from mvc.chunkstore.store import choose_threads  # noqa: PLC0415  brings NumPy

    return choose_threads(None if context is None else context.threads)


def init(worktree: Path, *, branch: str = "main") -> Context:
    """Create ``.mvc`` in a folder; an existing repository is opened unchanged."""
    worktree = worktree.resolve()
    git_dir = worktree / GIT_DIR_NAME
    if git_dir.exists():
        return open_at(worktree)
    return Context(worktree, GitHistory.init(git_dir, branch=branch))


def open_at(worktree: Path) -> Context:
    """Open the repository of exactly this folder."""
    worktree = worktree.resolve()
    return Context(worktree, GitHistory.open(worktree / GIT_DIR_NAME))


def discover(start: Path) -> Context:
    """Open the repository of a folder or of the nearest folder above it."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if os.path.isdir(folder / GIT_DIR_NAME):
            return open_at(folder)
    raise RepositoryNotFoundError(
        f"not an mvc repository (or any folder above): {start}", hint='run "mvc init" to make one'
    )
