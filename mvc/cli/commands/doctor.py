"""Show versions, the file system, and what is slow here."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mvc.cli.errors import NEGATIVE
from mvc.cli.options import JSON, check_alone
from mvc.cli.output import Output, Shown, printable
from mvc.cli.parameters import CommandUsageError, Exit, flag, integer
from mvc.cli.render.text import count_text, fact_lines, short_text, size_text
from mvc.cli.session import open_repo

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mvc.operations.doctor import DoctorReport
    from mvc.operations.sharing import SharingReport

    Fields = Mapping[str, Any]


_MOST_RANKS = 64

_MOST_MACHINES = 16
_LEVELS = {
    "error": ("does not work:", "red"), "advice": ("slow or risky:", "yellow"),
}  # fmt: skip


def doctor(
    shown: Shown = JSON,
    shared: bool = flag(
        "--shared",
        "Test whether several machines can share the folder; run it on all of them at once.",
    ),
    wait: int = integer("--wait SECONDS", "How long --shared waits for others.", default=3),
    distributed: bool = flag(
        "--distributed",
        "Look at how ranks are connected: alone, or in each process of torchrun or srun.",
    ),
    ranks: int | None = integer("--ranks N", "Start N ranks here for --distributed."),
) -> None:
    """Show versions, the repository's file system, and what is slow here or still under way.

    To measure the disk, a file of 64 MiB is written and removed.

    --distributed looks at network interfaces, RDMA, versions and settings instead, and says what to
    change, why, and where that is documented. Under torchrun (-m mvc doctor --distributed) or srun all
    ranks are compared, and latency and bandwidth of an all_reduce are measured; --ranks starts some
    on this machine. No repository is needed. The exit code is 1 if something does not work, but not under
    torchrun.
    """
    check_alone([("--shared", shared), ("--distributed", distributed)])
    if ranks is not None and not distributed:
        raise CommandUsageError("--ranks needs --distributed")
    if distributed:
        _tell_distributed(ranks, shown)
    elif shared:
        sharing = open_repo().upkeep.probe_sharing(wait_s=wait)
        shown.answer(asdict(sharing), _write_sharing, sharing)
        if sharing.problems:
            raise Exit(NEGATIVE)
    else:
        report = open_repo().upkeep.doctor()
        shown.answer(asdict(report), _write_report, report)


def _write_report(out: Output, report: DoctorReport) -> None:
    out.lines(fact_lines(out, _doctor_rows(report)))
    for advice in report.advice:
        out.line(f"{out.style('slow or risky:', 'yellow', 'bold')} {printable(advice)}")
    for verb in report.under_way:
        what = 'a bisection; "mvc bisect reset" ends it'
        what = what if verb == "bisect" else f'a {verb}; "mvc status" shows how to continue'
        out.line(f"{out.style('under way:', 'yellow', 'bold')} {what}")
    if not report.advice:
        out.line(out.style("nothing here is slow", "green"))


def _tell_distributed(ranks: int | None, shown: Shown) -> None:
    """Tell how ranks are connected, in rank 0; the command fails if something does not work."""
    from mvc.cli.training_code import run_doctor

    if ranks is not None and not 1 <= ranks <= _MOST_RANKS:
        raise CommandUsageError(f"--ranks {ranks} is not from 1 to {_MOST_RANKS}")
    if ranks is not None and "RANK" in os.environ:
        raise CommandUsageError(
            "--ranks starts ranks, but this process is one: torchrun has started it"
        )
    found = run_doctor(ranks)
    if found is None:
        return
    shown.answer(found, lambda out: out.lines(distributed_lines(out, found)))
    # torchrun would bury the advice under its own report of a process that failed.
    is_gate = "TORCHELASTIC_RUN_ID" not in os.environ
    if is_gate and any(one["level"] == "error" for one in found["advice"]):
        raise Exit(NEGATIVE)


def _write_sharing(out: Output, report: SharingReport) -> None:
    rows = [
        ("file system", f"{report.filesystem} ({report.options})"),
        ("took part", f"{len(report.members)} processes on {report.machines} machines"),
        *(("", member) for member in report.members),
        ("a new file", f"seen by all within {report.seen_s:.2f} s"),
    ]
    out.lines(fact_lines(out, ((name, printable(text)) for name, text in rows)))
    for trap in report.warnings:
        out.line(f"{out.style('risky:', 'yellow', 'bold')} {printable(trap)}")
    for problem in report.problems:
        out.line(f"{out.style('does not work:', 'red', 'bold')} {printable(problem)}")
    if not report.problems:
        out.line(out.style("locks, renames and new files do what mvc needs", "green"))


def _doctor_rows(report: DoctorReport) -> list[tuple[str, str]]:
    measured = []
    if report.write_bytes_per_s is not None and report.sync_s is not None:
        measured = [
            ("disk", f"{size_text(round(report.write_bytes_per_s))}/s written and synced"),
            ("one sync", f"{report.sync_s * 1e3:.1f} ms"),
        ]
    rows = [
        ("python", report.python),
        *((name, version) for name, version in report.versions.items()),
        ("system", report.system),
        ("cores", f"{report.cores:,}"),
        ("file system", f"{report.filesystem}, {size_text(report.free_bytes)} free"),
        *measured,
        ("hashing", f"{size_text(round(report.hash_bytes_per_s))}/s on one core"),
    ]
    return [(name, printable(text)) for name, text in rows]


def distributed_lines(out: Output, fields: Fields) -> Iterator[str]:
    """Yield machines, the measured link and the advice, each with its reason and source."""
    yield from fact_lines(out, _rank_rows(fields))
    for one in fields["advice"]:
        word, colour = _LEVELS[one["level"]]
        some = len(one["ranks"]) < fields["ranks"]
        where = f"{one['where']}: " if some else ""
        source = out.style(f"({printable(one['source'])})", "dim")
        text = printable(f"{where}{one['text']}; {one['hint']}")
        yield f"{out.style(word, colour, 'bold')} {text} {source}"
    if not fields["advice"]:
        yield out.style("nothing here slows ranks down", "green")


def _rank_rows(fields: Fields) -> Iterator[tuple[str, str]]:
    machines = fields["machines"]
    yield "ranks", f"{fields['ranks']:,} on {count_text(len(machines), 'machine')}"
    for machine in machines[:_MOST_MACHINES]:
        yield printable(machine["host"]), printable(", ".join(_machine_facts(machine)))
    if len(machines) > _MOST_MACHINES:
        yield "", f"{len(machines) - _MOST_MACHINES:,} more machines"
    link = fields["link"]
    if link is not None:
        middle, worst = short_text(link["latency_s"]), short_text(link["latency_p99_s"])
        of = f"all_reduce of {size_text(link['small_bytes'])} over {printable(link['backend'])}"
        yield "latency", f"{middle}, P99 {worst}: {of}"
        speed = size_text(round(link["bus_bytes_per_s"]))
        yield "bandwidth", f"{speed}/s of the bus: all_reduce of {size_text(link['large_bytes'])}"


def _machine_facts(machine: Fields) -> Iterator[str]:
    yield machine["where"]
    yield count_text(machine["gpus"], "GPU")
    if machine["interface"] is not None:
        speed = f", {machine['speed_mbps']:,} Mbit/s" if machine["speed_mbps"] else ""
        yield f"{machine['interface']} (MTU {machine['mtu']}{speed})"
    ports = machine["rdma_ports"]
    yield f"{count_text(ports, 'active RDMA port')}" if ports else "no RDMA"
