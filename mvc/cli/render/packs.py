"""What gc and repack print about packs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.render.text import count_text, size_text

if TYPE_CHECKING:
    from mvc.cli.output import Output
    from mvc.operations.gc import GcPlan, GcResult
    from mvc.operations.repack import RepackPlan, RepackResult


def packs_text(packs: int, size_bytes: int) -> str:
    """Return how many packs there are, and their size."""
    return f"{count_text(packs, 'pack')}, {size_text(size_bytes)}"


def write_freed(
    out: Output, plan: GcPlan | RepackPlan, result: GcResult | RepackResult | None
) -> None:
    """Write how many bytes were freed, or would be, and how many packs had to stay."""
    freed_bytes = plan.freed_bytes if result is None else result.freed_bytes
    verb = "would free about" if result is None else "freed"
    if freed_bytes < 0:
        verb, freed_bytes = "would take" if result is None else "took", -freed_bytes
    out.line(f"{verb} {out.style(size_text(freed_bytes), 'bold')}")
    if result is not None and result.kept_packs:
        packs = count_text(result.kept_packs, "pack")
        out.line(f"{packs} kept: needed by something newer than the plan; run it again")
