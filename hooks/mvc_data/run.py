"""What data adds to a run: its pipeline and its shards are checked, and commits record which samples were seen.

A node that differs is refused, by the name of the first ones that changed themselves: what comes after
them differs anyway. A library of another version is told, as for the rest of the environment, and so
is a change of anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from mvc import ConflictError, UsageError, training
from mvc_data.guard import DataGuard
from mvc_data.record import DataRecord
from mvc_data.shards import as_checks, find_checks, find_other_maps, list_texts, refuse_maps
from mvc_hooks.extension import Comparison, Contribution, Extension, Host, Origin, StoredCommit
from mvc_hooks.parts.data import DataPart
from mvc_hooks.reports import spell_size
from mvc_hooks.run.extensions import DATA

if TYPE_CHECKING:
    from mvc.training import NodeDiff
    from mvc_hooks.parts.part import Entry
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


_IN_A_REPLAY = "bring back the shards, and the map, that the commit saw"


class DataRun(Extension):
    """The data of a run; every rank of several has one, even without loaders."""

    name = "data"
    entry = DATA

    def __init__(self, entries: Sequence[Entry], options: Mapping[str, object]) -> None:
        """Take the loaders among the parts; ``pipeline`` and ``shards`` are options of a checkpointer."""
        self._parts = {
            ".".join(map(str, entry.path)): entry.part
            for entry in entries
            if isinstance(entry.part, DataPart)
        }
        self._pipeline = options.get("pipeline")
        loaders = [part.loader for part in self._parts.values()]
        self._checks = find_checks(loaders) | as_checks(options.get("shards"))
        self._guard: DataGuard | None = None
        self._doubts: list[str] = []

    def open(self, host: Host) -> None:
        """Read the nodes of the pipeline, which must be the same on all ranks, and watch the loaders."""
        self._host, self._record = host, DataRecord(host.ranks)
        self._record.pipeline = host.ranks.together(self._read_pipeline)
        self._doubts += check_ranks(host.ranks, self._record.pipeline)
        for part in self._parts.values():
            part.on_drawn = partial(self._record.note_drawn, part.name)
            part.on_taken = partial(self._record.follow, part.name)
            part.tell_taken()

    def _read_pipeline(self) -> dict[str, dict[str, Any]]:
        if not self._parts and self._pipeline is None:
            return {}
        from mvc_data.pipeline import read_run  # noqa: PLC0415  ranks without loaders need none of it

        loaders = {name: part.loader for name, part in self._parts.items()}
        return read_run(loaders, self._pipeline)

    def begin(self) -> None:
        """Check the data before the first step."""
        host = self._host
        self._guard = guard = DataGuard(self._checks, host.ranks, host.repo)
        guard.check()
        for name, shards in guard.maps.items():
            count = len(shards.shards)
            known = "" if shards.records is None else f"{shards.records:,} records, "
            host.log.announce(
                "data: %s, %d shard%s, %s, %s%s on %d rank%s in %.1f s",
                *(name, count, "s"[: count != 1], spell_size(shards.size_bytes), known),
                "each checked when it is opened," if guard.is_lazy else "checked",
                *(host.ranks.size, "s"[: host.ranks.size != 1], guard.seconds),
            )
        if not guard.is_watching and host.ranks.is_first:
            text = "the system does not tell which shards are opened: all are hashed, one by one"
            host.log.doubt([text])
        self._record.shards = {name: shards.tree for name, shards in guard.maps.items()}

    def start(self) -> None:
        """Have the first commit of this process hold the maps that the one before it lacks."""
        self._host.ranks.on_first(self._tell_maps)

    def _tell_maps(self) -> None:
        if self._guard is not None:
            texts, doubts = list_texts(self._host.repo, self._host.tip, self._guard.maps)
            self._host.texts |= texts
            self._host.log.doubt(doubts)

    def close(self) -> None:
        """End the processes of lazy checks."""
        if self._guard is not None:
            self._guard.close()

    # The steps.

    def doubt(self) -> list[str]:
        """Say how the ranks' pipelines differ, and of which loaders samples cannot be recorded."""
        lines, self._doubts = self._doubts, []
        return [*lines, *self._record.doubt()]

    def saw(self, ids: object, source: str, skipped: str | None) -> None:
        """Record samples that the user names."""
        self._record.saw(source, ids, skipped)

    # Commits.

    def settle(self) -> None:
        """Wait for the check of all shards that were opened so far."""
        if self._guard is not None:
            self._guard.settle()

    def capture(self) -> dict[str, Any] | None:
        """Return what was seen, by which pipeline, of which shards."""
        return self._record.capture()

    def describe(self, step: int) -> Contribution:
        """Name the shard maps, and add what was seen to that of the other ranks."""
        facts, seen = self._record.note_commit(step)
        return Contribution(facts, seen=seen)

    def note_durable(self, step: int) -> None:
        """List no id again that this commit has."""
        self._record.note_durable(step)

    # Where the run goes.

    def check_commit(self, stored: StoredCommit) -> Comparison:
        """Refuse a commit of other shards or another pipeline, unless that is allowed."""
        maps = {} if self._guard is None else self._guard.maps
        others = find_other_maps(self._host.repo, stored.commit, stored.source, maps)
        hint = _IN_A_REPLAY if stored.is_replay else None
        refuse_maps(others, stored.allow, hint=hint)
        comparison = Comparison([other.as_change() for other in others])
        if not stored.is_replay:
            entry, pipeline = stored.source.outline().get(DATA), self._record.pipeline
            comparison.doubts, nodes = check_resume(entry, pipeline, stored.allow)
            comparison.facts = {"new_nodes": ", ".join(nodes)} if nodes else {}
        return comparison

    def restore(self, state: Any, origin: Origin) -> None:
        """Go back to what a state has seen."""
        self._record.restore(
            state,
            ranks=origin.ranks,
            read_own=origin.read_own,
            is_durable=origin.is_commit,
            passes_on=origin.leaves_data,
        )

    def after_rollback(self) -> None:
        """Have the next commit hold the maps, and check again what has changed on disk."""
        self._host.ranks.on_first(self._tell_maps)
        if self._guard is not None:
            self._guard.check_again()

    def compare(self, state: Any) -> list[str]:
        """Say of which loaders other samples were seen."""
        return self._record.compare(state)


make_extension = DataRun
