"""What a training run, or a writer of its own kind, needs of mvc besides ``Repo``.

States as images in memory, the shares of many ranks, chunks that other processes hold, and the feed of
a run. Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc.chunkstore.nearby import Nearby as Nearby
    from mvc.chunkstore.values import WriteCounts as WriteCounts
    from mvc.operations.commit_state import CommitRequest as CommitRequest
    from mvc.operations.open_state import StoredState as StoredState
    from mvc.operations.pipeline_diff import NodeDiff as NodeDiff
    from mvc.operations.pipeline_diff import compare_pipelines as compare_pipelines
    from mvc.repo.run_store import RunStore as RunStore
    from mvc.runs.feed import RunFeed as RunFeed
    from mvc.runs.feed import is_process_alive as is_process_alive
    from mvc.runs.feed import this_process as this_process
    from mvc.states.encode import SpreadTensor as SpreadTensor
    from mvc.states.layout import LayoutPlan as LayoutPlan
    from mvc.states.layout import StateLayout as StateLayout
    from mvc.states.layout import layout_state as layout_state
    from mvc.states.outline import ArrayOutline as ArrayOutline
    from mvc.states.share import Peers as Peers
    from mvc.states.share import Share as Share
    from mvc.states.state import compare_image as compare_image
    from mvc.states.state import outline_image as outline_image
    from mvc.states.state import read_image as read_image
    from mvc.workspace.held import HeldChunks as HeldChunks
    from mvc.workspace.stored_share import StoredShare as StoredShare
    from mvc.workspace.stored_share import parse_stored_share as parse_stored_share
    from mvc.workspace.trailers import Agreement as Agreement
    from mvc.workspace.trailers import Dispute as Dispute
    from mvc.workspace.whereabouts import Whereabouts as Whereabouts
    from mvc.workspace.whereabouts import choose_senders as choose_senders
else:  # imported on first use
    __getattr__, __all__ = lazy_names(
        __name__,
        {
            "mvc.chunkstore.nearby": "Nearby",
            "mvc.chunkstore.values": "WriteCounts",
            "mvc.operations.commit_state": "CommitRequest",
            "mvc.operations.open_state": "StoredState",
            "mvc.operations.pipeline_diff": "NodeDiff compare_pipelines",
            "mvc.repo.run_store": "RunStore",
            "mvc.runs.feed": "RunFeed is_process_alive this_process",
            "mvc.states.state": "compare_image outline_image read_image",
            "mvc.states.layout": "LayoutPlan StateLayout layout_state",
            "mvc.states.outline": "ArrayOutline",
            "mvc.states.share": "Peers Share",
            "mvc.states.encode": "SpreadTensor",
            "mvc.workspace.trailers": "Agreement Dispute",
            "mvc.workspace.held": "HeldChunks",
            "mvc.workspace.stored_share": "StoredShare parse_stored_share",
            "mvc.workspace.whereabouts": "Whereabouts choose_senders",
        },
    )
