"""What feeds a run: loaders whose order is computed, pipelines of versioned nodes, and what commits record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc_data.iterables import IterableSource as IterableSource
    from mvc_data.loader import ConsistentDataLoader as ConsistentDataLoader
    from mvc_data.nodes import NodeRecord as NodeRecord
    from mvc_data.nodes import file as file
    from mvc_data.nodes import node as node
    from mvc_data.packing import PackedDataset as PackedDataset
    from mvc_data.packing import cumulative_lengths as cumulative_lengths
    from mvc_data.pipeline import read_pipeline as read_pipeline
    from mvc_data.shards import DataError as DataError
    from mvc_data.shards import Finding as Finding
    from mvc_data.shards import ShardCheck as ShardCheck
    from mvc_data.streams import ShardedStream as ShardedStream
else:  # imported on first use
    __getattr__, __all__ = lazy_names(
        __name__,
        {
            "mvc_data.iterables": "IterableSource",
            "mvc_data.loader": "ConsistentDataLoader",
            "mvc_data.nodes": "NodeRecord file node",
            "mvc_data.packing": "PackedDataset cumulative_lengths",
            "mvc_data.pipeline": "read_pipeline",
            "mvc_data.shards": "DataError Finding ShardCheck",
            "mvc_data.streams": "ShardedStream",
        },
        needs="torch",
    )
