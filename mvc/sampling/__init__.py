"""Which samples a run sees, in which order, and what a commit records of those it saw.

These names are public; the modules they come from are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc.sampling.batches import Ahead as Ahead
    from mvc.sampling.batches import GlobalBatch as GlobalBatch
    from mvc.sampling.batches import draw_batch as draw_batch
    from mvc.sampling.blocks import BlockOrder as BlockOrder
    from mvc.sampling.digest import SampleDigest as SampleDigest
    from mvc.sampling.ids import IdList as IdList
    from mvc.sampling.ledger import DrawnEntry as DrawnEntry
    from mvc.sampling.ledger import PlanEntry as PlanEntry
    from mvc.sampling.ledger import join_ledgers as join_ledgers
    from mvc.sampling.ledger import parse_ledger as parse_ledger
    from mvc.sampling.ledger import pick_drawn as pick_drawn
    from mvc.sampling.plan import Located as Located
    from mvc.sampling.plan import SamplePlan as SamplePlan
    from mvc.sampling.skips import Skips as Skips
    from mvc.sampling.sources import Source as Source
    from mvc.sampling.sources import Stage as Stage
else:  # imported on first use
    __getattr__, __all__ = lazy_names(
        __name__,
        {
            "mvc.sampling.batches": "Ahead GlobalBatch draw_batch",
            "mvc.sampling.blocks": "BlockOrder",
            "mvc.sampling.digest": "SampleDigest",
            "mvc.sampling.ids": "IdList",
            "mvc.sampling.ledger": "DrawnEntry PlanEntry join_ledgers parse_ledger pick_drawn",
            "mvc.sampling.plan": "Located SamplePlan",
            "mvc.sampling.skips": "Skips",
            "mvc.sampling.sources": "Source Stage",
        },
    )
