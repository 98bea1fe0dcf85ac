"""Git for model parameters: checkpoints in, history, the same bytes out.

    import mvc

    repo = mvc.Repo.init("models")
    repo.add("model.safetensors")
    repo.commit("base model")
    repo.tensor("HEAD", "model.safetensors", "lm_head.weight")

Names are loaded on first use, so ``import mvc`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mvc.checkpoints.state_image import compare_image, outline_image, read_image
    from mvc.checkpoints.state_layout import LayoutPlan, StateLayout, layout_state
    from mvc.checkpoints.state_outline import ArrayOutline
    from mvc.chunkstore.values import WriteCounts
    from mvc.errors import (
        ConflictError,
        CorruptionError,
        FormatError,
        MvcError,
        NotFoundError,
        ReleasedError,
        RepositoryNotFoundError,
        StorageError,
        UnsupportedError,
        UsageError,
    )
    from mvc.history.values import Identity
    from mvc.operations.runs.feed import RunFeed
    from mvc.repo import Repo

_HOMES = {
    "ArrayOutline": "mvc.checkpoints.state_outline",
    "LayoutPlan": "mvc.checkpoints.state_layout",
    "Repo": "mvc.repo",
    "RunFeed": "mvc.operations.runs.feed",
    "WriteCounts": "mvc.chunkstore.values",
    "StateLayout": "mvc.checkpoints.state_layout",
    "compare_image": "mvc.checkpoints.state_image",
    "layout_state": "mvc.checkpoints.state_layout",
    "outline_image": "mvc.checkpoints.state_image",
    "read_image": "mvc.checkpoints.state_image",
    "Identity": "mvc.history.values",
    "MvcError": "mvc.errors",
    "UsageError": "mvc.errors",
    "NotFoundError": "mvc.errors",
    "RepositoryNotFoundError": "mvc.errors",
    "ConflictError": "mvc.errors",
    "FormatError": "mvc.errors",
    "CorruptionError": "mvc.errors",
    "StorageError": "mvc.errors",
    "UnsupportedError": "mvc.errors",
    "ReleasedError": "mvc.errors",
}

__all__ = [
    "ArrayOutline",
    "ConflictError",
    "CorruptionError",
    "FormatError",
    "Identity",
    "LayoutPlan",
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
    "compare_image",
    "layout_state",
    "outline_image",
    "read_image",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'mvc' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
