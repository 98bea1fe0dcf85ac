"""Streams of shards beside a plain iterable that reads the same files: samples a second, resume.

The plain reader is what people write: an ``IterableDataset`` that gives each worker its own shards
and yields record after record, in a ``DataLoader`` of torch. Ours takes the same files in the order of
a plan, shuffled by blocks, so every worker meets every shard. Both hand over lists, and the same
transform is done to each sample: none, or one that splits the text and looks up each word.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.sweep import fresh_folder
from mvc.sampling import SamplePlan, Source
from mvc_hooks.data.streams import ShardedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SHARDS, RECORDS, WORDS = 8, 4000, 100
BATCH, BLOCK = 64, 4096
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


def measure_streams(folder: Path, rounds: int = 5) -> dict[str, object]:
    """Return, by format, samples a second and seconds to resume at 90 % of a pass."""
    found: dict[str, object] = {}
    for suffix, read in READERS.items():
        place = fresh_folder(folder / "streams" / suffix)
        paths = _write(place, suffix)
        rows: list[dict[str, object]] = []
        for workers in (0, 2):
            for transform in (None, tokenize) if suffix != "npy" else (None,):
                stream = ShardedStream(
                    paths, records=[RECORDS] * SHARDS, shuffle_block=BLOCK, transform=transform
                )
                plain = Plain(paths, read, transform)
                rows.append(_compare(stream, plain, workers, rounds))
        found[suffix] = rows
        fresh_folder(place)
    return found


def _compare(stream: ShardedStream, plain: Plain, workers: int, rounds: int) -> dict[str, object]:
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds):
        theirs.append(_drain(_load(plain, workers)))
        ours.append(_drain(_load_stream(stream, workers, number)))
        stream.close()
    ratio = median(second / first for first, second in zip(ours, theirs, strict=True))
    resumes = [_time_resume(stream, plain, workers) for _ in range(rounds)]
    return {
        "workers": workers,
        "transform": stream._transform is not None,  # noqa: SLF001
        "ours_per_s": len(stream) / median(ours),
        "plain_per_s": len(stream) / median(theirs),
        "ratio": ratio,
        "resume_s": median(one for one, _ in resumes),
        "redraw_s": median(one for _, one in resumes),
    }


def _load(data: Any, workers: int) -> DataLoader[Any]:
    return DataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=list)


def _load_stream(stream: ShardedStream, workers: int, seed: int, start: int = 0) -> DataLoader[Any]:
    source = Source("stream", len(stream), order=stream.order)
    plan = SamplePlan((source,), seed=seed, batch=BATCH)
    indices = plan.locate(np.arange(start, len(stream))).index.tolist()
    batches = [indices[at : at + BATCH] for at in range(0, len(indices), BATCH)]
    return DataLoader(stream, batch_sampler=batches, num_workers=workers, collate_fn=list)


def _drain(loader: DataLoader[Any]) -> float:
    began = time.perf_counter()
    count = sum(len(batch) for batch in loader)
    seconds = time.perf_counter() - began
    assert count == SHARDS * RECORDS
    return seconds


def _time_resume(stream: ShardedStream, plain: Plain, workers: int) -> tuple[float, float]:
    start = SHARDS * RECORDS * 9 // 10
    stream.close()
    began = time.perf_counter()
    next(iter(_load_stream(stream, workers, 0, start)))
    ours = time.perf_counter() - began
    began = time.perf_counter()
    drawn = iter(_load(plain, workers))
    for _ in range(start // BATCH + 1):
        next(drawn)
    return ours, time.perf_counter() - began


def _write(folder: Path, suffix: str) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    words = list(_VOCABULARY)
    paths = []
    for number in range(SHARDS):
        path = str(folder / f"part-{number}.{suffix}")
        picked = rng.integers(0, len(words), (RECORDS, WORDS))
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


if __name__ == "__main__":
    import sys
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(measure_streams(Path(scratch), int(sys.argv[1])), indent=1))
