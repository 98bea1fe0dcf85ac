"""What is wrong with the data of a run, by rank: values, and the words for them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from mvc import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MOST = 20
_HINT = "restore these files, or run `mvc data add` again if they are meant to be as they are"


class DataError(ConflictError):
    """Data that a run reads is not what its shard map says; ``findings`` are all of them."""

    kind = "data"

    def __init__(
        self, message: str, *, hint: str | None = None, findings: Sequence[Finding] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.findings = tuple(findings)


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One way in which data differs from its map.

    Attributes:
        map: name of the map.
        path: of the shard, relative to the root of the map; "" for what is about the whole map.
        kind: ``missing``, ``changed``, ``swapped``, ``stale``, ``extra``, or ``other`` of a map.
        fact: what was found, in words.
        ranks: which ranks found it, or share the folder in which it was found.
    """

    map: str
    path: str
    kind: str
    fact: str
    ranks: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        # A name may hold line breaks, codes of terminals, and what no log file can be written with.
        path = self.path if self.path.isprintable() else repr(self.path)
        what = f"shard {path} of {self.map}" if path else f"map {self.map}"
        return f"{spell_ranks(self.ranks)}: {self.kind} {what}: {self.fact}"


def spell_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in words, runs of them as ranges: ``ranks 0-3, 8``."""
    ordered = sorted(set(ranks))
    runs = []
    for _, pairs in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in pairs]
        runs.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(runs)}"


def join_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order of their paths, with equal ones of several ranks as one."""
    ranks = defaultdict[tuple[str, str, str, str], set[int]](set)
    for one in findings:
        ranks[one.map, one.path, one.kind, one.fact].update(one.ranks)
    return sorted(Finding(*key, tuple(sorted(found))) for key, found in ranks.items())


def refuse_findings(findings: Sequence[Finding]) -> DataError:
    """Return the error that says what was found, the first lines of it."""
    lines = list(map(str, findings[:_MOST]))
    if len(findings) > _MOST:
        lines.append(f"and {len(findings) - _MOST:,} more")
    fact = "the data is not what its shard map says"
    text = f"{fact}: {lines[0]}" if len(lines) == 1 else "\n  ".join([f"{fact}:", *lines])
    return DataError(text, hint=_HINT, findings=findings)
