"""What feeds a run: loaders whose order is computed, pipelines of versioned nodes, and what commits record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc_data.findings import DataError, Finding
    from mvc_data.iterables import IterableSource
    from mvc_data.loader import ConsistentDataLoader
    from mvc_data.nodes import file, node
    from mvc_data.packing import PackedDataset
    from mvc_data.pipeline import read_pipeline
    from mvc_data.records import NodeRecord
    from mvc_data.shards import ShardCheck
    from mvc_data.streams import ShardedStream

__getattr__, _ = lazy_names(
    __name__,
    {
        "mvc_data.findings": "DataError Finding",
        "mvc_data.iterables": "IterableSource",
        "mvc_data.loader": "ConsistentDataLoader",
        "mvc_data.nodes": "file node",
        "mvc_data.packing": "PackedDataset",
        "mvc_data.pipeline": "read_pipeline",
        "mvc_data.records": "NodeRecord",
        "mvc_data.shards": "ShardCheck",
        "mvc_data.streams": "ShardedStream",
    },
    needs="torch",
)

__all__ = [
    "ConsistentDataLoader",
    "DataError",
    "Finding",
    "IterableSource",
    "NodeRecord",
    "PackedDataset",
    "ShardCheck",
    "ShardedStream",
    "file",
    "node",
    "read_pipeline",
]
