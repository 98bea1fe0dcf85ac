"""Joins the small packs that commits leave, so that a long history lies in few files.

A commit leaves a pack of what it added. Once many of about the same length are there, they become
one, as the levels of a log-structured store do: each byte is written once more per class of length,
and there are never many packs of a class. What is joined is every record as it is, so nothing has to
know what history needs, and the work of one call is bounded however much lies there.

It is done alone, under the sweep lock, but only if nobody else writes at that moment: a later commit
finds the packs again. New packs are durable before old ones go, and readers look for their chunks
again, as after any sweep. A kill in between leaves some chunks twice; the next call that meets
them keeps one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.formats.pack import TARGET_PACK_BYTES

if TYPE_CHECKING:
    from mvc.chunkstore.listing import PackListing
    from mvc.ids import PackId
    from mvc.workspace.context import Context

GATHER_PACKS = 50
"""So many packs of a class are joined."""
CLASSES_BYTES = ((0, 2**18), (2**18, 2**24))
"""Packs from the first length on, and shorter than the second, are of one class."""


def gather(context: Context) -> None:
    """Join small packs if there are many; ConflictError: somebody else is writing right now."""
    if not find_due(context.list_packs()):
        return
    from mvc.upkeep.sweep import upkeep_lock  # noqa: PLC0415  brings NumPy, needed rarely

    # In this order, so that a gc or repack that begins now waits and does not fail.
    with context.history.sweep_alone(wait=False), upkeep_lock(context):
        context.store.gather(find_due(context.list_packs()))


def find_due(listing: PackListing) -> list[PackId]:
    """Return the packs to join now, oldest first: not much more than fill one pack."""
    for low, high in CLASSES_BYTES:
        packs = {pack: size for pack, size in listing.packs.items() if low <= size < high}
        if len(packs) < GATHER_PACKS and sum(packs.values()) < TARGET_PACK_BYTES:
            continue
        due: list[PackId] = []
        left = TARGET_PACK_BYTES
        for pack in sorted(packs, key=lambda pack: (listing.made_s[pack], pack)):
            if left > 0:
                due.append(pack)
                left -= packs[pack]
        return due
    return []
