"""merge --preview: what a merge would do, and how much the models interfere; writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mvc.comparison.kinds import find_part
from mvc.errors import UsageError
from mvc.merging.blend import Blend, can_blend, make_strategy
from mvc.merging.files import Conflict, FileMerge, Sides, plan_files
from mvc.merging.rules import Rules
from mvc.merging.strategies import make_choices
from mvc.merging.table import MergeRow, Outcome
from mvc.merging.trees import find_base
from mvc.numbers.interference import Interference, measure
from mvc.operations.merge import check_rules, is_behind, leave_out_known
from mvc.operations.merge_recipe import open_plan
from mvc.progress import announce, report
from mvc.tensor_names import natural_key
from mvc.workspace.context import Context, threads_of

if TYPE_CHECKING:
    from mvc.workspace.tensors import ModelTensor

    Task = tuple[str, str, ModelTensor, Sequence[ModelTensor]]  # path, name, base, sides

_UNRELATED = "unrelated histories: no commit in common, so a merge needs explicit permission"
_ORIGINS = {Outcome.OURS: "ours", Outcome.THEIRS: "theirs", Outcome.BOTH: "both"}


@dataclass(frozen=True, slots=True)
class TensorInterference:
    """Interference of the models in one tensor."""

    path: str
    name: str
    found: Interference


@dataclass(frozen=True, slots=True)
class MergePreview:
    """What a merge would do.

    Attributes:
        sides: what is merged, ours first, or the models of a recipe without the base.
        base: the merge base or base model, in words; None if there is none to compare with.
        outcomes: how many tensors of files that both sides changed would come from where; of a
            recipe how many each method merges.
        conflicts: what would have to be decided.
        tensors: interference of tensors that several sides changed.
        notes: what a person should know.
        kind: ``up-to-date`` and ``fast-forward`` need no merge.
        files: paths that would change against what HEAD or the base has → where they would come from:
            ``ours``, ``theirs``, ``both``, ``merged``, ``removed`` or ``conflict``.
    """

    sides: tuple[str, ...]
    base: str | None
    outcomes: Mapping[str, int]
    conflicts: tuple[Conflict, ...] = ()
    tensors: tuple[TensorInterference, ...] = ()
    notes: tuple[str, ...] = field(default=())
    kind: Literal["up-to-date", "fast-forward", "merge"] = "merge"
    files: Mapping[str, str] = field(default_factory=dict)

    def by_layer(self) -> dict[str, Interference]:
        """Return layers, and modules outside of them, in natural order."""
        groups: dict[str, Interference] = {}
        for one in self.tensors:
            name = find_part(one.name)
            groups[name] = groups[name] + one.found if name in groups else one.found
        return dict(sorted(groups.items(), key=lambda group: natural_key(group[0])))

    @property
    def total(self) -> Interference | None:
        """All tensors as one, or None if there are none."""
        if not self.tensors:
            return None
        first, *others = (one.found for one in self.tensors)
        return sum(others, first)


def preview_merge(
    context: Context,
    *revisions: str,
    strategy: str | None = None,
    rules: Sequence[tuple[str, str]] = (),
    parameters: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    seed: int = 0,
    tokenizer: str | None = None,
) -> MergePreview:
    """Show what a merge would do, and how much its models interfere.

    Nothing is written. For every tensor changed on several sides it measures how much each of
    them changed, how often they moved in opposite directions, and the cosine of their task
    vectors.

    Args:
        revisions: as for ``merge``; none with a recipe.
        strategy: as for ``merge``.
        rules: as for ``merge``.
        parameters: as for ``merge``.
        recipe: the text of a recipe instead, as for ``merge_recipe``.
        seed: of methods that draw random numbers.
        tokenizer: as for ``merge``.

    Raises:
        NotFoundError: no such revision, method or model.
        UsageError: things that do not fit together, or both revisions and a recipe.
    """
    if recipe is not None:
        if revisions or tokenizer is not None:
            what = "models: give no revisions" if revisions else "tokenizer: give no other"
            raise UsageError(f"a recipe names its own {what}")
        return preview_recipe(context, recipe, seed=seed)
    choices = make_choices(strategy, rules, parameters or {}, seed, tokenizer)
    if not revisions:
        raise UsageError("nothing to merge: name a branch or another revision")
    history = context.history
    head, methods = history.head(), choices.methods(context, 1 + len(revisions))
    names, base = ("HEAD", *revisions), "the merge base"
    heads = leave_out_known(
        context, head, [history.resolve_commit(revision) for revision in revisions]
    )
    if not heads:
        return MergePreview(names, base, {}, kind="up-to-date")
    commits = [history.resolve_commit("HEAD"), *heads]
    is_fast = len(heads) == 1 and is_behind(context, head, heads[0])
    choices = choices.name_tokenizer(context, commits)
    trees = [history.read_tree(commit) for commit in commits]
    common = find_base(context, commits)
    sides = Sides(common or {}, trees, tokenizer=choices.tokenizer)
    merges = plan_files(context, sides, choices.rules, methods.resolve)
    check_rules(context, choices.rules, sides)
    checkpoints = [merge.checkpoint for merge in merges if merge.checkpoint is not None]
    outcomes = sum((Counter(checkpoint.taken) for checkpoint in checkpoints), Counter[str]())
    conflicts = tuple(conflict for merge in merges for conflict in merge.conflicts)
    found = _measure(_shared_tensors(context, sides), threads_of(context))
    return MergePreview(
        names,
        None if common is None else base,
        dict(outcomes),
        conflicts,
        tuple(found),
        (_UNRELATED,) if common is None else (),
        "fast-forward" if is_fast else "merge",
        {merge.path: _origin(merge) for merge in merges if merge.row.outcome is not Outcome.KEEP},
    )


def _origin(merge: FileMerge) -> str:
    """Return where a file of the result comes from."""
    if merge.conflicts:
        return "conflict"
    if merge.is_merged:
        return "merged"
    return "removed" if merge.taken is None else _ORIGINS.get(merge.row.outcome, "merged")


def _shared_tensors(context: Context, sides: Sides) -> list[Task]:
    """Return the weights that all sides have and several changed."""
    rows: list[Task] = []

    def note(_: str, path: str, row: MergeRow[ModelTensor]) -> ModelTensor:
        present = [side for side in row.sides if side is not None]
        if row.base is not None and len(present) == len(sides.trees):
            rows.append((path, row.name, row.base, present))
        return present[0]

    plan_files(context, sides, Rules((), "linear"), note, check_tokens=False)
    return rows


def _measure(tasks: Iterable[Task], threads: int) -> list[TensorInterference]:
    chosen: list[Task] = []
    for task in tasks:
        views = [tensor.view for tensor in (task[2], *task[3])]
        if len({view.shape for view in views}) == 1 and all(
            can_blend(view.dtype) for view in views
        ):
            chosen.append(task)
    announce(sum(base.size_bytes for _, _, base, _ in chosen))
    measured = []
    for path, name, base, sides in chosen:
        strategy = make_strategy("task_arithmetic", {}, [{}] * len(sides))
        blend = Blend(strategy, name, sides, base, threads=threads)
        first, *others = blend.map(lambda piece: measure(piece.deltas))
        measured.append(TensorInterference(path, name, sum(others, first)))
        report(base.size_bytes)
    return measured


def preview_recipe(context: Context | None, text: str, *, seed: int = 0) -> MergePreview:
    """Say what a recipe would do."""
    with open_plan(context, text, seed=seed) as (plan, _):
        outcomes = Counter(one.method or "taken as they are" for one in plan.tensors)
        tasks: list[Task] = [
            ("", one.name, one.tensor.source.base, one.tensor.source.inputs)
            for one in plan.tensors
            if isinstance(one.tensor.source, Blend)
            and one.tensor.source.base is not None
            and len(one.tensor.source.inputs) > 1
        ]
        found = _measure(tasks, threads_of(context))
    sides = tuple(name for name in plan.recipe.models if name != plan.recipe.base)
    return MergePreview(sides, plan.recipe.base, dict(outcomes), (), tuple(found), plan.notes)
