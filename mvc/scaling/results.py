"""What gates said of a run at its sizes: Git notes below ``refs/notes/scale`` on the commit that was judged.

A note has one paragraph per time that gates were asked. Each gate has a line: its name, its answer, what
was measured (``-`` if it was not), the limit, and both in words.

    Scale: failed
    Ranks: 512
    Number: 2
    Time: 2026-11-24T16:00:00Z
    Gate: bits passed 0 0 (0 of 120 checks found a rank that differs)
    Gate: sync failed 0.081 0.05 (P99 of a gradient sync is 0.081 s, at most 0.05 s)

What counts at a size is its latest result; ``Number`` orders those of one second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UsageError
from mvc.scaling.fabric import MAX_RANKS
from mvc.scaling.limits import GATES, GateVerdict
from mvc.workspace.notebook import NoteKind, find_time, one_line, split_paragraphs, time_text

if TYPE_CHECKING:
    from mvc.ids import GitId

SCALE_REF = "refs/notes/scale"
_SCALE = "Scale:"
_WHOLE = re.compile(r"[0-9]{1,9}", re.ASCII)
_LONGEST = len("0.00012345678901234567")
_FIGURE = rf"[-+]?[0-9][0-9.]{{0,{_LONGEST - 1}}}(?:e[-+]?[0-9]{{1,3}})?|nan|inf|-inf"
_GATE = re.compile(
    rf"([a-z]+) (passed|failed|waived|none) ({_FIGURE}|-) ({_FIGURE}) \((.*)\)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """What the gates said of a run at one size.

    Attributes:
        commit: which they judged.
        ranks: of the run.
        verdicts: one per gate.
        time_s: when, in seconds since 1970.
        number: counts all results of a repository.
    """

    commit: GitId
    ranks: int
    verdicts: tuple[GateVerdict, ...]
    time_s: int
    number: int

    @property
    def failed(self) -> tuple[GateVerdict, ...]:
        """The gates that failed."""
        return tuple(verdict for verdict in self.verdicts if verdict.status == "failed")

    @property
    def missing(self) -> tuple[str, ...]:
        """The gates whose answer is not in the note, or cannot be read."""
        known = {verdict.gate for verdict in self.verdicts}
        return tuple(gate for gate in GATES if gate not in known)

    @property
    def ok(self) -> bool:
        """Whether every gate was asked and none failed."""
        return not self.failed and not self.missing

    @property
    def loss(self) -> float | None:
        """The loss at this size."""
        return next((verdict.value for verdict in self.verdicts if verdict.gate == "loss"), None)


def encode_result(result: ScaleResult) -> str:
    """Return the paragraph of a result."""
    lines = [
        f"{_SCALE} {'passed' if result.ok else 'failed'}",
        f"Ranks: {result.ranks}",
        f"Number: {result.number}",
        f"Time: {time_text(result.time_s)}",
    ]
    for verdict in result.verdicts:
        value = "-" if verdict.value is None else repr(float(verdict.value))
        facts = f"{verdict.gate} {verdict.status} {value} {float(verdict.limit)!r}"
        lines.append(f"Gate: {facts} ({one_line(verdict.text)})")
    return "\n".join(lines)


def parse_results(commit: GitId, text: str) -> tuple[ScaleResult, ...]:
    """Return the results in a note, oldest first; paragraphs that make no sense are left out."""
    parts = (part for part in split_paragraphs(text) if part.startswith(_SCALE))
    return tuple(filter(None, (_parse_result(commit, part) for part in parts)))


RESULTS = NoteKind(SCALE_REF, "result of gates", parse_results)


def _parse_result(commit: GitId, paragraph: str) -> ScaleResult | None:
    pairs = [line.partition(": ")[::2] for line in paragraph.split("\n")]
    values = dict(pairs)
    time_s = find_time(values.get("Time", ""))
    counts = [values.get(name, "") for name in ("Ranks", "Number")]
    if time_s is None or not all(map(_WHOLE.fullmatch, counts)):
        return None
    gates = [_GATE.fullmatch(value) for name, value in pairs if name == "Gate"]
    verdicts = tuple(
        GateVerdict(
            match[1],
            match[2],
            None if match[3] == "-" else float(match[3]),
            float(match[4]),
            match[5],
        )
        for match in gates
        if match is not None
    )
    ranks, number = map(int, counts)
    return ScaleResult(commit, ranks, verdicts, time_s, number)


def plan_steps(first: int, last: int) -> tuple[int, ...]:
    """Return the sizes of a run that grows, each at most twice the one before; or UsageError."""
    for ranks in (first, last):
        if not 1 <= ranks <= MAX_RANKS:
            raise UsageError(f"a plan is for 1 to {MAX_RANKS:,} ranks, not {ranks:,}")
    if last < first:
        raise UsageError(f"a plan grows: it cannot go from {first:,} ranks to {last:,}")
    steps = [first]
    while steps[-1] < last:
        steps.append(min(2 * steps[-1], last))
    return tuple(steps)
