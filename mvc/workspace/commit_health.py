"""The health of the checkpoints of a commit that is being made.

The health of a file is kept by the id of its blob when it is stored. So a commit adds up a few kept
figures, and reads no weight; what a parent says of the same files is taken from there. What is not known
is measured if it is small; otherwise there is no line, rather than a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc.checkpoints.names import SHARD, is_checkpoint_name
from mvc.numbers.figures import Health
from mvc.workspace.health import HEALTH_TRAILER, CheckpointHealth, read_gates, read_health

if TYPE_CHECKING:
    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context
    from mvc.workspace.health import GateFailure


MAX_CHECKPOINTS = 16
CHEAP_BYTES = 64 * 2**20
"""What a commit reads at most to measure what is not known."""


def examine(
    context: Context,
    tree: Mapping[str, TreeEntry],
    earlier: Sequence[GitId],
    parents: Sequence[GitId],
    *,
    no_gate: bool = False,
) -> list[tuple[str, str]]:
    """Return the trailers on health and gates of a commit; GateError if a gate refuses it.

    ``earlier`` are commits whose lines count where their files are the same, first parent first; growth
    is compared with ``parents``, none or one.
    """
    gates = None
    settings = {} if no_gate else context.history.config.read()
    if any(key.startswith("gate.") for key in settings):
        gates = read_gates(settings)
    found = find_health(context, tree, earlier, wanted=gates is not None)
    trailers = [(HEALTH_TRAILER, health.text()) for health in found]
    if gates is not None:
        before = [one for commit in parents for one in recorded(context, commit)]
        failures = gates.judge(found, before)
        if not gates.is_marking:  # what is as in the parent was let through then
            as_before = {one.path for one in found if one in before}
            failures = [failure for failure in failures if failure.path not in as_before]
        failures = name_tensors(context, tree, failures)
        if failures and not gates.is_marking:
            raise gates.refuse(failures)
        trailers += gates.mark(failures)
    return trailers


def recorded(context: Context, commit: GitId) -> tuple[CheckpointHealth, ...]:
    """Return what a commit says of the health of its checkpoints."""
    return read_health(context.history.read_commit(commit).trailers)


def name_tensors(
    context: Context,
    tree: Mapping[str, TreeEntry],
    failures: Sequence[GateFailure],
    known: Mapping[GitId, Sequence[tuple[str, Health]]] | None = None,
) -> list[GateFailure]:
    """Return failures with the tensor that has most of what each found.

    ``known`` are the tensors of files that are not stored.
    """
    if not failures:
        return []
    from mvc.workspace.measuring import measure_tensors  # noqa: PLC0415  brings NumPy

    groups, found = group_checkpoints(tree), []
    for failure in failures:
        blobs = groups[failure.path].values()
        rows = [row for b in blobs for row in (known or {}).get(b) or measure_tensors(context, b)]
        # Of a norm and its growth the square, which adds up.
        figures = {
            name: {"nan": health.nan, "inf": health.inf, "max": health.largest}.get(
                failure.gate, health.sum_sq
            )
            for name, health in rows
        }
        found.append(replace(failure, tensor=max(figures, key=figures.__getitem__, default=None)))
    return found


def group_checkpoints(tree: Mapping[str, TreeEntry]) -> dict[str, dict[str, GitId]]:
    """Return checkpoint → path → blob of its files."""
    groups: dict[str, dict[str, GitId]] = {}
    for path, entry in tree.items():
        if is_checkpoint_name(path):
            groups.setdefault(SHARD.sub(r"-*-of-\1", path), {})[path] = entry.blob
    return groups


def find_health(
    context: Context,
    tree: Mapping[str, TreeEntry],
    earlier: Sequence[GitId],
    *,
    wanted: bool = False,
    known: Mapping[GitId, Health] | None = None,
) -> tuple[CheckpointHealth, ...]:
    """Return the health of the checkpoints in a tree, those that are new first to be named.

    ``earlier`` are as for ``examine``. What is not known is measured if it is small or ``wanted``; ``known``
    is the health of files that are not stored.
    """
    groups = group_checkpoints(tree)
    if not groups:
        return ()
    said: dict[str, CheckpointHealth] = {}
    same: set[str] = set()
    for commit in earlier:
        old = group_checkpoints(context.history.read_tree(commit))
        equal = {name for name, files in groups.items() if old.get(name) == files}
        same |= equal if commit == earlier[0] else set()
        lines = recorded(context, commit) if equal else ()
        said = {line.path: line for line in lines if line.path in equal} | said
    asked = {name: files for name, files in groups.items() if wanted or name not in same}
    asked = {name: files for name, files in asked.items() if name not in said}
    kept = dict(known or {})
    blobs = {blob for files in asked.values() for blob in files.values()}
    kept |= context.kept.find_file_health(blobs - kept.keys())
    for name in sorted(asked)[:MAX_CHECKPOINTS]:
        health = _add_up(context, asked[name], kept, None if wanted else CHEAP_BYTES)
        if health is not None and health.elements:
            said[name] = CheckpointHealth(
                name, health.nan, health.inf, health.largest, health.norm, health.saturated
            )
    chosen = sorted(said, key=lambda name: (name in same, name))[:MAX_CHECKPOINTS]
    return tuple(said[name] for name in sorted(chosen))


def _add_up(
    context: Context,
    files: Mapping[str, GitId],
    kept: Mapping[GitId, Health],
    limit_bytes: int | None,
) -> Health | None:
    total = Health()
    for path in sorted(files):
        health = kept.get(files[path])
        if health is None:
            from mvc.workspace.measuring import measure_file  # noqa: PLC0415  brings NumPy

            health = measure_file(context, files[path], limit_bytes)
        if health is None:
            return None
        total += health
    return total
