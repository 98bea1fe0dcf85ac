"""The merge of every file, decided from trees and manifests before any weight is read.

A file that only one side changed is taken as it is. One that both changed is merged by its tensors
if it is a checkpoint (``checkpoint``), as text, or not at all: then it is a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from mvc.errors import ConflictError
from mvc.history.names import folders_of
from mvc.history.values import EMPTY_BLOB, MODE_FILE, MODE_SYMLINK, Stages, TreeEntry
from mvc.merging.checkpoint import CheckpointMerge, merge_checkpoint
from mvc.merging.likeness import make_likeness
from mvc.merging.rules import SIDES, Rules, Side
from mvc.merging.shards import find_models, lacks_tensors, merge_model
from mvc.merging.table import Decision, MergeRow, Outcome, decide, merge_names
from mvc.merging.text import MAX_TEXT_BYTES, MergedText, merge_json, merge_text
from mvc.workspace.manifests import find_manifest

if TYPE_CHECKING:
    from mvc.merging.decided import Fit, Resolve
    from mvc.merging.tokens import Tokens
    from mvc.workspace.context import Context
    from mvc.workspace.tensors import ModelTensor

    Tree: TypeAlias = Mapping[str, TreeEntry]

_MOVED = "tensors have moved between the files of the model, so decide all of them"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A conflict that a person or a rule must resolve.

    Attributes:
        path: the file.
        tensor: the tensor in it, or None for the file.
        reason: what happened, in words.
    """

    path: str
    tensor: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class FileMerge:
    """The planned merge of one file."""

    path: str  # its name in the result
    row: MergeRow[TreeEntry]  # its versions
    # the version that is the result as it is; None if the file goes, or is merged
    taken: TreeEntry | None = None
    text: MergedText | None = None  # the merged text, with markers if there are conflicts, or None
    checkpoint: CheckpointMerge | None = None  # the merge of its tensors, or None
    data: bytes | None = None  # content that no side has, or None
    mode: int = 0  # its Git mode in the result
    conflicts: tuple[Conflict, ...] = ()  # what is not decided
    # whether it is left undecided with others that have conflicts: the shards of a model
    is_open: bool = False

    @property
    def is_merged(self) -> bool:
        """Whether the result is a new version that no side has."""
        return any(one is not None for one in (self.text, self.checkpoint, self.data))

    @property
    def stages(self) -> Stages:
        """The versions that an undecided file has in the index."""
        return self.row.base, self.row.sides[0], self.row.sides[1]


@dataclass(frozen=True, slots=True)
class Sides:
    """What is merged."""

    base: Tree  # the files that the sides have in common
    trees: Sequence[Tree]  # the files of every side, ours first
    labels: tuple[str, str] = ("ours", "theirs")  # what markers call the first two
    beside: Collection[str] = ()  # paths of other files that belong to the result
    # whose tokens embeddings get: ``union``, ``base``, ``ours`` or ``theirs``; None if rows stay where they are
    tokenizer: str | None = None
    # returns the whole trees that these are a part of; None if these are whole
    around: Callable[[], Sides] | None = None

    def paths(self) -> set[str]:
        """Return the paths of all files that a side has."""
        return {path for tree in self.trees for path in tree}.union(self.beside)

    def versions(self) -> set[str]:
        """Return the paths of all files that are merged."""
        return {path for tree in (self.base, *self.trees) for path in tree}


def plan_files(
    context: Context, sides: Sides, rules: Rules, resolve: Resolve, *, check_tokens: bool = True
) -> tuple[FileMerge, ...]:
    """Return the planned merge of every file of the base and the sides.

    ``resolve`` returns the tensor that a strategy makes of a conflict, unread. With ``check_tokens``, rows that
    stand for other tokens on each side are not computed.

    Raises:
        ConflictError: a name would be a file and a folder.
        UsageError: a strategy that cannot decide a certain conflict.
        NotFoundError: a tokenizer was chosen, and there is none.
    """
    planner = _Planner(context, sides, rules, resolve, check_tokens=check_tokens)
    models = [
        one
        for paths in find_models(sides.versions().union(sides.beside))
        for one in planner.plan_model(paths)
    ]
    done = {merge.path for merge in models}
    base, *trees = (
        {path: entry for path, entry in tree.items() if path not in done}
        for tree in (sides.base, *sides.trees)
    )
    likeness = make_likeness(context)
    rows = merge_names(base, trees, _version, lambda one: one.blob != EMPTY_BLOB, likeness)
    merges = (*models, *(planner.plan(row) for row in rows))
    if sides.tokenizer is not None:
        planner.tokens.check_found()
        merges += planner.plan_new({merge.path for merge in merges})
    paths = [merge.path for merge in merges if merge.taken or merge.is_merged or merge.conflicts]
    clash = min(folders_of(paths) & set(paths), default=None)
    if clash is not None:
        raise ConflictError(
            f"{clash!r} is a file on one side and a folder on the other",
            hint="rename one of them on its branch, then merge again",
        )
    return merges


def _version(entry: TreeEntry) -> Hashable:
    """Return a key that is equal for equal versions; the executable bit is merged separately."""
    return entry.mode == MODE_SYMLINK, entry.blob


def _with_mode(entry: TreeEntry | None, mode: int) -> TreeEntry | None:
    if entry is None or MODE_SYMLINK in (entry.mode, mode):
        return entry
    return TreeEntry(mode, entry.blob)


def _with_tensors(plan: FileMerge, merged: CheckpointMerge) -> FileMerge:
    conflicts = tuple(Conflict(plan.path, name, reason) for name, reason in merged.conflicts)
    return replace(plan, checkpoint=merged, conflicts=conflicts)


class _Planner:
    def __init__(
        self, context: Context, sides: Sides, rules: Rules, resolve: Resolve, *, check_tokens: bool
    ) -> None:
        self._context = context
        self._sides = sides
        self._rules = rules
        self._compute = resolve
        self._check_tokens = check_tokens
        self._all = sides.paths()

    @cached_property
    def tokens(self) -> Tokens:
        """The tokenizers beside the checkpoints."""
        from mvc.merging.tokens import Tokens  # noqa: PLC0415  brings NumPy; rarely needed

        whole = self._sides if self._sides.around is None else self._sides.around()
        return Tokens(self._context, whole.base, whole.trees, self._sides.tokenizer)

    def plan(self, row: MergeRow[TreeEntry]) -> FileMerge:
        """Plan one file."""
        plan = FileMerge(row.name, row, mode=_merge_modes(row))
        if self._sides.tokenizer is not None and self.tokens.aligns(plan.path):
            return self._plan_aligned(plan)
        return self._plan_usual(plan)

    def plan_new(self, known: Collection[str]) -> tuple[FileMerge, ...]:
        """Plan files of the tokenizer that no side has."""
        row: MergeRow[TreeEntry] = MergeRow("", None, (None,), Decision(Outcome.OURS, 0))
        return tuple(
            FileMerge(path, replace(row, name=path), data=data, mode=MODE_FILE)
            for path, data in self.tokens.all_files()
            if path not in known
        )

    def _plan_aligned(self, plan: FileMerge) -> FileMerge:
        """Plan a file beside which rows are aligned by token."""
        usual = None if self.tokens.is_chosen_whole(plan.path) else self._plan_usual(plan)
        if self.tokens.owns(plan.path):
            if usual is not None and not usual.conflicts:
                return usual
            return replace(plan, data=self.tokens.find_file(plan.path), mode=plan.mode or MODE_FILE)
        present = [side for side in plan.row.sides if side is not None]
        if self.tokens.follows(plan.path) and len(present) == len(plan.row.sides):
            return self._merge_content(plan, present) or self._plan_usual(plan)
        return self._plan_usual(plan)

    def _plan_usual(self, plan: FileMerge) -> FileMerge:
        row = plan.row
        if not row.outcome.is_conflict:
            return replace(plan, taken=_with_mode(row.result, plan.mode))
        present = [side for side in row.sides if side is not None]
        if row.outcome is not Outcome.RENAME_RENAME and len(present) == len(row.sides):
            merged = self._merge_content(plan, present)
            if merged is not None:
                return merged
        return self._decide_whole(plan)

    def plan_model(self, paths: Sequence[str]) -> list[FileMerge]:
        """Plan the files of a model as one; nothing if each can be planned by itself."""
        base, *trees = (
            {path: tree[path] for path in paths if path in tree}
            for tree in (self._sides.base, *self._sides.trees)
        )
        if not set(self._sides.beside).isdisjoint(paths):
            return self._plan_rest(base, trees)
        files = merge_model(
            self._context,
            base,
            trees,
            lambda path, name: self._rules.find(path, name, self._all),
            self._resolve,
            self._fit,
        )
        if files is None:
            return []
        rows = merge_names(base, trees, _version, lambda _: False)
        merges = [self._plan_part(row, files[row.name]) for row in rows]
        return [replace(one, is_open=any(merge.conflicts for merge in merges)) for one in merges]

    def _plan_rest(self, base: Tree, trees: Sequence[Tree]) -> list[FileMerge]:
        """Plan the files of a model whose other files a person has decided already.

        A tensor that one of them lacks on a side may be in such a file, or ought to be.
        """
        rows = merge_names(base, trees, _version, lambda _: False)
        return [
            self._decide_whole(FileMerge(row.name, row, mode=_merge_modes(row)), _MOVED)
            for row in rows
            if lacks_tensors(self._context, [row.base, *row.sides])
        ]

    @staticmethod
    def _plan_part(
        row: MergeRow[TreeEntry], part: CheckpointMerge | TreeEntry | bytes | None
    ) -> FileMerge:
        plan = FileMerge(row.name, row, mode=_merge_modes(row))
        if isinstance(part, bytes):
            return replace(plan, data=part)
        if isinstance(part, CheckpointMerge):
            return _with_tensors(plan, part)
        return replace(plan, taken=_with_mode(part, plan.mode))

    def _decide_whole(self, plan: FileMerge, why: str = "") -> FileMerge:
        """Take one version of a file whose content cannot be merged, if a rule names one."""
        row, strategy = plan.row, self._rules.find(plan.path, None, self._all)
        if strategy in SIDES:
            places = {"base": row.base, "ours": row.sides[0], "theirs": row.sides[-1]}
            return replace(plan, taken=places[strategy])
        reason = row.reason + (f"; {why}" if why else "")
        shown = row.sides[0] or next(side for side in row.sides if side is not None)
        return replace(plan, taken=shown, conflicts=(Conflict(plan.path, None, reason),))

    def _merge_content(self, plan: FileMerge, sides: Sequence[TreeEntry]) -> FileMerge | None:
        """Merge the content of a file's versions; None if that is impossible."""
        versions = [plan.row.base, *sides]
        if any(version is not None and version.mode == MODE_SYMLINK for version in versions):
            return None
        found = [
            None if version is None else find_manifest(self._context, version.blob)
            for version in versions
        ]
        if all(one is not None and one.segments for one in found[1:]):
            return self._merge_tensors(plan, sides)
        if any(one is not None for one in found):
            return None
        return self._merge_text(plan, sides)

    def _merge_tensors(self, plan: FileMerge, sides: Sequence[TreeEntry]) -> FileMerge:
        path = plan.path
        merged = merge_checkpoint(
            self._context,
            path,
            plan.row.base,
            sides,
            lambda name: self._rules.find(path, name, self._all),
            self._resolve,
            self._fit,
        )
        if isinstance(merged, str):
            return self._decide_whole(plan, merged)
        return _with_tensors(plan, merged)

    @property
    def _fit(self) -> Fit | None:
        return None if self._sides.tokenizer is None else self.tokens.fit

    def _resolve(self, strategy: str, path: str, row: MergeRow[ModelTensor]) -> ModelTensor:
        if self._check_tokens:
            self.tokens.check(path, row)
        return self._compute(strategy, path, row)

    def _merge_text(self, plan: FileMerge, sides: Sequence[TreeEntry]) -> FileMerge | None:
        versions = [plan.row.base, *sides]
        blobs = [None if version is None else version.blob for version in versions]
        history = self._context.history
        sizes = (0 if blob is None else history.find_blob_size(blob) or 0 for blob in blobs)
        if any(size_bytes > MAX_TEXT_BYTES for size_bytes in sizes):
            return None
        texts = [b"" if blob is None else history.read_blob(blob) for blob in blobs]
        if self._sides.tokenizer is not None:
            texts = [self.tokens.set_size(plan.path, text) for text in texts]
        base, first, *others = texts
        strategy = self._rules.find(plan.path, None, self._all)
        favour = next((side for side in SIDES if side == strategy), None)
        text = MergedText(first, 0)
        for other in others:
            merged = self._merge_lines(plan.path, (base, text.data, other), favour)
            if merged is None:
                return None
            text = MergedText(merged.data, text.conflicts + merged.conflicts)
        conflicts = (Conflict(plan.path, None, plan.row.outcome.value),) if text.conflicts else ()
        return replace(plan, text=text, conflicts=conflicts)

    def _merge_lines(
        self, path: str, versions: tuple[bytes, bytes, bytes], favour: Side | None
    ) -> MergedText | None:
        labels = self._sides.labels
        merged = merge_text(*versions, labels=labels)
        if merged is None or not merged.conflicts:
            return merged
        data = merge_json(*versions) if path.endswith(".json") else None
        if data is not None:
            return MergedText(data, 0)
        return merge_text(*versions, labels=labels, favour=favour) if favour else merged


def _merge_modes(row: MergeRow[TreeEntry]) -> int:
    """Return the mode of the result; the executable bit is merged separately from the bytes."""
    modes = [None if side is None else side.mode for side in row.sides]
    side = decide(None if row.base is None else row.base.mode, modes).side
    shown = None if side is None else modes[side]
    return shown or next((mode for mode in modes if mode is not None), 0)
