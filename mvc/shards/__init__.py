"""Shard maps: which files a data set is made of, what they hold, and whether they are unchanged.

These names are public; the modules they come from are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc.shards.changes import MapChanges as MapChanges
    from mvc.shards.changes import compare_maps as compare_maps
    from mvc.shards.checking import MapReport as MapReport
    from mvc.shards.checking import ShardFault as ShardFault
    from mvc.shards.checking import check_shards as check_shards
    from mvc.shards.places import open_place as open_place
    from mvc.shards.records.compressed import unpack_file as unpack_file
    from mvc.shards.records.mds import read_mds_head as read_mds_head
    from mvc.shards.records.stream import FileStream as FileStream
    from mvc.shards.records.tar import TarSample as TarSample
    from mvc.shards.records.tar import list_tar_samples as list_tar_samples
    from mvc.shards.shard_map import Shard as Shard
    from mvc.shards.shard_map import ShardMap as ShardMap
else:  # imported on first use
    __getattr__, __all__ = lazy_names(
        __name__,
        {
            "mvc.shards.changes": "MapChanges compare_maps",
            "mvc.shards.checking": "MapReport ShardFault check_shards",
            "mvc.shards.places": "open_place",
            "mvc.shards.records.compressed": "unpack_file",
            "mvc.shards.records.mds": "read_mds_head",
            "mvc.shards.records.stream": "FileStream",
            "mvc.shards.records.tar": "TarSample list_tar_samples",
            "mvc.shards.shard_map": "Shard ShardMap",
        },
    )
