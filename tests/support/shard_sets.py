"""Small data sets in several formats, of the sources of Python's own library, and their maps."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mvc.shards import Shard, ShardMap
from support.shard_files import make_tar

_SOURCES = ("bisect.py", "heapq.py", "textwrap.py")


def write_set(folder: Path) -> None:
    """Write shards of JSON lines, Parquet, tar and NumPy to a folder."""
    (folder / "part").mkdir(parents=True)
    for number, name in enumerate(_SOURCES):
        lines = (Path(os.__file__).parent / name).read_text().splitlines()[:40]
        text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
        (folder / f"part/{number}.jsonl").write_text(text)
        np.save(folder / f"{number}.npy", np.arange(60) + number)
    pq.write_table(pa.table({"text": lines}), folder / "table.parquet")
    samples = [(f"{number}.txt", line.encode()) for number, line in enumerate(lines[:3])]
    (folder / "samples.tar").write_bytes(make_tar(samples))


def write_map(folder: Path, path: Path, root: str | None = None) -> ShardMap:
    """Write the map of a folder as it is."""
    shards = []
    for file in folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            name = file.relative_to(folder).as_posix()
            shards.append(Shard(name, len(data), hashlib.sha256(data).digest()))
    found = ShardMap.build(root or os.path.relpath(folder, path.parent), shards)
    path.write_bytes(found.encode())
    return found


def flip(path: Path, at: int) -> None:
    """Flip a bit of a byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
