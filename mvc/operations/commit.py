"""commit: index → tree → commit → ref, by compare-and-swap; no tensor byte moves."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, FormatError, UsageError
from mvc.history.messages import format_message, parse_trailers
from mvc.history.values import Stamp, TreeEntry
from mvc.operations.add import (
    entries_of,
    merge_entries,
    plan_add,
    store_planned,
    update_index,
)
from mvc.operations.diff import tensor_ids
from mvc.workspace.annotations import FACT_TRAILERS, STEP_TRAILER, Annotations
from mvc.workspace.context import unswept
from mvc.workspace.files import find_manifest
from mvc.workspace.rerun import ReleasedTwin, check_kept, take_back
from mvc.workspace.transition import recover

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mvc.history.values import CommitInfo, Identity, IndexEntry
    from mvc.ids import ChunkId, GitId, TensorId
    from mvc.operations.add import AddResult
    from mvc.workspace.context import Context


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
        identical_to: the released commit whose content this one has brought back, or None.
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
    identical_to: ReleasedTwin | None = None


@unswept
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
    delta: bool | None = None,
    progress: Callable[[int], None] | None = None,
) -> CommitResult:
    """Record the index as a new commit and move the branch to it.

    Args:
        context: the repository.
        message: subject, and body after an empty line; None only with ``amend``, which then
            keeps the old one. An amended commit keeps its author, and the step, metrics and facts
            that are not given anew.
        annotations: step, metrics and other facts of the training.
        paths: add these first.
        everything: add every tracked file that changed first (``-a``).
        amend: replace the last commit instead of following it.
        allow_empty: also where nothing changed.
        author: who; the repository's or context's identity where None.
        time_s: when, in seconds since 1970; now where None.
        delta: as for ``add``, where files are added first.
        progress: called with bytes read.

    Raises:
        UsageError: no message, nothing to amend.
        ConflictError: nothing changed, or the branch moved meanwhile.
        ReleasedError: the index holds released content that is gone, as after a reset.
    """
    started_s = time.perf_counter()
    recover(context)
    history = context.history
    head = history.head()
    facts = annotations or Annotations()
    last = _last_commit(context, head.commit) if amend else None
    text = new_message(message, facts) if last is None else _amended_message(last, message, facts)
    added: AddResult | None = None
    if paths or everything:
        plan = plan_add(context, paths or [""], tracked_only=everything and not paths)
        added = store_planned(context, plan, progress, delta=delta)
    tree_entries = {
        path: TreeEntry(entry.mode, entry.blob) for path, entry in _staged(context, added).items()
    }
    parents = last.parents if last is not None else () if head.commit is None else (head.commit,)
    base = history.read_tree(parents[0]) if parents else {}
    if tree_entries == base and not allow_empty:
        _check_may_be_empty(context, last, base)
    check_kept(context, tree_entries)
    if added is not None and (added.added or added.removed):
        update_index(context, entries_of(added), added.removed)  # a refused commit stages nothing
    committer = context.stamp(author, time_s)
    written = committer if last is None else _amended_stamp(last, author, time_s, committer)
    new = record(context, tree_entries, parents, text, committer=committer, author=written)
    verb = "commit (amend)" if amend else "commit" if parents else "commit (initial)"
    subject = text.lstrip("\n").split("\n", 1)[0]
    with history.lock():
        if history.head() != head:
            raise ConflictError("HEAD moved while the commit was made", hint="commit again")
        stamp = context.stamp(author)
        history.update_head(new, expected=head.commit, message=f"{verb}: {subject}", stamp=stamp)
    warnings = added.warnings if added is not None else ()
    twin = take_back(context, new, tree_entries)
    return summarise(
        context, new, base, tree_entries, started_s, warnings, branch=head.branch, twin=twin
    )


def _staged(context: Context, added: AddResult | None) -> dict[str, IndexEntry]:
    """Return what the index holds once ``added`` is put into it."""
    index = context.history.read_index()
    if added is None:
        return index.entries
    return merge_entries(index, entries_of(added), added.removed)


def record(
    context: Context,
    tree_entries: Mapping[str, TreeEntry],
    parents: Sequence[GitId],
    text: str,
    *,
    committer: Stamp,
    author: Stamp | None = None,
) -> GitId:
    """Write tree and commit objects, durable; no ref moves."""
    new = context.history.write_commit(
        tree=context.history.write_tree(tree_entries),
        parents=list(parents),
        message=text,
        author=author or committer,
        committer=committer,
    )
    context.history.sync_objects()
    return new


def _amended_stamp(
    last: CommitInfo, author: Identity | None, time_s: int | None, committer: Stamp
) -> Stamp:
    """Return the author's stamp: an amended commit keeps it unless another one is given."""
    kept = Stamp(last.author, last.author_time_s, last.author_timezone_s)
    return replace(kept if time_s is None else committer, identity=author or last.author)


def _last_commit(context: Context, head: GitId | None) -> CommitInfo:
    if head is None:
        raise UsageError("there is no commit to amend")
    return context.history.read_commit(head)


def _check_may_be_empty(
    context: Context, last: CommitInfo | None, base: Mapping[str, TreeEntry]
) -> None:
    """Check that a commit may equal its parent: one that did so before, or that joins two."""
    if last is not None:
        if len(last.parents) > 1 or context.history.read_tree(last.tree) == base:
            return
        raise ConflictError(
            "amended so, the last commit would change nothing",
            hint='"mvc reset --soft HEAD~1" takes it back; "--allow-empty" keeps it empty',
        )
    if not context.history.read_index().entries:
        raise ConflictError("nothing to commit", hint='stage files with "mvc add" first')
    raise ConflictError(
        "nothing to commit: the index equals the last commit",
        hint='stage changes with "mvc add", or commit all with "mvc commit -am"',
    )


def new_message(
    message: str | None, annotations: Annotations, kept: Sequence[tuple[str, str]] = ()
) -> str:
    """Return the text of a new commit: blank lines tidied as Git does, trailers at its end.

    Raises:
        UsageError: no message, or annotations that no trailer can hold.
    """
    if message is None or not message.strip():
        raise UsageError("a commit needs a message", hint='give one with "-m"')
    return format_message(_tidy(message), [*kept, *annotations.trailers()])


def _tidy(message: str) -> str:
    lines: list[str] = []
    for line in message.split("\n"):
        text = line.rstrip()
        if text or (lines and lines[-1]):
            lines.append(text)
    return "\n".join(lines)


def _amended_message(last: CommitInfo, message: str | None, annotations: Annotations) -> str:
    """Return the text of a commit that replaces ``last``.

    Step, metrics and facts are not part of what the user calls the message: those that are not
    given anew stay. Without a message all of the old text stays, other trailers too.
    """
    given = annotations.trailers()
    if message is None and not given:
        return last.message
    names = {_fact_name(pair) for pair in given}
    kept = [pair for pair in parse_trailers(last.message) if _fact_name(pair) not in names]
    if message is not None:
        facts = [pair for pair in kept if pair[0] in FACT_TRAILERS]
        return new_message(message, annotations, facts)
    body = last.subject + ("\n\n" + last.body if last.body else "")
    return format_message(body, [*kept, *given])


def _fact_name(trailer: tuple[str, str]) -> tuple[str, str]:
    key, value = trailer
    return key, "" if key == STEP_TRAILER else value.partition("=")[0]


def summarise(
    context: Context,
    commit_id: GitId,
    base: Mapping[str, TreeEntry],
    tree: Mapping[str, TreeEntry],
    started_s: float,
    warnings: tuple[tuple[str, str], ...] = (),
    *,
    branch: str | None,
    twin: ReleasedTwin | None = None,
) -> CommitResult:
    """Count what a commit has and what its parent lacks, from manifests alone.

    The commit is made by now: what is damaged is not counted, and fsck's to report.
    """
    info = context.history.read_commit(commit_id)
    tally = _Tally(context, base)
    for path, entry in tree.items():
        with contextlib.suppress(FormatError):
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
        identical_to=twin,
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
        known: dict[str, TensorId] = {}
        with contextlib.suppress(FormatError):
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
                with contextlib.suppress(FormatError):
                    manifest = find_manifest(self._context, entry.blob)
                    self._old_chunks.update(() if manifest is None else manifest.chunk_ids())
        return self._old_chunks
