"""Whether the pipeline of a run is the one that a commit was made with, and the same on all ranks.

A node that differs is refused, by the name of the first ones that changed themselves: what comes after
them differs anyway. A library of another version is told, as for the rest of the environment, and so
is a change of anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from mvc import ConflictError, UsageError, training

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.training import NodeDiff
    from mvc_hooks.ranks.group import Ranks

_MOST = 3
_MOST_LINES = 6
_IN_ENVIRONMENT = frozenset({"torch", "numpy"})
"""Libraries whose versions the record of the environment has."""


def check_resume(
    stored: object, live: Mapping[str, Any], allow: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return lines about how a run's pipeline differs from a commit's, and the nodes that were allowed to.

    Raises:
        ConflictError: a node differs, and no pattern of ``allow`` takes it.
    """
    old = stored.get("pipeline") if isinstance(stored, Mapping) else None
    if not isinstance(old, Mapping):
        return [], []
    changes = training.compare_pipelines(old, live)
    is_new = not any(
        isinstance(value, Mapping) and value.get("is_declared") for value in old.values()
    )
    own = [change for change in changes if change.is_declared and change.is_own and not is_new]
    refused = [change for change in own if not _is_allowed(change.name, allow)]
    if refused:
        names = [f'"data.pipeline.{change.name}"' for change in refused]
        raise ConflictError(
            f"the commit was made with another data pipeline: {_list(refused)}",
            hint=f'nothing was changed; make the pipeline as it was, or pass allow=["pipeline"] or '
            f"allow=[{', '.join(names)}]: the run then goes on with the new one",
        )
    lines = [f"pipeline: {_describe(change)} (allowed)" for change in own]
    lines += [
        f"pipeline: {_describe(change)}"
        for change in changes
        if not change.is_declared and change.is_own
    ]
    return [*lines, *_list_libraries(changes)], [change.name for change in own]


def check_ranks(ranks: Ranks, pipeline: Mapping[str, Any]) -> list[str]:
    """Return lines about how the pipelines of the ranks differ outside of nodes; every rank must call it.

    Raises:
        UsageError: they differ in a node.
    """
    versions = ranks.exchange({name: record["own"] for name, record in pipeline.items()})
    if all(theirs == versions[0] for theirs in versions):
        return []
    lines: list[str] = []
    first, *others = ranks.exchange(dict(pipeline))
    for rank, other in enumerate(others, 1):
        changes = [change for change in training.compare_pipelines(first, other) if change.is_own]
        declared = [change for change in changes if change.is_declared]
        if declared:
            raise UsageError(
                f"rank {rank} has another data pipeline than rank 0: {_list(declared)}",
                hint="make the same nodes on every rank; what differs by rank must not be a parameter of a node",
            )
        # Constants may well be each rank's own.
        changes = [
            replace(change, params=())
            for change in changes
            if change.code or change.status != "modified"
        ]
        lines += [
            f"pipeline: {_describe(change)}, on rank {rank} against rank 0" for change in changes
        ]
    return lines


def _is_allowed(name: str, allow: Sequence[str]) -> bool:
    names = [f"{above}{name}" for above in ("data.pipeline.", "pipeline.")]
    return any(
        fnmatchcase(text, glob)
        for pattern in allow
        for text in names
        for glob in (pattern, f"{pattern}.*")
    )


def _list(changes: Sequence[NodeDiff]) -> str:
    more = [f"and {len(changes) - _MOST} more"] if len(changes) > _MOST else []
    return "; ".join([*map(_describe, changes[:_MOST]), *more])


def _describe(change: NodeDiff) -> str:
    what = f"node {change.name!r}" if change.is_declared else f"the code of {change.name}"
    if change.status != "modified":
        return f"{what} was {change.status}"
    return f"{what} changed ({'; '.join(_list_reasons(change)) or 'a value that it holds'})"


def _list_reasons(change: NodeDiff) -> Iterator[str]:
    for name, old, new in change.params:
        if old is None or new is None:
            yield f"parameter {name} was {'added' if old is None else 'removed'}"
        else:
            yield f"parameter {name} was {old}, is {new}"
    for name, old, _ in change.inputs:
        yield f"input {name} was {'added' if old is None else 'removed'}"
    for name, lines in change.code:
        changed = [line for line in lines if line[:1] in "+-"]
        more = " …" if len(changed) > _MOST_LINES else ""
        shown = f": {' | '.join(changed[:_MOST_LINES])}{more}" if changed else ""
        yield f"code of {name}{shown}"


def _list_libraries(changes: Sequence[NodeDiff]) -> Iterator[str]:
    users_of: dict[tuple[str, str | None, str | None], list[str]] = {}
    for change in changes:
        for library in change.libraries:
            if library[0] not in _IN_ENVIRONMENT and not change.is_own:
                users_of.setdefault(library, []).append(change.name)
    for (name, old, new), users in users_of.items():
        yield f"pipeline: library {name} was {old}, is {new} (used by {', '.join(users)})"
