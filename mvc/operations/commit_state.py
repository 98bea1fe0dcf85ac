"""commit_state: a live training state becomes a commit like any other, without files.

The state is laid out as the files it would be checked out as (``mvc.states.state``) and then takes
the same path as ``add`` and ``commit``. Its index entries carry Git's skip-worktree bit, so a run
that commits from memory has a clean status with nothing on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, UsageError
from mvc.formats.manifest_lines import encode_manifest
from mvc.history.names import HEADS, branch_ref, find_path_fault
from mvc.history.values import MODE_FILE, Head, Identity, Index, Stamp, TreeEntry
from mvc.operations.aftercare import keeps_up
from mvc.sources import read_bytes
from mvc.states.files import StateFile, given_file
from mvc.states.state import encode_state, open_image
from mvc.workspace.bases import Relatives, masters_first
from mvc.workspace.commits import CommitResult, new_message, record, summarise
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.files import Cutter, is_plain
from mvc.workspace.journal import EntryChange, Transition
from mvc.workspace.measuring import SessionHealth
from mvc.workspace.pending import check_decided
from mvc.workspace.recorded import staged_tree
from mvc.workspace.recovery import recover
from mvc.workspace.released import check_kept, take_back
from mvc.workspace.state_files import find_state_files
from mvc.workspace.trailers import Agreement, Annotations
from mvc.workspace.transition import plan_head_move, run
from mvc.workspace.worktree import relative_paths

if TYPE_CHECKING:
    from mvc.chunkstore.relatives import DeltaMode
    from mvc.chunkstore.values import WriteCounts
    from mvc.ids import GitId


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """What a commit of a state says and where it goes.

    Attributes:
        message: subject, and body after an empty line.
        step: training step.
        metrics: name → number.
        meta: name → one line of text.
        branch: branch to move; defaults to the current one.
        parent: id of the commit that the branch must be at ("" for a branch without one).
        no_gate: as for ``commit``.
        author: defaults to ``identity``.
        time_s: when, in seconds since 1970; defaults to now.
        delta: as for ``add``; ``store_share`` has its own.
        describe: called once everything but the commit itself is durable; what it returns joins
            ``meta``.
        texts: path → content of small files for the same commit, which the states after it leave as
            they are; one that is staged or committed with this content already is left as it is.
    """

    message: str
    step: int | None = None
    metrics: Mapping[str, float] | None = None
    meta: Mapping[str, str] | None = None
    branch: str | None = None
    parent: str | None = None
    no_gate: bool = False
    author: Identity | None = None
    time_s: int | None = None
    delta: bool | None = None
    describe: Callable[[WriteCounts], Mapping[str, str]] | None = None
    texts: Mapping[str, bytes] | None = None

    def text(self, counts: WriteCounts | None = None) -> str:
        """Return the message with its facts, and with what is said of what was written."""
        more = self.describe(counts) if self.describe is not None and counts is not None else {}
        meta = {**(self.meta or {}), **more}
        return new_message(self.message, Annotations(self.step, self.metrics, meta))


@keeps_up
def commit_state(
    context: Context,
    state: Mapping[str, object],
    *,
    message: str,
    step: int | None = None,
    metrics: Mapping[str, float] | None = None,
    meta: Mapping[str, str] | None = None,
    branch: str | None = None,
    author: Identity | None = None,
    time_s: int | None = None,
    delta: bool | None = None,
    previous: Mapping[str, object] | None = None,
    parent: str | None = None,
    files: Mapping[str, bytes | str] | None = None,
    no_gate: bool = False,
) -> CommitResult:
    """Commit a nested state (state dicts, scalars, RNG states) without writing a file.

    It checks out as one safetensors file for each top-level name with a tensor in it, and
    ``state.json``. The state dict of one model by itself, ``model.state_dict()``, is one
    ``model.safetensors``.

    Args:
        state: top-level names → nested dicts, lists, tensors, arrays, scalars.
        message: subject, and body after an empty line.
        step: training step.
        metrics: name → number.
        meta: name → one line of text.
        branch: branch to move; defaults to the current one. A branch that does not exist yet
            begins with this commit. Moving another branch leaves HEAD and the index alone.
        author: defaults to ``identity``.
        time_s: when, in seconds since 1970; defaults to now.
        delta: as for ``add``; differences are taken from the branch's last commit.
        previous: the unchanged state of that commit, if it is still in memory: differences
            are then taken from it, and nothing has to be read from the store. It is hashed
            before it is trusted.
        parent: id of the commit that the branch must be at ("" for a branch without one).
        files: path → content of other files for the commit, such as a ``config.json``. Those
            of earlier commits stay until they are given again.
        no_gate: as for ``commit``.

    Raises:
        GateError: a gate refuses the state.
        UnsupportedError: a value that is not data; the message names its path.
        UsageError: a path of ``files`` that no commit may hold, or that the state itself has.
        ConflictError: the branch moved meanwhile, is not at ``parent``, or a file of the same
            name is staged; nothing is lost.
    """
    request = CommitRequest(
        message, step, metrics, meta, branch, parent, no_gate, author, time_s, delta
    )
    given = [
        given_file(relative_paths(context, path)[0], content)
        for path, content in (files or {}).items()
    ]
    encoded = encode_state(state)
    earlier = () if previous is None else encode_state(previous)
    return _commit_encoded(context, request, encoded, earlier, given)


@keeps_up
def commit_image(
    context: Context, files: Mapping[str, memoryview], request: CommitRequest
) -> CommitResult:
    """Commit the image of a state (see ``mvc.training.layout_state``) as ``commit_state`` would.

    ``files`` is name → bytes of every file of the image; they must not change meanwhile.

    Raises:
        FormatError: not the files of a state.
        ConflictError, GateError: as for ``commit_state``.
    """
    return _commit_encoded(context, request, open_image(files))


@holds_sweep_lock
def _commit_encoded(
    context: Context,
    request: CommitRequest,
    files: Sequence[StateFile],
    previous: Sequence[StateFile] = (),
    beside: Sequence[StateFile] = (),
) -> CommitResult:
    """Commit the files of a state; ``beside`` are others, which the next state leaves as they are."""
    own = {file.path for file in files}
    for file in beside:
        fault = find_path_fault(file.path)
        if fault is None and file.path in own:
            fault = "is a file of the state itself"
        if fault is not None:
            raise UsageError(f"path {file.path!r} {fault}")
    files = [*beside, *files]

    def store(
        base: Mapping[str, TreeEntry], mode: DeltaMode
    ) -> tuple[dict[str, TreeEntry], WriteCounts]:
        return _store_state(context, files, base, mode, previous)

    return commit_files(context, request, [file.path for file in files], store)


def commit_files(
    context: Context,
    request: CommitRequest,
    paths: Sequence[str],
    store: Callable[[Mapping[str, TreeEntry], DeltaMode], tuple[dict[str, TreeEntry], WriteCounts]],
    agreement: Agreement | None = None,
) -> CommitResult:
    """Commit the files of a state; ``store`` stores them on top of a tree and returns entries and counts.

    The caller holds the sweep lock.
    """
    started_s = time.perf_counter()
    recover(context)
    request.text()  # raises before anything is written
    place = find_place(context, request.branch, request.parent)
    base = context.history.read_tree(place.tip) if place.tip is not None else {}
    index, old = context.history.read_index(), find_state_files(context, base)
    if place.is_current:
        check_decided(index)
        _check_not_staged(index, base, {*old, *paths})
    mode = context.delta_mode(insist=request.delta)  # before anything is written, too
    entries, counts = store(base, mode)
    kept = staged_tree(index) if place.is_current else base  # it is committed too, as in any commit
    kept = {path: entry for path, entry in kept.items() if path not in old}
    check_kept(context, kept)  # only what is carried over: the state itself was just stored
    blobs = {path: context.history.write_blob(data) for path, data in (request.texts or {}).items()}
    for path, blob in blobs.items():
        if path not in kept or kept[path].blob != blob:
            entries[path] = TreeEntry(MODE_FILE, blob)
    tree = {**kept, **entries}
    text = request.text(counts)
    parents = [] if place.tip is None else [place.tip]
    committer = context.stamp(request.author, request.time_s)
    new = record(
        context,
        tree,
        parents,
        text,
        committer=committer,
        no_gate=request.no_gate,
        agreement=agreement,
    )
    changes = _entry_changes(index, old, entries) if place.is_current else ()
    _move_branch(context, place, new, text, context.stamp(request.author), changes, index)
    twin = take_back(context, new, tree)
    name = request.branch or place.head.branch
    return summarise(context, new, base, tree, started_s, branch=name, twin=twin)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a commit goes: HEAD at the start, a branch other than its, and the commit it follows."""

    head: Head
    branch: str | None
    tip: GitId | None

    @property
    def is_current(self) -> bool:
        """Whether HEAD, and with it the index, moves along."""
        return self.branch is None


def find_place(context: Context, branch: str | None, parent: str | None = None) -> Place:
    """Return where a commit to a branch goes; ConflictError unless the branch is at ``parent``."""
    history = context.history
    if branch is not None:
        branch_ref(branch)
    head = history.head()
    if branch is None or branch == head.branch:
        place = Place(head, None, head.commit)
    else:
        place = Place(head, branch, history.find_ref(f"{HEADS}{branch}"))
    if parent is not None and (place.tip or "") != parent:
        name = branch or head.branch
        where = f"branch {name!r}" if name else "HEAD"
        stands = f"at {place.tip[:10]}" if place.tip else "without a commit"
        wanted = f"at {parent[:10]}" if parent else "without a commit"
        raise ConflictError(
            f"{where} is {stands}, not {wanted} where this run left it",
            hint="another process moved it; nothing was committed",
        )
    return place


def _store_state(
    context: Context,
    files: Sequence[StateFile],
    base: Mapping[str, TreeEntry],
    mode: DeltaMode,
    previous: Sequence[StateFile],
) -> tuple[dict[str, TreeEntry], WriteCounts]:
    """Store the files of a state in one session; return their entries and what was written."""
    by_path = {file.path: file for file in files}
    with context.here.writer(mode, measure=True) as writer:
        sources = {file.path: file.source for file in files}
        relatives = Relatives(context, writer, base, sources)
        for old in previous:
            relatives.offer_file(old.path, old.layout, old.source)
        order = masters_first(list(by_path), {file.path: file.layout for file in files})
        health = SessionHealth(context, writer)
        cutter = Cutter(writer, context.chunk_bytes, relatives, health)
        entries = {}
        for path in order:
            data, is_manifest = store_state_file(cutter, by_path[path])
            blob = context.history.write_blob(data)
            if is_manifest:
                cutter.finish(blob)
            entries[path] = TreeEntry(MODE_FILE, blob)
    health.keep()
    return entries, writer.counts


def store_state_file(cutter: Cutter, file: StateFile) -> tuple[bytes, bool]:
    """Store the chunks of a file; return the content of its blob, and whether that is a manifest."""
    if is_plain(file.source, file.layout, file.path):
        return read_bytes(file.source, 0, file.layout.size_bytes), False
    return encode_manifest(cutter.store(file.source, file.layout, file.path)), True


def _check_not_staged(index: Index, base: Mapping[str, TreeEntry], paths: Iterable[str]) -> None:
    """Check that the state replaces no file that the user staged and did not commit."""
    for path in sorted(paths):
        entry, kept = index.entries.get(path), base.get(path)
        if entry is None or entry.skip_worktree:
            continue
        if kept != entry.version:
            raise ConflictError(
                f"{path!r} is staged and would be replaced by the state",
                hint=f'commit it first, or take it back with "mvc restore --staged {path}"',
            )


def _move_branch(
    context: Context,
    place: Place,
    new: GitId,
    text: str,
    stamp: Stamp,
    changes: tuple[EntryChange, ...],
    index: Index,
) -> None:
    """Move the branch to its new commit; if HEAD is on it, the index follows."""
    verb = "commit (initial)" if place.tip is None else "commit"
    reason = f"{verb}: {text.split(chr(10), 1)[0]}"
    if place.branch is None:
        move = plan_head_move("move", new, place.head, reason, stamp)
        run(context, Transition(entries=changes, head=move), index)
        return
    with context.history.lock():  # neither index nor files follow another branch
        if context.history.head().branch == place.branch:
            raise ConflictError(f"HEAD moved to {place.branch!r} meanwhile", hint="commit it again")
        ref = f"{HEADS}{place.branch}"
        context.history.update_ref(ref, new, expected=place.tip, message=reason, stamp=stamp)


def _entry_changes(
    index: Index, old: Iterable[str], entries: Mapping[str, TreeEntry]
) -> tuple[EntryChange, ...]:
    """Return what replaces the old state's index entries with the new one's."""
    gone = [path for path in sorted(old) if path in index.entries and path not in entries]
    new = [
        EntryChange(path, entry.mode, entry.blob, skip_worktree=True)
        for path, entry in sorted(entries.items())
    ]
    return (*map(EntryChange, gone), *new)
