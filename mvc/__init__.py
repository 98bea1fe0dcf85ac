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
    from mvc.repo import Repo
    from mvc.runs.feed import RunFeed
    from mvc.states.image import compare_image, outline_image, read_image
    from mvc.states.layout import LayoutPlan, StateLayout, layout_state
    from mvc.states.outline import ArrayOutline

_HOMES = {
    "ArrayOutline": "mvc.states.outline",
    "LayoutPlan": "mvc.states.layout",
    "Repo": "mvc.repo",
    "RunFeed": "mvc.runs.feed",
    "WriteCounts": "mvc.chunkstore.values",
    "StateLayout": "mvc.states.layout",
    "compare_image": "mvc.states.image",
    "layout_state": "mvc.states.layout",
    "outline_image": "mvc.states.image",
    "read_image": "mvc.states.image",
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
