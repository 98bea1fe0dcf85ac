"""commit: index → tree → commit → ref, by compare-and-swap; no tensor byte moves."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, UsageError
from mvc.history.messages import format_message, parse_trailers
from mvc.history.values import TreeEntry
from mvc.operations.add import plan_add, run_add
from mvc.operations.annotations import Annotations
from mvc.operations.context import now
from mvc.operations.diff import tensor_ids
from mvc.operations.files import find_manifest
from mvc.operations.transition import recover

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mvc.history.values import Identity
    from mvc.ids import ChunkId, GitId
    from mvc.operations.context import Context


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit recorded.

    Attributes:
        commit: its id.
        branch: the branch that moved, or None on a detached HEAD.
        subject: first line of the message.
        parents: the commits before it.
        tensors_total: tensors in the commit.
        tensors_new: tensors that its first parent does not have (by name and bytes).
        plain_bytes: length of all files of the commit.
        written_bytes: bytes that the chunks which the parent lacks take in the store.
        reused_bytes: plain bytes that were already in the parent.
        seconds: how long the call took.
        warnings: (path, what is wrong) of checkpoints that were stored as opaque bytes.
        files_total: files in the commit.
        files_changed: paths that its first parent has otherwise or not, or that it lacks.
    """

    commit: GitId
    branch: str | None
    subject: str
    parents: tuple[GitId, ...]
    tensors_total: int
    tensors_new: int
    plain_bytes: int
    written_bytes: int
    reused_bytes: int
    seconds: float
    warnings: tuple[tuple[str, str], ...] = ()
    files_total: int = 0
    files_changed: int = 0


def commit(
    context: Context,
    message: str | None,
    *,
    annotations: Annotations | None = None,
    paths: Sequence[str] = (),
    everything: bool = False,
    amend: bool = False,
    allow_empty: bool = False,
    author: Identity | None = None,
    time_s: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> CommitResult:
    """Record the index as a new commit and move the branch to it.

    Args:
        context: the repository.
        message: subject, and body after an empty line; None only with ``amend``.
        annotations: step, metrics and other facts of the training.
        paths: add these first.
        everything: add every tracked file that changed first (``-a``).
        amend: replace the last commit instead of following it.
        allow_empty: also where nothing changed.
        author: who; the repository's or context's identity where None.
        time_s: when, in seconds since 1970; now where None.
        progress: called with bytes read.

    Raises:
        UsageError: no message, nothing to amend.
        ConflictError: nothing changed, or the branch moved meanwhile.
    """
    started_s = time.perf_counter()
    recover(context)
    history, who = context.history, context.who(author)
    head = history.head()
    warnings: tuple[tuple[str, str], ...] = ()
    if paths or everything:
        plan = plan_add(context, paths or [""], tracked_only=everything and not paths)
        warnings = run_add(context, plan, progress).warnings
    tree_entries = {
        path: TreeEntry(entry.mode, entry.blob)
        for path, entry in history.read_index().entries.items()
    }
    parents, text = _parents_and_message(context, head.commit, message, annotations, amend=amend)
    base = history.read_tree(parents[0]) if parents else {}
    if tree_entries == base and not (allow_empty or amend):
        raise _nothing_to_commit(context)
    new = record(context, tree_entries, parents, text, who=who, author=None, time_s=time_s)
    verb = "commit (amend)" if amend else "commit" if parents else "commit (initial)"
    subject = text.split("\n", 1)[0]
    history.update_head(new, expected=head.commit, message=f"{verb}: {subject}", who=who)
    return summarise(context, new, base, tree_entries, started_s, warnings, branch=head.branch)


def record(
    context: Context,
    tree_entries: Mapping[str, TreeEntry],
    parents: Sequence[GitId],
    text: str,
    *,
    who: Identity,
    author: Identity | None,
    time_s: int | None,
) -> GitId:
    """Write tree and commit objects, durable; no ref moves."""
    seconds, offset = now()
    new = context.history.write_commit(
        tree=context.history.write_tree(tree_entries),
        parents=list(parents),
        message=text,
        author=author or who,
        committer=who,
        time_s=seconds if time_s is None else time_s,
        timezone_s=offset,
    )
    context.history.sync_objects()
    return new


def _nothing_to_commit(context: Context) -> ConflictError:
    if not context.history.read_index().entries:
        return ConflictError("nothing to commit", hint='stage files with "mvc add" first')
    return ConflictError(
        "nothing to commit: the index equals the last commit",
        hint='stage changes with "mvc add", or commit all with "mvc commit -am"',
    )


def _parents_and_message(
    context: Context,
    head: GitId | None,
    message: str | None,
    annotations: Annotations | None,
    *,
    amend: bool,
) -> tuple[tuple[GitId, ...], str]:
    trailers = (annotations or Annotations()).trailers()
    if not amend:
        if message is None or not message.strip():
            raise UsageError("a commit needs a message", hint='give one with "-m"')
        return (() if head is None else (head,)), format_message(message, trailers)
    if head is None:
        raise UsageError("there is no commit to amend")
    last = context.history.read_commit(head)
    if message is None:
        given = {key for key, _ in trailers}
        if not given:
            return last.parents, last.message
        kept = [pair for pair in parse_trailers(last.message) if pair[0] not in given]
        body = last.subject + ("\n\n" + last.body if last.body else "")
        return last.parents, format_message(body, [*kept, *trailers])
    return last.parents, format_message(message, trailers)


def summarise(
    context: Context,
    commit_id: GitId,
    base: Mapping[str, TreeEntry],
    tree: Mapping[str, TreeEntry],
    started_s: float,
    warnings: tuple[tuple[str, str], ...] = (),
    *,
    branch: str | None,
) -> CommitResult:
    """Count what a commit has and what its parent lacks, from manifests alone."""
    info = context.history.read_commit(commit_id)
    tally = _Tally(context, base)
    for path, entry in tree.items():
        tally.take(path, entry)
    return CommitResult(
        commit=commit_id,
        branch=branch,
        subject=info.subject,
        parents=info.parents,
        tensors_total=tally.tensors_total,
        tensors_new=tally.tensors_new,
        plain_bytes=tally.plain_bytes,
        written_bytes=tally.written_bytes,
        reused_bytes=tally.reused_bytes,
        seconds=time.perf_counter() - started_s,
        warnings=warnings,
        files_total=len(tree),
        files_changed=sum(1 for path in {*base, *tree} if base.get(path) != tree.get(path)),
    )


class _Tally:
    """Sums over the files of a commit, each compared with the parent."""

    def __init__(self, context: Context, base: Mapping[str, TreeEntry]) -> None:
        self._context = context
        self._base = base
        self._old_chunks: set[ChunkId] | None = None
        self._seen: set[ChunkId] = set()
        self.tensors_total = self.tensors_new = 0
        self.plain_bytes = self.written_bytes = self.reused_bytes = 0

    def take(self, path: str, entry: TreeEntry) -> None:
        """Count one file."""
        manifest = find_manifest(self._context, entry.blob)
        old = self._base.get(path)
        same = old is not None and old.blob == entry.blob
        if manifest is None:
            size_bytes = self._context.history.find_blob_size(entry.blob) or 0
            self.plain_bytes += size_bytes
            self.reused_bytes += size_bytes if same else 0
            return
        self.plain_bytes += manifest.size_bytes
        count = sum(len(stored.segment.tensors) for stored in manifest.segments)
        self.tensors_total += count
        if same:
            self.reused_bytes += manifest.size_bytes
            return
        old_manifest = find_manifest(self._context, old.blob) if old is not None else None
        known = tensor_ids(old_manifest) if old_manifest is not None else {}
        ids = tensor_ids(manifest)
        self.tensors_new += sum(1 for name, identity in ids.items() if known.get(name) != identity)
        self._take_chunks(list(manifest.sized_chunks()))

    def _take_chunks(self, chunks: Sequence[tuple[ChunkId, int]]) -> None:
        known = self._known_chunks()
        for chunk, size_bytes in chunks:
            if chunk in known or chunk in self._seen:
                self.reused_bytes += size_bytes
                continue
            self._seen.add(chunk)
            location = self._context.store.find(chunk)
            self.written_bytes += location.stored_size_bytes if location is not None else 0

    def _known_chunks(self) -> set[ChunkId]:
        if self._old_chunks is None:
            self._old_chunks = set()
            for entry in self._base.values():
                manifest = find_manifest(self._context, entry.blob)
                if manifest is not None:
                    self._old_chunks.update(manifest.chunk_ids())
        return self._old_chunks
