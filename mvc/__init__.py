"""Git for model parameters: checkpoints in, history, the same bytes out.

    import mvc

    repo = mvc.Repo.init("models")
    repo.add("model.safetensors")
    repo.commit("base model")
    repo.tensor("HEAD", "model.safetensors", "lm_head.weight")

Names are loaded on first use, so ``import mvc`` costs next to nothing. Those for training data are in
``mvc.sampling`` and ``mvc.shards``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc.chunkstore.nearby import Nearby
    from mvc.chunkstore.values import WriteCounts
    from mvc.errors import (
        ConflictError,
        CorruptionError,
        FormatError,
        GateError,
        MvcError,
        NotFoundError,
        ReleasedError,
        RepositoryNotFoundError,
        StorageError,
        UnsupportedError,
        UsageError,
    )
    from mvc.history.values import Identity
    from mvc.operations.open_state import StoredState
    from mvc.operations.pipeline_diff import NodeDiff, compare_pipelines
    from mvc.repo import Repo, clone, compare, follow, merge_recipe, open_model, verify_models
    from mvc.runs.feed import RunFeed, is_process_alive, this_process
    from mvc.states.image import compare_image, outline_image, read_image
    from mvc.states.layout import LayoutPlan, StateLayout, layout_state
    from mvc.states.outline import ArrayOutline
    from mvc.states.share import Peers, Share
    from mvc.states.spread_tensor import SpreadTensor
    from mvc.workspace.agreement import Agreement, Dispute
    from mvc.workspace.held import HeldChunks
    from mvc.workspace.models import Model
    from mvc.workspace.stored_share import StoredShare, parse_stored_share
    from mvc.workspace.tensors import ModelTensor
    from mvc.workspace.whereabouts import Whereabouts, choose_senders

__getattr__ = lazy_names(
    __name__,
    {
        "mvc.chunkstore.nearby": "Nearby",
        "mvc.chunkstore.values": "WriteCounts",
        "mvc.errors": """
            ConflictError CorruptionError FormatError GateError MvcError NotFoundError
            ReleasedError RepositoryNotFoundError StorageError UnsupportedError UsageError
        """,
        "mvc.history.values": "Identity",
        "mvc.operations.open_state": "StoredState",
        "mvc.operations.pipeline_diff": "NodeDiff compare_pipelines",
        "mvc.repo": "Repo clone compare follow merge_recipe open_model verify_models",
        "mvc.runs.feed": "RunFeed is_process_alive this_process",
        "mvc.states.image": "compare_image outline_image read_image",
        "mvc.states.layout": "LayoutPlan StateLayout layout_state",
        "mvc.states.outline": "ArrayOutline",
        "mvc.states.share": "Peers Share",
        "mvc.states.spread_tensor": "SpreadTensor",
        "mvc.workspace.agreement": "Agreement Dispute",
        "mvc.workspace.held": "HeldChunks",
        "mvc.workspace.models": "Model",
        "mvc.workspace.stored_share": "StoredShare parse_stored_share",
        "mvc.workspace.tensors": "ModelTensor",
        "mvc.workspace.whereabouts": "Whereabouts choose_senders",
    },
)

__all__ = [
    "Agreement",
    "ArrayOutline",
    "ConflictError",
    "CorruptionError",
    "Dispute",
    "FormatError",
    "GateError",
    "HeldChunks",
    "Identity",
    "LayoutPlan",
    "Model",
    "ModelTensor",
    "MvcError",
    "Nearby",
    "NodeDiff",
    "NotFoundError",
    "Peers",
    "ReleasedError",
    "Repo",
    "RepositoryNotFoundError",
    "RunFeed",
    "Share",
    "SpreadTensor",
    "StateLayout",
    "StorageError",
    "StoredShare",
    "StoredState",
    "UnsupportedError",
    "UsageError",
    "Whereabouts",
    "WriteCounts",
    "__version__",
    "choose_senders",
    "clone",
    "compare",
    "compare_image",
    "compare_pipelines",
    "follow",
    "is_process_alive",
    "layout_state",
    "merge_recipe",
    "open_model",
    "outline_image",
    "parse_stored_share",
    "read_image",
    "this_process",
    "verify_models",
]

__version__ = "0.1.0"
