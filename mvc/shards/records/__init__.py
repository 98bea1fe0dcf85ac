"""How many records a shard has, where its format tells.

A counter reads a ``ShardBytes`` as far as it needs to; what it leaves is read by the stream's owner, who
hashes all of it. So every byte is read once, but for the end of a Parquet file. Counters trust
nothing: they read little at a time, and give up with a FormatError, which means that the number is
not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.shards.records import columns, plain, tar
from mvc.shards.records.stream import PACKINGS, ShardBytes, unpack

if TYPE_CHECKING:
    Counter = Callable[[ShardBytes], int]

_COUNTERS: dict[str, Counter] = {
    "parquet": columns.count_parquet_rows,
    **dict.fromkeys(("arrow", "arrows", "feather"), columns.count_arrow_rows),
    **dict.fromkeys(("jsonl", "ndjson"), plain.count_lines),
    "tar": tar.count_samples,
    "mds": plain.count_mds_samples,
    "npy": plain.count_npy_rows,
}


def find_counter(path: str) -> Counter | None:
    """Return what counts the records of a file of that name, or None if its format does not tell."""
    name = path.rpartition("/")[2].lower()
    if name == "index.json":
        return plain.count_in_mds_index
    if name.endswith(".tgz"):
        name = name.removesuffix("tgz") + "tar.gz"
    stem, _, last = name.rpartition(".")
    if last not in PACKINGS:
        return _COUNTERS.get(last)
    inner = _COUNTERS.get(stem.rpartition(".")[2])
    return inner and (lambda stream: inner(unpack(stream, last)))


def count_records(stream: ShardBytes, path: str) -> int | None:
    """Return how many records a shard has, or None if its format does not tell.

    Raises:
        FormatError: its name says what it is, and it is not.
    """
    counter = find_counter(path)
    if not stream.size_bytes:
        return 0  # whatever it is
    if counter is None:
        return None
    try:
        return counter(stream)
    except (IndexError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise FormatError(f"it cannot be read: {type(error).__name__}") from error
