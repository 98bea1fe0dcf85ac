"""The same samples written as shards of every format that streams read."""

from __future__ import annotations

import json
import tarfile
from functools import partial
from pathlib import Path

import numpy as np

from support.shard_files import make_mds, make_tar, pack_lines


def make_rows(first, count):
    """Return samples that tell their number."""
    return [
        {"id": number, "text": f"sample {number} " + "x" * (number % 17)}
        for number in range(first, first + count)
    ]


def write_tar(path, rows, kind=tarfile.USTAR_FORMAT):
    samples = []
    for row in rows:
        samples.append((f"part/{row['id']:06}.json", json.dumps(row).encode()))
        samples.append((f"part/{row['id']:06}.txt", row["text"].encode()))
    Path(path).write_bytes(make_tar(samples, format=kind))


def write_parquet(path, rows, group=7):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=group)


def write_arrow(path, rows, is_stream=False):
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=5)


def write_npy(path, rows):
    np.save(path, np.array([[row["id"], len(row["text"])] for row in rows], "i4").reshape(-1, 2))


def write_bin(path, rows):
    np.array([[row["id"], len(row["text"])] for row in rows], np.uint16).tofile(path)


def write_mds(path, rows):
    samples = []
    for row in rows:
        text, number = row["text"].encode(), np.int64(row["id"])
        head = len(text).to_bytes(4, "little") + number.tobytes()
        samples.append(head + text + np.float32(number).tobytes())
    columns = {
        "column_names": ["id", "text", "value"],
        "column_encodings": ["int", "str", "float32"],
        "column_sizes": [8, None, 4],
    }
    Path(path).write_bytes(make_mds(samples, **columns))


WRITERS = {
    "jsonl": lambda path, rows: Path(path).write_bytes(pack_lines(rows)),
    "jsonl.zst": lambda path, rows: Path(path).write_bytes(pack_lines(rows, "zst")),
    "jsonl.gz": lambda path, rows: Path(path).write_bytes(pack_lines(rows, "gz")),
    "tar": write_tar,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "feather": partial(write_arrow, is_stream=True),
    "npy": write_npy,
    "bin": write_bin,
    "mds": write_mds,
}


def write_shards(folder, suffix, sizes):
    """Write shards of so many samples each, numbered through all; return their paths."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths, first = [], 0
    for number, size in enumerate(sizes):
        path = Path(folder, f"part-{number:03}.{suffix}")
        WRITERS[suffix](path, make_rows(first, size))
        paths.append(str(path))
        first += size
    return paths


def read_id(sample):
    """Return the number that a sample of any of the formats tells."""
    if isinstance(sample, np.ndarray):
        return int(sample[0])
    return int(sample["id"]) if "id" in sample else int(sample["__key__"].rpartition("/")[2])
