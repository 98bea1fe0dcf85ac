"""What feeds a run: loaders whose order is computed, pipelines of versioned nodes, and what commits record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc_hooks.data.nodes import file, node
    from mvc_hooks.data.pipeline import read_pipeline
    from mvc_hooks.data.records import NodeRecord

__getattr__ = lazy_names(
    __name__,
    {
        "mvc_hooks.data.nodes": "file node",
        "mvc_hooks.data.pipeline": "read_pipeline",
        "mvc_hooks.data.records": "NodeRecord",
    },
)

__all__ = ["NodeRecord", "file", "node", "read_pipeline"]
