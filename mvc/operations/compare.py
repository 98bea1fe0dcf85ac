"""compare: what differs between two models, tensor by tensor, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.comparison.gather import gather
from mvc.comparison.pairs import TensorChange, TensorPair, pair_models
from mvc.comparison.rearranged import find_rearranged
from mvc.comparison.rollup import TensorGroup, sum_up
from mvc.comparison.spectra import add_spectra
from mvc.comparison.verdicts import LEVELS, judge
from mvc.errors import NotFoundError, UsageError
from mvc.operations.token_rows import TokenChanges, compare_tokens
from mvc.tensor_names import takes
from mvc.workspace.context import Context, threads_of
from mvc.workspace.models import Model, open_model, read_revision, read_tree_model, read_worktree
from mvc.workspace.pathspec import filter_paths
from mvc.workspace.recorded import staged_tree
from mvc.workspace.recovery import recover
from mvc.workspace.worktree import relative_paths

if TYPE_CHECKING:
    from mvc.comparison.case import ComparisonVerdict
    from mvc.ids import GitId
    from mvc.workspace.models import Operand
    from mvc.workspace.worktree import Paths

_NOTHING = Model("nothing", ())


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: the user's name for it, and its commit, if any."""

    label: str
    commit: GitId | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModelDiff:
    """What differs between two models.

    Attributes:
        old: what it was compared with.
        new: what was compared.
        changes: every tensor of both, in the order of the new one; removed ones at the end.
        total: all of them as one.
        verdicts: what it means, in words, the most telling first.
        tokens: how the tokens differ that rows of embeddings stand for; None if they do not.
    """

    old: Side
    new: Side
    changes: tuple[TensorChange, ...]
    total: TensorGroup
    verdicts: tuple[ComparisonVerdict, ...]
    tokens: TokenChanges | None = None

    @property
    def differing(self) -> tuple[TensorChange, ...]:
        """The tensors that differ; a new name alone counts as a difference."""
        return tuple(change for change in self.changes if change.status != "unchanged")


def compare(
    context: Context | None,
    old: Operand = None,
    new: Operand = None,
    *,
    staged: bool = False,
    paths: Paths = (),
    tensors: str | None = None,
    spectral: bool = False,
) -> ModelDiff:
    """Compare two models in numbers: how far each tensor moved, and what that means.

    Tensors with equal ids are not read. The statistics of all others are cached in the
    repository by their two ids, so a second look reads nothing.

    Args:
        old: a revision, ``REV:PATH``, a checkpoint file, a folder of them, or a live model or its
            state dict; defaults to the index (HEAD with ``staged``). A ``Path`` is never a
            revision.
        new: the same; defaults to the worktree (the index with ``staged``).
        staged: compare with the index instead of the worktree.
        paths: only these files, folders or wildcards of revisions, index and worktree.
        tensors: only tensors that have such a name on either side.
        spectral: also find the spectrum of each matrix's difference: largest singular value,
            stable rank, and how many directions have most of its energy. Reads them twice more.

    Raises:
        UsageError: ``new`` without ``old``, two models and ``staged``, a name that is both a
            revision and a file, or ``paths`` beside an operand that has none to choose from.
        FormatError: a file holds no tensor.
    """
    chosen = [] if context is None else relative_paths(context, paths)
    with ExitStack() as stack:
        sides = _open_sides(context, old, new, stack, staged=staged, paths=chosen)
        return _compare(context, sides, tensors, spectral=spectral)


def compare_commit(
    context: Context,
    revision: str = "HEAD",
    *,
    paths: Paths = (),
    tensors: str | None = None,
    spectral: bool = False,
) -> ModelDiff:
    """Compare a commit with its first parent in numbers, as ``compare`` does.

    Raises:
        NotFoundError: no such revision.
    """
    chosen = relative_paths(context, paths)
    info = context.history.read_commit(context.history.resolve(revision))
    old = read_revision(context, info.parents[0], chosen) if info.parents else _NOTHING
    sides = (old, read_revision(context, info.id, chosen))
    return _compare(context, sides, tensors, spectral=spectral)


def _compare(
    context: Context | None, models: tuple[Model, Model], tensors: str | None, *, spectral: bool
) -> ModelDiff:
    pairs = _choose(pair_models(*models), tensors)
    threads = threads_of(context)
    changes = gather(context, pairs, threads=threads)
    if spectral:
        changes = add_spectra(context, changes, threads=threads)
    spectra = {one.name: one.spectrum for one in changes if one.spectrum is not None}
    old, new = (Side(model.label, model.commit) for model in models)
    tokens = compare_tokens(context, models, changes, threads=threads)
    verdicts = [*judge(changes, spectra, find_rearranged(context, changes))]
    verdicts += [] if tokens is None else tokens.judge()
    ranked = tuple(sorted(verdicts, key=lambda verdict: LEVELS.index(verdict.level)))
    return ModelDiff(old, new, tuple(changes), sum_up(changes), ranked, tokens)


def _choose(pairs: Sequence[TensorPair], tensors: str | None) -> Sequence[TensorPair]:
    if tensors is None:
        return pairs
    chosen = [pair for pair in pairs if any(takes(tensors, side.name) for side in pair.sides)]
    if pairs and not chosen:
        example = pairs[0].shown.name
        raise NotFoundError(f"no tensor matches {tensors!r}", hint=f"names are such as {example!r}")
    return chosen


def _open_sides(
    context: Context | None,
    old: Operand,
    new: Operand,
    stack: ExitStack,
    *,
    staged: bool,
    paths: Sequence[str],
) -> tuple[Model, Model]:
    """Return both models, whose files stay open with ``stack``."""
    if new is not None and (old is None or staged):
        raise UsageError("two models are compared only with each other")
    if context is None or new is not None:
        before = stack.enter_context(open_model(context, old, paths))
        return before, stack.enter_context(open_model(context, new, paths))
    recover(context)
    entries = staged_tree(context.history.read_index())
    chosen = {path: entries[path] for path in filter_paths(paths, entries)}
    before = index = read_tree_model(context, chosen, "the index")
    if old is not None:
        before = stack.enter_context(open_model(context, old, paths))
    elif staged:
        head = context.history.head().commit
        before = _NOTHING if head is None else read_revision(context, "HEAD", paths)
    return before, index if staged else read_worktree(context, stack, paths)
