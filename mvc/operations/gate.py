"""diff --gate: would one side of a comparison pass the gates of the repository?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.checkpoints.names import is_checkpoint_name
from mvc.errors import UsageError
from mvc.history.values import Index, TreeEntry
from mvc.ids import GitId
from mvc.numbers.figures import Health
from mvc.workspace.commit_health import find_health, name_tensors
from mvc.workspace.health import CheckpointHealth, GateFailure, read_gates
from mvc.workspace.recorded import is_clean, staged_tree
from mvc.workspace.worktree import find_file_stat, git_mode

if TYPE_CHECKING:
    from mvc.workspace.context import Context

    Rows = list[tuple[str, Health]]


@dataclass(frozen=True, slots=True)
class GateReport:
    """The result of the gates.

    Attributes:
        limits: gate → what it allows.
        health: the checkpoints that were judged.
        failures: what is beyond a limit.
    """

    limits: Mapping[str, float]
    health: tuple[CheckpointHealth, ...]
    failures: tuple[GateFailure, ...]


def check_gates(
    context: Context, old: str | None = None, new: str | None = None, *, staged: bool = False
) -> GateReport:
    """Check the newer side of a comparison, as in ``diff``, against the gates that are set.

    Args:
        old: the base of a norm's growth; defaults to HEAD.
        new: revision to judge; defaults to the worktree (the index with ``staged``).
        staged: judge the index.

    Raises:
        UsageError: no gate is set.
    """
    if new is not None and staged:
        raise UsageError("two revisions are compared only with each other")
    gates = read_gates(context.history.config.read())
    if gates is None:
        raise UsageError("no gate is set", hint='set one, such as "mvc config gate.nan 0"')
    index = context.history.read_index()
    head = context.history.head().commit
    first = head if old is None else context.history.resolve_commit(old)
    before: tuple[CheckpointHealth, ...] = ()
    if first is not None:
        before = find_health(context, context.history.read_tree(first), [first], wanted=True)
    known: dict[GitId, Rows] = {}
    if new is not None:
        commit = context.history.resolve_commit(new)
        earlier, tree = [commit], context.history.read_tree(commit)
    else:
        earlier = [] if head is None else [head]
        tree = staged_tree(index)
        if not staged:
            tree, known = _read_worktree(context, index)
    sums = {blob: sum((health for _, health in rows), Health()) for blob, rows in known.items()}
    health = find_health(context, tree, earlier, wanted=True, known=sums)
    failures = name_tensors(context, tree, gates.judge(health, before), known)
    return GateReport(gates.limits, health, tuple(failures))


def _read_worktree(
    context: Context, index: Index
) -> tuple[dict[str, TreeEntry], dict[GitId, Rows]]:
    """Return the tracked files as they are; of changed ones, under a name of its own, the tensors."""
    from mvc.workspace.measuring import measure_worktree  # noqa: PLC0415  brings NumPy

    tree: dict[str, TreeEntry] = {}
    known: dict[GitId, Rows] = {}
    for path, entry in index.entries.items():
        stat = find_file_stat(context.worktree, path) if is_checkpoint_name(path) else None
        if entry.skip_worktree or (stat is not None and is_clean(context, index, entry, stat)):
            tree[path] = entry.version
        elif stat is not None and stat.is_regular:
            blob = GitId(f"worktree:{path}")
            tree[path], known[blob] = (
                TreeEntry(git_mode(stat), blob),
                measure_worktree(context, path),
            )
    return tree, known
