"""merge by a recipe into the current branch: commits the result and the record to repeat it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mvc.formats.manifest import Manifest
from mvc.history.messages import format_message
from mvc.history.values import MODE_FILE, Head, TreeEntry
from mvc.merging.checkpoint import CheckpointMerge
from mvc.merging.files import FileMerge
from mvc.merging.output import header_of, in_file_order
from mvc.merging.table import Decision, MergeRow, Outcome
from mvc.merging.trees import write_merge
from mvc.operations.merge import MergeResult, check_not_staged
from mvc.operations.merge_recipe import MODEL_FILE, RECIPE_FILE, files_beside, open_plan
from mvc.progress import announce
from mvc.workspace.checkout_plan import STASH_THEM, execute, plan_checkout
from mvc.workspace.commits import record
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.journal import ENDED, mark_origin
from mvc.workspace.pending import check_nothing_pending
from mvc.workspace.recorded import tree_of
from mvc.workspace.recovery import recover
from mvc.workspace.released import check_kept
from mvc.workspace.transition import plan_head_move

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.merging.plan import MergePlan

RECIPE, INPUT, SEED = "Merge-Recipe", "Merge-Input", "Merge-Seed"
_FILES = "files"


@holds_sweep_lock
def commit_recipe(
    context: Context,
    recipe: str,
    *,
    seed: int = 0,
    message: str | None = None,
    no_gate: bool = False,
) -> MergeResult:
    """Merge models by a mergekit recipe and commit the result to the current branch.

    The result replaces the base model's file, or the first model's; the commits of the models
    become parents. The commit holds the recipe, and its trailers record what the names stood
    for, so that ``replay_merge`` can repeat it.

    Args:
        recipe: the text of the recipe, as for ``merge_recipe``.
        seed: of methods that draw random numbers.
        message: of the commit.
        no_gate: as for ``commit``.

    Raises:
        FormatError: the recipe is not valid.
        NotFoundError: a method, model, layer or tensor that does not exist.
        UsageError: models or parameters that do not fit together.
        UnsupportedError: something that mvc leaves out, or elements that cannot be averaged.
        GateError: the result fails a gate.
        ConflictError: local changes would be lost, or a merge is under way.
    """
    recover(context)
    check_nothing_pending(context)
    head, index = context.history.head(), context.history.read_index()
    ours = tree_of(context, head.commit)
    check_not_staged(index, ours)
    with open_plan(context, recipe, seed=seed) as (plan, files):
        new = store_result(context, plan, files, ours)
    replaced = {*plan.places, f"{target_of(plan)}.index.json"}  # shards, too
    entries = {path: entry for path, entry in ours.items() if path not in replaced} | new
    check_kept(context, entries)
    checkout = plan_checkout(context, index, ours, entries, materialise=False)
    checkout.check(STASH_THEM)
    parents, stamp = _find_parents(context, head, plan), context.stamp()
    subject = message or f"Merge {', '.join(plan.recipe.models)} by recipe ({plan.recipe.method})"
    folder, slash, _ = target_of(plan).rpartition("/")
    trailers = [(RECIPE, f"{folder}{slash}{RECIPE_FILE}")]
    trailers += [(INPUT, f"{name}={source or _FILES}") for name, source in plan.commits.items()]
    if plan.seed:
        trailers.append((SEED, str(plan.seed)))
    commit = record(
        context, entries, parents, format_message(subject, trailers), committer=stamp,
        no_gate=no_gate,
    )  # fmt: skip
    move = plan_head_move("move", commit, head, f"merge: {subject}", stamp)
    marks = (*ENDED, *mark_origin(head.commit))
    done = execute(context, checkout, index, move, source=commit, marks=marks)
    counts = Counter("kept" if tensor.method is None else "merged" for tensor in plan.tensors)
    return MergeResult(
        "merged", done.commit, done.branch, tuple(parents[1:]), done.written, done.removed,
        (), dict(counts), plan.read_bytes,
    )  # fmt: skip


def _find_parents(context: Context, head: Head, plan: MergePlan) -> list[GitId]:
    """Return HEAD, and the commits of models that nothing among them contains."""
    history = context.history
    named = dict.fromkeys(commit for commit in plan.commits.values() if commit is not None)
    first = [] if head.commit is None else [head.commit]
    others = [commit for commit in named if commit not in first]
    everything = [*first, *others]
    return first + [
        commit
        for commit in others
        if not any(history.is_ancestor(commit, other) for other in everything if other != commit)
    ]


def read_inputs(trailers: Mapping[str, list[str]]) -> dict[str, str]:
    """Return what the names of a recipe stood for when it was merged: commits, or files as named."""
    inputs = {}
    for value in trailers.get(INPUT, []):
        name, _, commit = value.rpartition("=")
        _, colon, path = name.partition(":")
        inputs[name] = name if commit == _FILES else commit + colon + path
    return inputs


def target_of(plan: MergePlan) -> str:
    """Return the path of the result: the host's, if that is one safetensors file."""
    if len(plan.places) == 1 and plan.places[0].endswith(".safetensors"):
        return plan.places[0]
    folder = plan.places[0].rpartition("/")[0] if plan.places else ""
    return f"{folder}/{MODEL_FILE}" if folder else MODEL_FILE


def store_result(
    context: Context,
    plan: MergePlan,
    files: Mapping[str, Mapping[str, bytes]],
    base: Mapping[str, TreeEntry],
) -> dict[str, TreeEntry]:
    """Store what a recipe makes; return path → entry of the model and of the files beside it.

    A tensor that is a model's own keeps its chunks and is not read.
    """
    target = target_of(plan)
    ordered = in_file_order([merged.tensor for merged in plan.tensors])
    tensors = {tensor.name: tensor for tensor in ordered}
    like = Manifest("safetensors", 0, context.chunk_bytes, ())
    checkpoint = CheckpointMerge(target, tensors, header_of([*tensors.values()]), like, (), {})
    announce(checkpoint.fresh_bytes)
    row: MergeRow[TreeEntry] = MergeRow(target, None, (None,), Decision(Outcome.OURS, 0))
    merges = [FileMerge(target, row, checkpoint=checkpoint, mode=MODE_FILE)]
    folder, slash, _ = target.rpartition("/")
    for name, data in files_beside(plan, files).items():
        merges.append(FileMerge(f"{folder}{slash}{name}", row, data=data, mode=MODE_FILE))
    return dict(write_merge(context, merges, base).entries)
