"""What ``mvc doctor --distributed`` found, as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc.cli.output import Output, printable
from mvc.cli.render.profile import short_text
from mvc.cli.render.text import columns, count_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Fields = Mapping[str, Any]

_MOST_MACHINES = 16
_LEVELS = {
    "error": ("does not work:", "red"), "advice": ("slow or risky:", "yellow"),
}  # fmt: skip


def distributed_lines(out: Output, fields: Fields) -> Iterator[str]:
    """Yield machines, the measured link and the advice, each with its reason and source."""
    for name, text in columns([*_rows(fields)], "<<"):
        yield f"{out.style(name, 'bold')}  {text}".rstrip()
    for one in fields["advice"]:
        word, colour = _LEVELS[one["level"]]
        some = len(one["ranks"]) < fields["ranks"]
        where = f"{one['where']}: " if some else ""
        source = out.style(f"({printable(one['source'])})", "dim")
        told = printable(f"{where}{one['text']}; {one['hint']}")
        yield f"{out.style(word, colour, 'bold')} {told} {source}"
    if not fields["advice"]:
        yield out.style("nothing here slows ranks down", "green")


def _rows(fields: Fields) -> Iterator[tuple[str, str]]:
    machines = fields["machines"]
    yield "ranks", f"{fields['ranks']:,} on {count_text(len(machines), 'machine')}"
    for one in machines[:_MOST_MACHINES]:
        yield printable(one["host"]), printable(", ".join(_machine_facts(one)))
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
