"""Shard maps: which files a data set is made of, what they hold, and whether they are unchanged.

These names are public; the modules they come from are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.lazy import lazy_names

if TYPE_CHECKING:
    from mvc.shards.checking import MapReport as MapReport
    from mvc.shards.checking import ShardFault as ShardFault
    from mvc.shards.checking import check_shards as check_shards
    from mvc.shards.places import open_place as open_place
    from mvc.shards.records.plain import EMPTY_LINES as EMPTY_LINES
    from mvc.shards.records.plain import count_numbers as count_numbers
    from mvc.shards.records.plain import parse_number_dtype as parse_number_dtype
    from mvc.shards.records.plain import read_mds_head as read_mds_head
    from mvc.shards.records.stream import FileStream as FileStream
    from mvc.shards.records.stream import unpack_file as unpack_file
    from mvc.shards.records.tar import TarSample as TarSample
    from mvc.shards.records.tar import list_tar_samples as list_tar_samples
    from mvc.shards.shard_map import MapChanges as MapChanges
    from mvc.shards.shard_map import Shard as Shard
    from mvc.shards.shard_map import ShardMap as ShardMap
    from mvc.shards.shard_map import compare_maps as compare_maps
else:  # imported on first use
    __getattr__, __all__ = lazy_names(
        __name__,
        {
            "mvc.shards.checking": "MapReport ShardFault check_shards",
            "mvc.shards.places": "open_place",
            "mvc.shards.records.plain": "EMPTY_LINES count_numbers parse_number_dtype read_mds_head",
            "mvc.shards.records.stream": "FileStream unpack_file",
            "mvc.shards.records.tar": "TarSample list_tar_samples",
            "mvc.shards.shard_map": "MapChanges Shard ShardMap compare_maps",
        },
    )
