"""What gc and repack have in common to say."""

from __future__ import annotations

from mvc.cli.output import Output
from mvc.cli.render.text import count_text, size_text


def packs_text(packs: int, size_bytes: int) -> str:
    """Return how many packs there are, and their size."""
    return f"{count_text(packs, 'pack')}, {size_text(size_bytes)}"


def write_freed(out: Output, freed_bytes: int, is_plan: bool) -> None:
    """Write how many bytes were freed, or would be."""
    what = "would free about" if is_plan else "freed"
    if freed_bytes < 0:
        what, freed_bytes = "would take" if is_plan else "took", -freed_bytes
    out.line(f"{what} {out.style(size_text(freed_bytes), 'bold')}")


def write_kept(out: Output, kept_packs: int) -> None:
    """Write how many packs had to stay."""
    if kept_packs:
        packs = count_text(kept_packs, "pack")
        out.line(f"{packs} stayed: something needs them since the plan was made; run it again")
