"""Streams of shards beside a plain iterable that reads the same files: samples a second, resume.

The plain reader is what people write: an ``IterableDataset`` that gives each worker its own shards
and yields record after record, in a ``DataLoader`` of torch. Ours takes the same files in the order of
a plan, shuffled by blocks, so every worker meets every shard. Both hand over lists, and the same
transform is done to each sample: none, or one that splits the text and looks up each word. Whole passes
are timed, from making the loader on: opening shards, shuffling and starting workers are part of them.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.passes import BATCH, OURS, PLAIN, measure_passes, take_turns, time_first
from benchmarks.sweep import fresh_folder
from mvc_data import ConsistentDataLoader, ShardedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SHARDS, RECORDS, WORDS = 8, 4000, 100
BLOCK = 4096
_VOCABULARY = {f"word{number}": number for number in range(1000)}


def tokenize(sample: Any) -> list[int]:
    """Do as much for a sample as a cheap tokenizer."""
    text = sample["text"] if "text" in sample else sample["txt"].decode()
    return [_VOCABULARY[word] for word in text.split()]


class Plain(IterableDataset[Any]):
    """Records of files, of which each worker has its own."""

    def __init__(
        self,
        paths: list[str],
        read: Callable[[str], Iterator[Any]],
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self.paths, self.read, self.transform = paths, read, transform

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        own = self.paths if worker is None else self.paths[worker.id :: worker.num_workers]
        for path in own:
            records = self.read(path)
            yield from records if self.transform is None else map(self.transform, records)


def read_jsonl(path: str) -> Iterator[Any]:
    with open(path, "rb") as file:
        yield from map(json.loads, file)


def read_zst(path: str) -> Iterator[Any]:
    with open(path, "rb") as file:
        unpacked = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        yield from map(json.loads, io.BufferedReader(unpacked))


def read_tar(path: str) -> Iterator[Any]:
    with tarfile.open(path, "r|") as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            yield {"__key__": member.name.partition(".")[0], "txt": file.read()}


def read_parquet(path: str) -> Iterator[Any]:
    from pyarrow import parquet  # noqa: PLC0415

    file = parquet.ParquetFile(path)
    for group in range(file.num_row_groups):
        yield from file.read_row_group(group).to_pylist()


def read_npy(path: str) -> Iterator[Any]:
    yield from np.load(path, mmap_mode="r")


READERS = {
    "jsonl": read_jsonl,
    "jsonl.zst": read_zst,
    "tar": read_tar,
    "parquet": read_parquet,
    "npy": read_npy,
}


def measure_streams(
    folder: Path, *, rounds: int, records: int = RECORDS, formats: Sequence[str] = tuple(READERS)
) -> list[dict[str, Any]]:
    """Return, by format, transform and workers, whole passes; for two workers resumes, too."""
    rows: list[dict[str, Any]] = []
    for suffix in formats:
        place = fresh_folder(folder / "loader" / suffix)
        paths = _write(place, suffix, records)
        for transform in (None, tokenize) if suffix != "npy" else (None,):
            for workers in (0, 2):
                files = Files(suffix, tuple(paths), records, transform, workers)
                rows.append(_compare(files, rounds))
        fresh_folder(place)
    return rows


@dataclass(frozen=True, slots=True)
class Files:
    """Shards of one format, and how they are loaded."""

    suffix: str
    paths: tuple[str, ...]
    records: int
    transform: Callable[[Any], Any] | None
    workers: int

    def __len__(self) -> int:
        return len(self.paths) * self.records

    def load(self) -> DataLoader[Any]:
        """Return a plain loader."""
        plain = Plain(list(self.paths), READERS[self.suffix], self.transform)
        return DataLoader(plain, batch_size=BATCH, num_workers=self.workers, collate_fn=list)

    def load_stream(self) -> ConsistentDataLoader:
        """Return a loader of a stream, which shuffles by blocks."""
        stream = ShardedStream(
            self.paths,
            records=[self.records] * len(self.paths),
            shuffle_block=BLOCK,
            transform=self.transform,
        )
        return ConsistentDataLoader(stream, BATCH, num_workers=self.workers, collate_fn=list)


def _compare(files: Files, rounds: int) -> dict[str, Any]:
    ways = {OURS: files.load_stream, PLAIN: files.load}
    row = {
        "name": files.suffix + (", tokenized" if files.transform else ""),
        "workers": files.workers,
        **measure_passes(ways, len(files), rounds),
    }
    if not files.workers or files.transform:
        return row
    batches = len(files) * 9 // 10 // BATCH
    state = files.load_stream().state_dict()
    state |= {"cursor": batches * BATCH, "batches_drawn": batches}
    resumes = {
        OURS: partial(time_first, files.load_stream, state=state),
        PLAIN: partial(time_first, files.load, drop=batches),
    }
    return row | {"resume_s": take_turns(resumes, rounds)}


def _write(folder: Path, suffix: str, records: int) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    words = list(_VOCABULARY)
    paths = []
    for number in range(SHARDS):
        path = str(folder / f"part-{number}.{suffix}")
        picked = rng.integers(0, len(words), (records, WORDS))
        rows = [
            {"id": at, "text": " ".join(words[one] for one in row)} for at, row in enumerate(picked)
        ]
        _write_rows(path, suffix, rows, picked)
        paths.append(path)
    return paths


def _write_rows(path: str, suffix: str, rows: list[dict[str, Any]], picked: Any) -> None:
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    if suffix == "npy":
        np.save(path, picked.astype(np.uint16))
    elif suffix == "parquet":
        import pyarrow as pa  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415

        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=1000)
    elif suffix == "tar":
        with tarfile.open(path, "w") as tar:
            for row in rows:
                info = tarfile.TarInfo(f"{row['id']:06}.txt")
                info.size = len(row["text"])
                tar.addfile(info, io.BytesIO(row["text"].encode()))
    else:
        data = zstandard.ZstdCompressor().compress(lines) if suffix.endswith("zst") else lines
        with open(path, "wb") as file:
            file.write(data)
            os.fsync(file.fileno())
