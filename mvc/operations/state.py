"""commit_state and load_state: a live training state is a commit like any other, without files.

The state is laid out as the files it would check out as (``mvc.checkpoints.state``) and goes the
road of ``add`` and ``commit`` from there. Its index entries carry Git's skip-worktree bit, so a
run that commits from memory has a clean status with nothing on disk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from mvc.checkpoints.state import STATE_FILE, encode_state, find_files, plan_state
from mvc.errors import ConflictError, FormatError, NotFoundError
from mvc.formats.manifest import encode_manifest
from mvc.history.messages import format_message
from mvc.history.values import Index, IndexEntry, TreeEntry
from mvc.operations.annotations import Annotations
from mvc.operations.commit import CommitResult, record, summarise
from mvc.operations.files import PLAIN_FILE_MAX_BYTES, find_manifest, store_chunks, write_content
from mvc.operations.tensors import find_tensor_in, read_tensor_into
from mvc.operations.transition import recover
from mvc.operations.worktree import MODE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mvc.checkpoints.state import StateFile
    from mvc.chunkstore.store import ChunkWriter
    from mvc.formats.manifest import Manifest
    from mvc.history.values import Head, Identity
    from mvc.ids import GitId
    from mvc.operations.context import Context

_STATE_MAX_BYTES = 256 * 2**20


def commit_state(
    context: Context,
    state: Mapping[str, object],
    message: str,
    *,
    annotations: Annotations | None = None,
    branch: str | None = None,
    author: Identity | None = None,
    time_s: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> CommitResult:
    """Record a nested state as a new commit of a branch; no file is written.

    Args:
        context: the repository.
        state: top-level names → nested containers, arrays and scalars.
        message: subject, and body after an empty line.
        annotations: step, metrics and other facts of the training.
        branch: which branch to move; the current one (or detached HEAD) where None. Another
            branch takes its files from its own tip, and the index is left alone.
        author: who; the repository's or context's identity where None.
        time_s: when, in seconds since 1970; now where None.
        progress: called with bytes taken.

    Raises:
        UnsupportedError: a value that is not data; names its path.
        ConflictError: the branch moved meanwhile; nothing is lost, commit again.
    """
    started_s = time.perf_counter()
    recover(context)
    history, who = context.history, context.who(author)
    text = format_message(message, (annotations or Annotations()).trailers())
    head = history.head()
    is_current = branch is None or branch == head.branch
    tip = head.commit if is_current else history.find_ref(f"refs/heads/{branch}")
    files = encode_state(state)
    with context.store.writer() as writer:
        entries = {file.path: _store_state_file(context, writer, file, progress) for file in files}
    base = history.read_tree(tip) if tip is not None else {}
    tree = _tree_with_state(context, base, entries, is_current=is_current)
    new = record(
        context, tree, [] if tip is None else [tip], text, who=who, author=None, time_s=time_s
    )
    reason = f"commit: {text.split(chr(10), 1)[0]}"
    if is_current:
        _move_head(context, head, new, entries, base, reason, who)
    else:
        ref = f"refs/heads/{branch}"
        history.update_ref(ref, new, expected=tip, message=reason, who=who)
    return summarise(context, new, base, tree, started_s, branch=branch or head.branch)


def _store_state_file(
    context: Context,
    writer: ChunkWriter,
    file: StateFile,
    progress: Callable[[int], None] | None,
) -> TreeEntry:
    if not file.layout.segments and file.layout.size_bytes <= PLAIN_FILE_MAX_BYTES:
        data = bytearray(file.layout.size_bytes)
        file.source.read_into(0, memoryview(data))
        return TreeEntry(MODE_FILE, context.history.write_blob(bytes(data)))
    manifest = store_chunks(writer, file.source, file.layout, context.chunk_bytes, progress)
    return TreeEntry(MODE_FILE, context.history.write_blob(encode_manifest(manifest)))


def _tree_with_state(
    context: Context,
    base: Mapping[str, TreeEntry],
    entries: Mapping[str, TreeEntry],
    *,
    is_current: bool,
) -> dict[str, TreeEntry]:
    """Return the tree to commit: what is staged (or the branch holds), the state replaced."""
    if is_current:
        index = context.history.read_index()
        tree = {path: TreeEntry(item.mode, item.blob) for path, item in index.entries.items()}
    else:
        tree = dict(base)
    for path in _old_state_files(context, base):
        tree.pop(path, None)
    tree.update(entries)
    return tree


def _old_state_files(context: Context, tree: Mapping[str, TreeEntry]) -> set[str]:
    """Return the files that the last committed state was made of."""
    entry = tree.get(STATE_FILE)
    if entry is None:
        return set()
    try:
        return {STATE_FILE, *find_files(read_small_file(context, entry.blob))}
    except FormatError:
        return set()  # the user's own file of that name


def _move_head(
    context: Context,
    head: Head,
    new: GitId,
    entries: Mapping[str, TreeEntry],
    base: Mapping[str, TreeEntry],
    reason: str,
    who: Identity,
) -> None:
    """Move the branch and put the state's entries into the index, under one lock."""
    history = context.history
    with history.lock():
        if history.head() != head:
            raise ConflictError(
                f"HEAD moved from {head.commit} while the state was stored", hint="commit it again"
            )
        current = dict(history.read_index().entries)
        for path in _old_state_files(context, base):
            current.pop(path, None)
        current.update(
            {
                path: IndexEntry(path=path, blob=entry.blob, mode=entry.mode, skip_worktree=True)
                for path, entry in entries.items()
            }
        )
        history.update_head(new, expected=head.commit, message=reason, who=who)
        history.write_index(Index(current))


def load_state(
    context: Context,
    revision: str = "HEAD",
    *,
    framework: Literal["torch", "numpy"] = "torch",
    into: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Return the nested state of a commit, exactly as it was given, every byte verified.

    Args:
        context: the repository.
        revision: which commit (``main@12000`` for a step).
        framework: ``torch`` gives torch tensors where torch tensors went in, ``numpy`` gives
            arrays for all.
        into: live tensors of the same structure to fill in place.

    Raises:
        NotFoundError: no such revision, or it holds no state.
        CorruptionError: damaged chunks; says which tensor.
    """
    tree = context.history.read_tree(context.history.resolve(revision))
    entry = tree.get(STATE_FILE)
    if entry is None:
        raise NotFoundError(
            f"{revision} holds no training state",
            hint="it was committed from files; read single tensors instead",
        )

    text = read_small_file(context, entry.blob)
    plan = plan_state(text, _TensorSizes(context, tree), framework=framework, into=into)
    for read in plan.reads:
        place = find_tensor_in(context, tree[read.file].blob, read.file, read.tensor)
        read.fill(partial(read_tensor_into, context, place))
    return plan.build()


class _TensorSizes(Mapping[str, Mapping[str, int]]):
    """File → tensor → bytes of a tree; manifests are read when a file is asked for."""

    def __init__(self, context: Context, tree: Mapping[str, TreeEntry]) -> None:
        self._context = context
        self._tree = tree

    def __getitem__(self, path: str) -> Mapping[str, int]:
        manifest = find_manifest(self._context, self._tree[path].blob)
        return {} if manifest is None else tensor_sizes(manifest)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    def __len__(self) -> int:
        return len(self._tree)


def tensor_sizes(manifest: Manifest) -> dict[str, int]:
    """Return name → bytes of the tensors that are whole segments."""
    return {
        stored.segment.tensors[0].name: stored.segment.size_bytes
        for stored in manifest.segments
        if stored.segment.is_plain
    }


def read_small_file(context: Context, blob: GitId) -> bytes:
    """Return the content of a small file, from its blob or its chunks.

    Raises:
        FormatError: it is larger than a state description can be.
    """
    manifest = find_manifest(context, blob)
    if manifest is None:
        return context.history.read_blob(blob)
    if manifest.size_bytes > _STATE_MAX_BYTES:
        raise FormatError(f"{STATE_FILE} of {manifest.size_bytes:,} bytes is over the limit")
    data = bytearray(manifest.size_bytes)
    target = memoryview(data)

    def write_at(plain: memoryview, offset: int) -> None:
        target[offset : offset + len(plain)] = plain

    write_content(context, manifest, STATE_FILE, write_at)
    return bytes(data)
