"""merge --replay: repeat a merge from the record in its commit, and compare to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import NotFoundError, UsageError
from mvc.history.messages import parse_trailers
from mvc.merging.files import Sides, plan_files
from mvc.merging.strategies import read_choices
from mvc.merging.trees import find_base, write_merge
from mvc.operations.commit_recipe import RECIPE, SEED, read_inputs, store_result
from mvc.operations.merge_recipe import open_plan
from mvc.workspace.context import Context, holds_sweep_lock

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo, TreeEntry
    from mvc.ids import GitId

    Tree = Mapping[str, TreeEntry]


@dataclass(frozen=True, slots=True)
class MergeReplay:
    """The result of repeating a merge.

    Attributes:
        commit: the merge.
        files: how many files were made again.
        different: paths that are not as in the commit.
    """

    commit: GitId
    files: int
    different: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        """Whether every file is the same to the bit."""
        return not self.different


@holds_sweep_lock
def replay_merge(context: Context, revision: str = "HEAD") -> MergeReplay:
    """Repeat a merge from the record in its commit, and compare the result to the bit.

    Nothing moves. Strategy, rules, parameters and seed come from the trailers, a recipe from
    the commit's files. Plain files named by a recipe must still be there, unchanged.

    Args:
        revision: a merge commit, or one made by a recipe.

    Raises:
        NotFoundError: no such revision, or a file that the recipe named is gone.
        UsageError: the commit merges nothing.
    """
    commit = context.history.resolve_commit(revision)
    info = context.history.read_commit(commit)
    recorded = context.history.read_tree(commit)
    trailers: dict[str, list[str]] = {}
    for key, value in parse_trailers(info.message):
        trailers.setdefault(key, []).append(value)
    if RECIPE in trailers:
        again = _replay_recipe(context, recorded, trailers)
        expected = {path: recorded.get(path) for path in again}
    elif len(info.parents) > 1:
        again = _replay_branches(context, info)
        expected = dict(recorded)
    else:
        raise UsageError(
            f"{revision} merges nothing: it has one parent and no recipe",
            hint='"mvc log --graph" shows merges',
        )
    different = [path for path in {**again, **expected} if again.get(path) != expected.get(path)]
    return MergeReplay(commit, len(again), tuple(sorted(different)))


def _replay_recipe(
    context: Context, recorded: Tree, trailers: Mapping[str, list[str]]
) -> dict[str, TreeEntry]:
    path = trailers[RECIPE][0]
    if path not in recorded:
        raise NotFoundError(f"the commit names a recipe that is missing from it: {path!r}")
    text = context.history.read_blob(recorded[path].blob).decode("utf-8", "replace")
    seed = int(trailers[SEED][0]) if SEED in trailers and trailers[SEED][0].isdecimal() else 0
    with open_plan(context, text, seed=seed, named=read_inputs(trailers)) as (plan, files):
        return store_result(context, plan, files, recorded)


def _replay_branches(context: Context, info: CommitInfo) -> dict[str, TreeEntry]:
    choices = read_choices(info.message)
    trees = [context.history.read_tree(parent) for parent in info.parents]
    base = find_base(context, info.parents) or {}
    sides = Sides(base, trees, tokenizer=choices.tokenizer)
    merges = plan_files(context, sides, choices.rules, choices.methods(context, len(trees)).resolve)
    return dict(write_merge(context, merges, trees[0]).entries)
