"""What feeds a run: loaders whose order is computed, pipelines of versioned nodes, and what commits record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc_hooks.data.iterables import IterableSource
    from mvc_hooks.data.nodes import file, node
    from mvc_hooks.data.packing import PackedDataset
    from mvc_hooks.data.pipeline import read_pipeline
    from mvc_hooks.data.records import NodeRecord
    from mvc_hooks.data.streams import ShardedStream

__getattr__ = lazy_names(
    __name__,
    {
        "mvc_hooks.data.iterables": "IterableSource",
        "mvc_hooks.data.nodes": "file node",
        "mvc_hooks.data.packing": "PackedDataset",
        "mvc_hooks.data.pipeline": "read_pipeline",
        "mvc_hooks.data.records": "NodeRecord",
        "mvc_hooks.data.streams": "ShardedStream",
    },
)

__all__ = [
    "IterableSource",
    "NodeRecord",
    "PackedDataset",
    "ShardedStream",
    "file",
    "node",
    "read_pipeline",
]
