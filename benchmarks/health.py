"""What it costs to measure the health of chunks while they are stored."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.sweep import fresh_folder
from mvc.checkpoints.detect import read_layout
from mvc.chunkstore.store import ChunkStore
from mvc.chunkstore.values import ChunkSpan
from mvc.dtypes import get_dtype
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES, cut_sizes
from mvc.sources import FileSource
from mvc.storage.local import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path


def measure_health(folder: Path, model: Path, rounds: int) -> dict[str, object]:
    """Store a model with and without measuring it, by turns, in processor time of all threads."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * rounds):
        is_measuring = number % 4 in (0, 3)
        found[is_measuring].append(_store(folder, model, is_measuring=is_measuring))
    return {
        "measured_cpu_s": found[True],
        "plain_cpu_s": found[False],
        "ratio": median(found[True]) / median(found[False]),
    }


def _store(folder: Path, model: Path, *, is_measuring: bool) -> float:
    store = fresh_folder(folder / "health")
    with FileSource.open(model) as source:
        spans = [
            ChunkSpan(segment.start + place * DEFAULT_CHUNK_BYTES, size, get_dtype(segment.dtype))
            for segment in read_layout(source, model.name).segments
            for place, size in enumerate(cut_sizes(segment.size_bytes, DEFAULT_CHUNK_BYTES))
        ]
        began = time.process_time()
        with ChunkStore(LocalStorage(store)).writer(measure=is_measuring) as writer:
            writer.add(source, spans)
        seconds = time.process_time() - began
    fresh_folder(store)
    return seconds
