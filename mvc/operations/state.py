"""commit_state and load_state: a live training state is a commit like any other, without files.

The state is laid out as the files it would check out as (``mvc.states.state``) and goes the
road of ``add`` and ``commit`` from there. Its index entries carry Git's skip-worktree bit, so a
run that commits from memory has a clean status with nothing on disk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from mvc.chunkstore.parallel import for_each
from mvc.errors import ConflictError, CorruptionError, FormatError, NotFoundError
from mvc.formats.manifest import encode_manifest
from mvc.history.refnames import HEADS
from mvc.history.values import TreeEntry
from mvc.operations.tensors import StoredTensor, read_tensor_into
from mvc.states.outline import outline_state as outline_text
from mvc.states.state import STATE_FILE, encode_state, find_files, plan_state
from mvc.workspace.additions import delta_mode
from mvc.workspace.annotations import Annotations
from mvc.workspace.bases import Relatives, masters_first
from mvc.workspace.commits import CommitResult, new_message, record, summarise
from mvc.workspace.content import write_content
from mvc.workspace.context import holds_sweep_lock
from mvc.workspace.files import PLAIN_FILE_MAX_BYTES, store_chunks
from mvc.workspace.journal import EntryChange, Transition
from mvc.workspace.manifests import find_manifest
from mvc.workspace.released import check_content
from mvc.workspace.rerun import check_kept, take_back
from mvc.workspace.transition import plan_head_move, recover, run
from mvc.workspace.worktree import MODE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mvc.chunkstore.store import ChunkWriter, DeltaMode
    from mvc.chunkstore.values import WriteCounts
    from mvc.formats.manifest import Manifest
    from mvc.history.values import Head, Identity, Index, Stamp
    from mvc.ids import GitId
    from mvc.states.state import StateFile, TensorRead
    from mvc.workspace.context import Context

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
    delta: bool | None = None,
    previous: Mapping[str, object] | None = None,
    parent: str | None = None,
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
        delta: whether chunks are stored as differences to the parent commit's; by default where
            that gains much, or as ``mvc.delta`` of the config says.
        previous: the state of the parent commit, where the caller still has it: differences are
            then taken from it and not from the store. It is hashed before it is believed.
        parent: id of the commit that the branch must be at ("" for none); anywhere where None.
        progress: called with bytes taken.

    Raises:
        UsageError: no message, or no valid branch name.
        UnsupportedError: a value that is not data; names its path.
        ConflictError: the branch moved meanwhile, or is not at ``parent``; nothing is lost. Or a
            file of the same name is staged.
    """
    return commit_files(
        context,
        encode_state(state),
        message,
        annotations=annotations,
        branch=branch,
        author=author,
        time_s=time_s,
        delta=delta,
        previous=() if previous is None else encode_state(previous),
        parent=parent,
        progress=progress,
    )


@holds_sweep_lock
def commit_files(
    context: Context,
    files: Sequence[StateFile],
    message: str,
    *,
    annotations: Annotations | None = None,
    branch: str | None = None,
    author: Identity | None = None,
    time_s: int | None = None,
    delta: bool | None = None,
    previous: Sequence[StateFile] = (),
    parent: str | None = None,
    describe: Callable[[WriteCounts], Mapping[str, str]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> CommitResult:
    """Record the files of a state as a new commit of a branch, as ``commit_state`` does.

    Args:
        context: the repository.
        files: of the state.
        message: as there, and so are all others but these.
        annotations: step, metrics and other facts.
        branch: which branch to move.
        author: who.
        time_s: when.
        delta: whether chunks are stored as differences.
        previous: files of the parent commit's state.
        parent: where the branch must be.
        describe: called when all chunks are durable; what it returns joins the annotations.
        progress: called with bytes taken.
    """
    started_s = time.perf_counter()
    recover(context)
    facts = annotations or Annotations()
    new_message(message, facts)  # what is wrong with them, before anything is written
    place = _find_place(context, branch, parent)
    base = context.history.read_tree(place.tip) if place.tip is not None else {}
    index, old = context.history.read_index(), find_state_files(context, base)
    if place.is_current:
        _check_not_staged(index, base, {*old, *(file.path for file in files)})
    mode = delta_mode(context, insist=delta)
    entries, counts = _store_state(context, files, base, mode, previous, progress)
    kept = base
    if place.is_current:  # what is staged goes along, as with any commit
        kept = {path: TreeEntry(item.mode, item.blob) for path, item in index.entries.items()}
    kept = {path: entry for path, entry in kept.items() if path not in old}
    check_kept(context, kept)
    tree = {**kept, **entries}
    if describe is not None:
        facts = replace(facts, meta={**(facts.meta or {}), **describe(counts)})
    text = new_message(message, facts)
    parents = [] if place.tip is None else [place.tip]
    new = record(context, tree, parents, text, committer=context.stamp(author, time_s))
    changes = _entry_changes(index, old, entries) if place.is_current else ()
    _move_branch(context, place, new, text, context.stamp(author), changes, index)
    twin = take_back(context, new, tree)
    name = branch or place.head.branch
    return summarise(context, new, base, tree, started_s, branch=name, twin=twin)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a commit goes.

    Attributes:
        head: HEAD when it was decided.
        branch: another branch than HEAD's, or None.
        tip: what it follows, or None.
    """

    head: Head
    branch: str | None
    tip: GitId | None

    @property
    def is_current(self) -> bool:
        """Whether HEAD, and with it the index, moves along."""
        return self.branch is None


def _find_place(context: Context, branch: str | None, parent: str | None) -> _Place:
    history = context.history
    if branch is not None:
        history.check_branch_name(branch)
    head = history.head()
    if branch is None or branch == head.branch:
        place = _Place(head, None, head.commit)
    else:
        place = _Place(head, branch, history.find_ref(f"{HEADS}{branch}"))
    _check_parent(place.tip, parent, branch or head.branch)
    return place


def _check_parent(tip: GitId | None, parent: str | None, branch: str | None) -> None:
    if parent is not None and (tip or "") != parent:
        where = f"branch {branch!r}" if branch else "HEAD"
        stands = f"at {tip[:10]}" if tip else "without a commit"
        wanted = f"at {parent[:10]}" if parent else "without a commit"
        raise ConflictError(
            f"{where} is {stands}, not {wanted} where this run left it",
            hint="somebody else moved it; nothing was committed",
        )


def _store_state(
    context: Context,
    files: Sequence[StateFile],
    base: Mapping[str, TreeEntry],
    mode: DeltaMode,
    previous: Sequence[StateFile],
    progress: Callable[[int], None] | None,
) -> tuple[dict[str, TreeEntry], WriteCounts]:
    """Store the files of a state in one session; return their entries, and what was written."""
    by_path = {file.path: file for file in files}
    with context.store.writer(mode) as writer:
        sources = {file.path: file.source for file in files}
        relatives = Relatives(context, writer, base, sources)
        for old in previous:
            relatives.offer_file(old.path, old.layout, old.source)
        order = masters_first(list(by_path), {file.path: file.layout for file in files})
        entries = {
            path: _store_state_file(context, writer, by_path[path], relatives, progress)
            for path in order
        }
    return entries, writer.counts


def _store_state_file(
    context: Context,
    writer: ChunkWriter,
    file: StateFile,
    relatives: Relatives,
    progress: Callable[[int], None] | None,
) -> TreeEntry:
    if not file.layout.segments and file.layout.size_bytes <= PLAIN_FILE_MAX_BYTES:
        data = bytearray(file.layout.size_bytes)
        file.source.read_into(0, memoryview(data))
        return TreeEntry(MODE_FILE, context.history.write_blob(bytes(data)))
    manifest = store_chunks(
        writer,
        file.source,
        file.layout,
        context.chunk_bytes,
        progress,
        path=file.path,
        relatives=relatives,
    )
    return TreeEntry(MODE_FILE, context.history.write_blob(encode_manifest(manifest)))


def _check_not_staged(index: Index, base: Mapping[str, TreeEntry], paths: Iterable[str]) -> None:
    """Check that the state takes no place of a file that the user staged and did not commit."""
    for path in sorted(paths):
        entry, kept = index.entries.get(path), base.get(path)
        if entry is None or entry.skip_worktree:
            continue
        if kept is None or (kept.mode, kept.blob) != (entry.mode, entry.blob):
            raise ConflictError(
                f"{path!r} is staged and would be replaced by the state",
                hint=f'commit it first, or take it back with "mvc restore --staged {path}"',
            )


def _move_branch(
    context: Context,
    place: _Place,
    new: GitId,
    text: str,
    stamp: Stamp,
    changes: tuple[EntryChange, ...],
    index: Index,
) -> None:
    """Move the branch to its new commit; with HEAD on it, the index follows."""
    verb = "commit (initial)" if place.tip is None else "commit"
    reason = f"{verb}: {text.split(chr(10), 1)[0]}"
    if place.branch is None:
        move = plan_head_move("move", new, place.head, reason, stamp)
        run(context, Transition(entries=changes, head=move), index)
        return
    with context.history.lock():  # its index and files are nobody's
        if context.history.head().branch == place.branch:
            raise ConflictError(f"HEAD went to {place.branch!r} meanwhile", hint="commit it again")
        ref = f"{HEADS}{place.branch}"
        context.history.update_ref(ref, new, expected=place.tip, message=reason, stamp=stamp)


def find_state_files(context: Context, tree: Mapping[str, TreeEntry]) -> set[str]:
    """Return the files that the state of a commit is made of; none where it holds no state."""
    entry = tree.get(STATE_FILE)
    if entry is None:
        return set()
    try:
        return {STATE_FILE, *find_files(read_small_file(context, entry.blob))}
    except FormatError:
        return set()  # the user's own file of that name


def _entry_changes(
    index: Index, old: Iterable[str], entries: Mapping[str, TreeEntry]
) -> tuple[EntryChange, ...]:
    """Return what puts the state's entries into the index in place of the old ones."""
    gone = [path for path in sorted(old) if path in index.entries and path not in entries]
    new = [
        EntryChange(path, entry.mode, entry.blob, skip_worktree=True)
        for path, entry in sorted(entries.items())
    ]
    return (*map(EntryChange, gone), *new)


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
        ReleasedError: content of that commit was released; nothing was filled.
    """
    commit = context.history.resolve(revision)
    tree = context.history.read_tree(commit)
    text = read_state_text(context, commit, revision)
    plan = plan_state(text, TensorSizes(context, tree), framework=framework, into=into)
    files = sorted({read.file for read in plan.reads})
    check_content(context, [(path, tree[path].blob) for path in files], commit=commit)
    try:
        _fill(context, plan.reads, _Places(context, tree))
    except CorruptionError:  # or was it released while it was read?
        check_content(context, [(path, tree[path].blob) for path in files], commit=commit)
        raise
    return plan.build()


def outline_state(context: Context, revision: str = "HEAD") -> dict[str, Any]:
    """Return the structure of a commit's state, with ``ArrayOutline`` in place of arrays.

    Raises:
        NotFoundError: no such revision, or it holds no state.
        ReleasedError: ``state.json`` of that commit was released.
    """
    commit = context.history.resolve(revision)
    return outline_text(read_state_text(context, commit, revision))


def read_state_text(context: Context, commit: GitId, revision: str) -> bytes:
    """Return ``state.json`` of a commit.

    Raises:
        NotFoundError: the commit holds no state.
        ReleasedError: it was released.
    """
    entry = context.history.read_tree(commit).get(STATE_FILE)
    if entry is None:
        raise NotFoundError(
            f"{revision} holds no training state",
            hint="it was committed from files; read single tensors instead",
        )
    check_content(context, [(STATE_FILE, entry.blob)], commit=commit)
    return read_small_file(context, entry.blob)


def _fill(context: Context, reads: Iterable[TensorRead], places: _Places) -> None:
    """Read all tensors: long ones one after the other, chunks side by side; short ones at once."""
    short: list[tuple[TensorRead, StoredTensor]] = []
    for read in reads:
        place = places.find(read)
        if len(place.stored.chunks) == 1:
            short.append((read, place))
        else:
            read.fill(partial(read_tensor_into, context, place))

    def fill(job: tuple[TensorRead, StoredTensor], _: None) -> int:
        read, place = job
        where = f"tensor {read.tensor!r} of {read.file}"
        read.fill(partial(context.store.read_into, place.stored.chunks[0], context=where))
        return read.size_bytes

    for_each(short, lambda: None, fill, threads=context.store.threads)


class _Places:
    """Where the tensors of a tree lie; every file's manifest is read once."""

    def __init__(self, context: Context, tree: Mapping[str, TreeEntry]) -> None:
        self._context = context
        self._tree = tree
        self._tables: dict[str, dict[str, StoredTensor]] = {}

    def find(self, read: TensorRead) -> StoredTensor:
        table = self._tables.get(read.file)
        if table is None:
            table = self._tables[read.file] = self._read_table(read.file)
        return table[read.tensor]

    def _read_table(self, path: str) -> dict[str, StoredTensor]:
        manifest = self._context.manifests.read(self._tree[path].blob)
        return {
            view.name: StoredTensor(path, view, stored, manifest.chunk_bytes)
            for view, stored in manifest.tensors()
        }


class TensorSizes(Mapping[str, Mapping[str, int]]):
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
