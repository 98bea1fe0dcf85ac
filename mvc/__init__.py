"""Git for model parameters: checkpoints in, history, the same bytes out.

    import mvc

    repo = mvc.Repo.init("models")
    repo.add("model.safetensors")
    repo.commit("base model")
    repo.tensor("HEAD", "model.safetensors", "lm_head.weight")

Names are loaded on first use, so ``import mvc`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
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
    from mvc.repo import Repo, clone, compare, follow, merge_recipe, open_model, verify_models
    from mvc.runs.feed import RunFeed, is_process_alive, this_process
    from mvc.states.image import compare_image, outline_image, read_image
    from mvc.states.layout import LayoutPlan, StateLayout, layout_state
    from mvc.states.outline import ArrayOutline
    from mvc.workspace.models import Model
    from mvc.workspace.tensors import ModelTensor

__getattr__ = lazy_names(
    __name__,
    {
        "mvc.chunkstore.values": "WriteCounts",
        "mvc.errors": """
            ConflictError CorruptionError FormatError GateError MvcError NotFoundError
            ReleasedError RepositoryNotFoundError StorageError UnsupportedError UsageError
        """,
        "mvc.history.values": "Identity",
        "mvc.repo": "Repo clone compare follow merge_recipe open_model verify_models",
        "mvc.runs.feed": "RunFeed is_process_alive this_process",
        "mvc.states.image": "compare_image outline_image read_image",
        "mvc.states.layout": "LayoutPlan StateLayout layout_state",
        "mvc.states.outline": "ArrayOutline",
        "mvc.workspace.models": "Model",
        "mvc.workspace.tensors": "ModelTensor",
    },
)

__all__ = [
    "ArrayOutline",
    "ConflictError",
    "CorruptionError",
    "FormatError",
    "GateError",
    "Identity",
    "LayoutPlan",
    "Model",
    "ModelTensor",
    "MvcError",
    "NotFoundError",
    "ReleasedError",
    "Repo",
    "RepositoryNotFoundError",
    "RunFeed",
    "StateLayout",
    "StorageError",
    "UnsupportedError",
    "UsageError",
    "WriteCounts",
    "__version__",
    "clone",
    "compare",
    "compare_image",
    "follow",
    "is_process_alive",
    "layout_state",
    "merge_recipe",
    "open_model",
    "outline_image",
    "read_image",
    "this_process",
    "verify_models",
]

__version__ = "0.1.0"
