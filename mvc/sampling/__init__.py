"""Which samples a run sees, in which order, and what a commit records of those it saw.

These names are public; the modules they come from are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc.sampling.batches import Ahead, Batch, draw_batch
    from mvc.sampling.blocks import BlockOrder
    from mvc.sampling.digest import SampleDigest
    from mvc.sampling.ids import IdList
    from mvc.sampling.ledger import DrawnEntry, PlanEntry, join_ledgers, parse_ledger, pick_drawn
    from mvc.sampling.plan import Located, SamplePlan, Source, Stage
    from mvc.sampling.skips import Skips

__getattr__ = lazy_names(
    __name__,
    {
        "mvc.sampling.batches": "Ahead Batch draw_batch",
        "mvc.sampling.blocks": "BlockOrder",
        "mvc.sampling.digest": "SampleDigest",
        "mvc.sampling.ids": "IdList",
        "mvc.sampling.ledger": "DrawnEntry PlanEntry join_ledgers parse_ledger pick_drawn",
        "mvc.sampling.plan": "Located SamplePlan Source Stage",
        "mvc.sampling.skips": "Skips",
    },
)

__all__ = [
    "Ahead",
    "Batch",
    "BlockOrder",
    "DrawnEntry",
    "IdList",
    "Located",
    "PlanEntry",
    "SampleDigest",
    "SamplePlan",
    "Skips",
    "Source",
    "Stage",
    "draw_batch",
    "join_ledgers",
    "parse_ledger",
    "pick_drawn",
]
