"""The same samples written as shards of every format that streams read."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import zstandard


def make_rows(first, count):
    """Return samples that tell their number."""
    return [
        {"id": number, "text": f"sample {number} " + "x" * (number % 17)}
        for number in range(first, first + count)
    ]


def write_jsonl(path, rows):
    Path(path).write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def write_zst(path, rows):
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    half = len(data) // 2
    pack = zstandard.ZstdCompressor().compress
    Path(path).write_bytes(pack(data[:half]) + pack(data[half:]))


def write_gz(path, rows):
    Path(path).write_bytes(
        gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    )


def write_tar(path, rows, kind=tarfile.USTAR_FORMAT):
    with tarfile.open(path, "w", format=kind) as tar:
        for row in rows:
            for extension, data in (
                ("json", json.dumps(row).encode()),
                ("txt", row["text"].encode()),
            ):
                info = tarfile.TarInfo(f"part/{row['id']:06}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


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


def write_arrow_stream(path, rows):
    write_arrow(path, rows, is_stream=True)


def write_npy(path, rows):
    np.save(
        path, np.array([[row["id"], len(row["text"])] for row in rows], np.int32).reshape(-1, 2)
    )


def write_bin(path, rows):
    np.array([[row["id"], len(row["text"])] for row in rows], np.uint16).tofile(path)


def write_mds(path, rows):
    settings = {
        "column_names": ["id", "text", "value"],
        "column_encodings": ["int", "str", "float32"],
        "column_sizes": [8, None, 4],
        "format": "mds",
        "version": 2,
    }
    samples = []
    for row in rows:
        text = row["text"].encode()
        head = len(text).to_bytes(4, "little")
        samples.append(
            head + np.int64(row["id"]).tobytes() + text + np.float32(row["id"]).tobytes()
        )
    told = json.dumps(settings).encode()
    start = 4 * (len(rows) + 2) + len(told)
    offsets = start + np.cumsum([0, *map(len, samples)])
    head = np.uint32(len(rows)).tobytes() + offsets.astype("<u4").tobytes()
    Path(path).write_bytes(head + told + b"".join(samples))


WRITERS = {
    "jsonl": write_jsonl,
    "jsonl.zst": write_zst,
    "jsonl.gz": write_gz,
    "tar": write_tar,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "feather": write_arrow_stream,
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
