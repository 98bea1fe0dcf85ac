"""What all commits have in common: message, objects, and the account of what is new in them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mvc.errors import FormatError, UsageError
from mvc.history.messages import drop_trailers, format_message
from mvc.workspace.commit_health import examine
from mvc.workspace.health import COMPUTED_TRAILERS, read_failed
from mvc.workspace.manifests import find_manifest, read_stored
from mvc.workspace.trailers import AGREEMENT_TRAILERS, Agreement, Annotations, read_agreement

if TYPE_CHECKING:
    from mvc.formats.layout import TensorView
    from mvc.formats.manifest import Manifest
    from mvc.history.values import Stamp, TreeEntry
    from mvc.ids import ChunkId, GitId
    from mvc.workspace.context import Context
    from mvc.workspace.released import ReleasedTwin

    Tensor = tuple[TensorView, tuple[ChunkId, ...]]


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit recorded.

    Attributes:
        commit: its id.
        branch: the branch that moved, or None if HEAD is detached.
        subject: first line of the message.
        parents: the commits before it.
        tensors_total: tensors in the commit.
        tensors_new: tensors that its first parent does not have (by name and bytes).
        plain_bytes: length of all files of the commit.
        written_bytes: bytes in the store of the chunks that the parent lacks.
        reused_bytes: plain bytes that were already in the parent.
        seconds: how long the call took.
        warnings: (path, what is wrong) of checkpoints stored as opaque bytes.
        files_total: files in the commit.
        files_changed: paths that were added, removed or changed since its first parent.
        failed_gates: the gates that it is beyond and was marked for, with the reason of each.
        identical_to: the released commit whose content this one has brought back, or None.
        unsent: why the commit is not on the store that has the content (``mvc.store``); None if it is, or
            there is none.
        agreement: what several ranks had of the same bytes, as far as that was checked; else None.
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
    failed_gates: tuple[str, ...] = ()
    unsent: str | None = None
    agreement: Agreement | None = None

    @property
    def id(self) -> GitId:
        """The id of the commit."""
        return self.commit


def new_message(
    message: str | None, annotations: Annotations, kept: Sequence[tuple[str, str]] = ()
) -> str:
    """Return the text of a new commit: blank lines tidied as Git does, trailers at its end."""
    if message is None or not message.strip():
        raise UsageError("a commit needs a message", hint="give one with `message`")
    return format_message(_tidy(message), [*kept, *annotations.trailers()])


def _tidy(message: str) -> str:
    lines: list[str] = []
    for line in message.split("\n"):
        text = line.rstrip()
        if text or (lines and lines[-1]):
            lines.append(text)
    return "\n".join(lines)


def record(
    context: Context,
    tree_entries: Mapping[str, TreeEntry],
    parents: Sequence[GitId],
    text: str,
    *,
    committer: Stamp,
    author: Stamp | None = None,
    replaced: GitId | None = None,
    no_gate: bool = False,
    agreement: Agreement | None = None,
) -> GitId:
    """Write tree and commit objects, durable; no ref moves. GateError: the health fails a gate.

    The text gets what is known of the health of the checkpoints, and the agreement of the ranks. ``replaced``
    is the commit whose place an amended one takes; of the same content, it keeps the agreement of that.
    """
    earlier = [*parents, *([] if replaced is None else [replaced])]
    facts = examine(context, tree_entries, earlier, parents[:1], no_gate=no_gate)
    tree = context.history.write_tree(tree_entries)
    if replaced is not None:
        old = context.history.read_commit(replaced)
        agreement = read_agreement(old.trailers) if old.tree == tree else None
    facts = [*facts, *(() if agreement is None else agreement.trailers())]
    text = format_message(drop_trailers(text, COMPUTED_TRAILERS | AGREEMENT_TRAILERS), facts)
    new = context.history.write_commit(
        tree=tree,
        parents=list(parents),
        message=text,
        author=author or committer,
        committer=committer,
    )
    context.history.sync_objects()
    return new


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

    The commit exists by now, so damage is left out of the count: reporting it is up to fsck.
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
        failed_gates=read_failed(info.trailers),
        agreement=read_agreement(info.trailers),
    )


class _Tally:
    """Sums over the files of a commit, each compared with the parent."""

    def __init__(self, context: Context, base: Mapping[str, TreeEntry]) -> None:
        self._context = context
        self._base = base
        self._seen: set[ChunkId] = set()
        self.tensors_total = self.tensors_new = 0
        self.plain_bytes = self.reused_bytes = 0

    def take(self, path: str, entry: TreeEntry) -> None:
        manifest, size_bytes = read_stored(self._context, entry.blob)
        old = self._base.get(path)
        same = old is not None and old.blob == entry.blob
        self.plain_bytes += size_bytes
        if manifest is None:
            self.reused_bytes += size_bytes if same else 0
            return
        self.tensors_total += manifest.tensors_total
        if same:
            self.reused_bytes += manifest.size_bytes
            return
        old_tensors, old_chunks = self._old
        self.tensors_new += sum(pair not in old_tensors for pair in _tensors(manifest))
        for _, _, chunk, size_bytes in manifest.sized_chunks():
            if chunk in old_chunks or chunk in self._seen:
                self.reused_bytes += size_bytes
                continue
            self._seen.add(chunk)  # tied tensors and copies take space only once

    @property
    def written_bytes(self) -> int:
        """Bytes in the store of the chunks that the parent lacks."""
        return sum(self._context.stored_sizes(self._seen).values())

    @cached_property
    def _old(self) -> tuple[set[Tensor], set[ChunkId]]:
        """Tensors and chunks of the parent, in whatever files."""
        tensors: set[Tensor] = set()
        chunks: set[ChunkId] = set()
        for entry in self._base.values():
            with contextlib.suppress(FormatError):
                manifest = find_manifest(self._context, entry.blob)
                if manifest is not None:
                    tensors.update(_tensors(manifest))
                    chunks.update(manifest.chunk_ids())
        return tensors, chunks


def _tensors(manifest: Manifest) -> Iterator[Tensor]:
    return ((view, stored.chunks) for view, stored in manifest.tensors())
