"""Shards of every format that has records, as small files."""

import io
import json
import tarfile

import numpy as np


def write_jsonl(path, count, packing=None):
    """Write lines of JSON, plain or as packing says."""
    data = b"".join(b'{"text": "line %d"}\n' % one for one in range(count))
    if packing == "gz":
        import gzip

        data = gzip.compress(data)
    elif packing == "zst":
        import zstandard

        half = len(data) // 2
        data = zstandard.compress(data[:half]) + zstandard.compress(data[half:])
    path.write_bytes(data)


def make_tar(samples, *, mode="w", **options):
    """Return a tar file with the members ``name`` → ``content``."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, **options) as tar:
        for name, content in samples:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def make_mds(samples):
    """Return an MDS shard, as mosaicml-streaming writes it."""
    config = json.dumps({"version": 2, "format": "mds"}).encode()
    start = 4 + 4 * (len(samples) + 1) + len(config)
    ends = np.cumsum([start, *map(len, samples)]).astype("<u4")
    return np.uint32(len(samples)).tobytes() + ends.tobytes() + config + b"".join(samples)
