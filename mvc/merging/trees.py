"""The merge of whole trees: what their histories have in common, and the result written into the store.

``find_base`` says what is merged over, ``plan_files`` (``files``) plans the merge of every file, and
``write_merge`` stores what is new in it. While a merge waits for decisions, ``find_conflicts`` plans it
again from the index.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from mvc.checkpoints.detect import read_layout
from mvc.formats.manifest_lines import encode_manifest
from mvc.history.values import Index, TreeEntry
from mvc.merging.files import FileMerge, Sides, plan_files
from mvc.merging.rules import Rules
from mvc.merging.strategies import MergeChoices, Methods
from mvc.sources import MemorySource
from mvc.workspace.files import Cutter, is_plain
from mvc.workspace.journal import Undecided
from mvc.workspace.recorded import tree_of

if TYPE_CHECKING:
    from mvc.chunkstore.writer import ChunkWriter
    from mvc.ids import GitId
    from mvc.merging.files import Conflict, Tree
    from mvc.workspace.context import Context

_MAX_CROSSINGS = 32
"""How deep bases of bases are merged; histories that cross more often take the first one."""


@dataclass(frozen=True, slots=True)
class MergedTree:
    """The result of a merge, written into the store."""

    # path → what the worktree gets; for an undecided file with markers, or ours
    entries: Mapping[str, TreeEntry]
    merges: tuple[FileMerge, ...] = field(default=(), repr=False)  # the merge of every file

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """What is not decided."""
        return tuple(conflict for merge in self.merges for conflict in merge.conflicts)

    def undecided(self, asleep: Container[str]) -> tuple[Undecided, ...]:
        """Return the files that are not decided as the index will have them."""
        merges = [merge for merge in self.merges if merge.conflicts or merge.is_open]
        undecided: list[Undecided] = []
        for merge in merges:
            base, ours, theirs = (
                None if stage is None else (stage.mode, str(stage.blob)) for stage in merge.stages
            )
            undecided.append(Undecided(merge.path, merge.path in asleep, (base, ours, theirs)))
        return tuple(undecided)


def write_merge(context: Context, merges: Sequence[FileMerge], base: Tree) -> MergedTree:
    """Store what no side has yet; ``base`` are the files that new ones may resemble."""
    writers: list[ChunkWriter] = []
    with ExitStack() as stack:

        @cache
        def open_cutter(chunk_bytes: int) -> Cutter:
            from mvc.workspace.bases import Relatives  # noqa: PLC0415  brings NumPy

            mode = context.delta_mode(insist=None)
            writer = stack.enter_context(context.here.writer(mode, measure=True))
            writers.append(writer)
            is_usual = chunk_bytes == context.chunk_bytes
            relatives = Relatives(context, writer, base) if is_usual else None
            return Cutter(writer, chunk_bytes, relatives)

        entries = {merge.path: _write(context, merge, open_cutter) for merge in merges}
    for writer in writers:
        context.kept.keep_chunk_health(writer.health)
    context.history.sync_objects()  # a journal may name them before a commit does
    kept = {path: entry for path, entry in entries.items() if entry is not None}
    return MergedTree(kept, tuple(merges))


def _write(
    context: Context, merge: FileMerge, open_cutter: Callable[[int], Cutter]
) -> TreeEntry | None:
    if merge.text is not None:
        return TreeEntry(merge.mode, context.history.write_blob(merge.text.data))
    if merge.checkpoint is not None:
        manifest = merge.checkpoint.write(open_cutter)
        return TreeEntry(merge.mode, context.history.write_blob(manifest))
    if merge.data is None:
        return merge.taken
    # A file that no side has: small ones are plain blobs, as when files are added.
    source, blob = MemorySource(merge.data), merge.data
    layout = read_layout(source, merge.path)
    if not is_plain(source, layout, merge.path):
        cutter = open_cutter(context.chunk_bytes)
        blob = encode_manifest(cutter.store(source, layout, merge.path))
    return TreeEntry(merge.mode, context.history.write_blob(blob))


def find_base(context: Context, commits: Sequence[GitId], depth: int = 0) -> Tree | None:
    """Return the files that some commits have in common, or None if their histories are apart.

    Where histories cross, two commits have several best common ancestors. As Git does, these are
    merged first, and what they disagree on is as in their own base.
    """
    first, *others = commits
    tree: Tree | None = context.history.read_tree(first)
    ancestors = [first]
    for other in others:
        bases = context.history.find_merge_bases(ancestors[0], other)
        if not bases:
            return None
        tree = _merge_bases(context, bases, depth)
        ancestors = bases
    return tree


def _merge_bases(context: Context, bases: Sequence[GitId], depth: int) -> Tree:
    """Return the files of several common ancestors as one tree: they are merged one after another."""
    # Oldest first, as Git does: the order decides nothing but what messages would say.
    *older, last = bases
    tree = tree_of(context, last)
    for other in reversed(older if depth < _MAX_CROSSINGS else ()):
        # These two may have several common ancestors again.
        common = find_base(context, [last, other], depth + 1) or {}
        sides = Sides(common, [tree, tree_of(context, other)])
        merges = plan_files(context, sides, Rules((), "base"), Methods(2, {}).resolve)
        tree = dict(write_merge(context, merges, common).entries)
    return tree


def find_conflicts(context: Context, index: Index, choices: MergeChoices) -> tuple[Conflict, ...]:
    """Return every tensor and file that is not decided; no weight is read for it."""
    sides = undecided_sides(context, index, choices)
    merges = plan_files(context, sides, choices.rules, choices.methods(context, 2).resolve)
    return tuple(conflict for merge in merges for conflict in merge.conflicts)


def undecided_sides(context: Context, index: Index, choices: MergeChoices) -> Sides:
    """Return the versions of the undecided files; ``choices`` are those of the merge."""
    base, ours, theirs = (
        {path: entry for path, stages in index.unmerged.items() if (entry := stages[number])}
        for number in range(3)
    )
    return Sides(
        base, [ours, theirs], ("HEAD", "theirs"), tuple(index.entries), choices.tokenizer,
        lambda: _read_sides(context) or Sides(base, [ours, theirs]),
    )  # fmt: skip


def _read_sides(context: Context) -> Sides | None:
    """Return the whole trees of a merge under way, or None if it is something else."""
    head, heads = context.history.head().commit, context.history.refs.merge_heads()
    if head is None or not heads:
        return None
    commits = (head, *heads)
    return Sides(
        find_base(context, commits) or {}, [context.history.read_tree(commit) for commit in commits]
    )
