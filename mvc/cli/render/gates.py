"""What gates say of a commit, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import Output, pick, printable
from mvc.cli.render.text import count_text, number_text

if TYPE_CHECKING:
    from mvc.operations.gate import GateReport


def write_gates(out: Output, report: GateReport) -> None:
    """Write what fails, or that nothing does."""
    for one in report.failures:
        out.line(f"{out.style('failed', 'red')} {one.gate}: {printable(str(one))}")
    if not report.failures:
        limits = ", ".join(f"{gate} {number_text(limit)}" for gate, limit in report.limits.items())
        judged = count_text(len(report.health), "checkpoint")
        out.line(f"{out.style('passed', 'green')} {limits} ({judged})")


def gate_fields(report: GateReport) -> dict[str, object]:
    """Return the report for ``--json``."""
    return {
        "gates": dict(report.limits),
        "health": [pick(one, "path nan inf largest norm saturated") for one in report.health],
        "failures": [pick(one, "gate value limit path tensor") for one in report.failures],
    }
