"""The extensions of one run: those that it is given, and those that its parts and options need.

The latter are modules that are imported only then, so a run without data, say, imports nothing of ``mvc_data``.
"""

from __future__ import annotations

import contextlib
import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING

from mvc import UsageError
from mvc_hooks.extension import Comparison, Contribution, Extension, Host, StoredCommit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mvc_hooks.parts.part import Entry
    from mvc_hooks.parts.restoring import StateSource
    from mvc_hooks.ranks.group import Ranks

DATA = "data_record"
ENTRIES: Mapping[str, str] = MappingProxyType({DATA: "mvc_data.run"})
"""Names in commits → modules of the extensions that read them; parts name other modules (``Part.extension``)."""


class Extensions:
    """The extensions of a run, in the order in which they are asked.

    Args:
        given: by the user.
        entries: the parts of the run.
        options: those of the checkpointer that only an extension reads.
        has_data: whether the run has data to record, even without loaders.

    Raises:
        UsageError: two have one name, or keep their state under one.
    """

    def __init__(
        self,
        given: Sequence[Extension],
        entries: Sequence[Entry],
        options: Mapping[str, object],
        *,
        has_data: bool,
    ) -> None:
        modules = {entry.part.extension for entry in entries if entry.part.extension}
        if has_data or any(value is not None for value in options.values()):
            modules.add(ENTRIES[DATA])
        made = (_make(module, entries, options) for module in sorted(modules))
        self._all: list[Extension] = [*given, *made]
        names = list(map(_name, self._all))
        entries_taken = [extension.entry for extension in self._all if extension.entry]
        for taken in (names, entries_taken):
            twice = next((name for name in taken if taken.count(name) > 1), None)
            if twice is not None:
                raise UsageError(f"two extensions are called {twice!r}", hint="rename one of them")
        self._host: Host | None = None
        self._opened = contextlib.ExitStack()

    def __iter__(self) -> Iterator[Extension]:
        return iter(self._all)

    def open(self, host: Host) -> None:
        """Open all for a host; every rank must call it."""
        self._host, host.extensions = host, self._all
        with contextlib.ExitStack() as undo:
            for extension in self._all:
                extension.open(host)
                undo.callback(extension.close)
            self._opened = undo.pop_all()

    def close(self) -> None:
        """Close those that were opened."""
        self._opened.close()

    def _add(self, module: str) -> None:
        """Make an extension that a run of one process has had no need for so far."""
        added = _make(module, (), {})
        self._all.append(added)
        if self._host is not None:
            added.open(self._host)
            self._opened.callback(added.close)
            added.begin()

    def _has(self, entry: str) -> bool:
        return any(extension.entry == entry for extension in self._all)

    def add_readers(self, source: StateSource) -> None:
        """Make those that read what a state has."""
        for entry in ENTRIES.keys() & source.outline().keys():
            if not self._has(entry):
                self._add(ENTRIES[entry])

    # What several of them say, as one.

    def saw(self, ids: object, source: str, skipped: str | None) -> None:
        """Have samples recorded that the user names."""
        if not self._has(DATA):
            self._add(ENTRIES[DATA])
        for extension in self._all:
            extension.saw(ids, source, skipped)

    def doubt(self) -> Iterator[str]:
        """Yield lines about what is probably not meant."""
        for extension in self._all:
            yield from extension.doubt()

    def plan_steps(self, total: int) -> int:
        """Return how many steps a run takes that was to take ``total``."""
        for extension in self._all:
            total = extension.plan_steps(total)
        return total

    def capture(self) -> dict[str, object]:
        """Return what they have in a state."""
        states = ((each.entry, each.capture()) for each in self._all if each.entry)
        return {entry: state for entry, state in states if state is not None}

    def describe(self, step: int) -> Contribution:
        """Return what they add to the commit of a step."""
        facts, metrics, seen = dict[str, str](), dict[str, float](), (0, 0)
        for extension in self._all:
            more = extension.describe(step)
            facts |= more.facts
            metrics |= more.metrics
            seen = seen[0] + more.seen[0], seen[1] + more.seen[1]
        return Contribution(facts, metrics, seen)

    def check_commit(self, stored: StoredCommit) -> Comparison:
        """Compare the run with a commit that it is to resume from."""
        self.add_readers(stored.source)
        comparison = Comparison()
        for extension in self._all:
            more = extension.check_commit(stored)
            comparison.changes += more.changes
            comparison.facts |= more.facts
            comparison.doubts += more.doubts
        return comparison


def _make(module: str, entries: Sequence[Entry], options: Mapping[str, object]) -> Extension:
    made: Extension = importlib.import_module(module).make_extension(entries, options)
    return made


def _name(extension: Extension) -> str:
    return extension.name or type(extension).__name__


def check_alike(ranks: Ranks, extensions: Iterable[Extension]) -> None:
    """Check that all ranks have the same extensions, and set alike; every rank must call it.

    Raises:
        UsageError: they do not.
    """
    first, *others = ranks.exchange(
        {_name(extension): extension.agree() for extension in extensions}
    )
    for rank, other in enumerate(others, 1):
        for name in sorted(first.keys() | other.keys()):
            if other.get(name) != first.get(name):
                raise UsageError(
                    f"{name} is {other.get(name)} on rank {rank}, and {first.get(name)} on rank 0",
                    hint="pass the same on every rank",
                )
