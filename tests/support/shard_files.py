"""Shards of every format that has records, as small files."""

import gzip
import io
import json
import tarfile

import numpy as np
import zstandard


def write_jsonl(path, count, packing=None):
    """Write lines of JSON, plain or as packing says."""
    path.write_bytes(pack_lines(({"text": f"line {number}"} for number in range(count)), packing))


def pack_lines(rows, packing=None):
    """Return rows as lines of JSON: plain, ``gz``, or ``zst`` in two frames."""
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    if packing == "gz":
        return gzip.compress(data)
    if packing == "zst":
        half = len(data) // 2
        return zstandard.compress(data[:half]) + zstandard.compress(data[half:])
    return data


def make_tar(samples, *, mode="w", **options):
    """Return a tar file with the members ``name`` → ``content``."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, **options) as tar:
        for name, content in samples:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def make_mds(samples, **settings):
    """Return an MDS shard, as mosaicml-streaming writes it."""
    config = json.dumps({"version": 2, "format": "mds", **settings}).encode()
    start = 4 + 4 * (len(samples) + 1) + len(config)
    ends = np.cumsum([start, *map(len, samples)]).astype("<u4")
    return np.uint32(len(samples)).tobytes() + ends.tobytes() + config + b"".join(samples)
