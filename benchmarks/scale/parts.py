"""What each part of a commit and of a recovery takes on this machine, measured by calling mvc's own code.

Every part is a list of measured values, and the simulation draws from it: a run of thousands of ranks waits
for its slowest, which no mean shows. What a processor does is measured in its time, so that other work on
this machine does not count; disks, syncs and messages are measured by the clock.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import distributed

from benchmarks.sweep import fresh_folder
from mvc import Identity, Repo
from mvc.chunkstore.store import count_cores
from mvc.dtypes import get_dtype
from mvc.formats.decoding import DecodeScratch, decode_chunk
from mvc.formats.encoding import EncodeScratch, encode_chunk
from mvc.formats.layout import Segment, TensorView
from mvc.formats.manifest import Manifest, StoredSegment
from mvc.formats.manifest_lines import encode_manifest
from mvc.fs import write_durable
from mvc.ids import ChunkId, hash_chunk
from mvc.training import StoredShare, WriteCounts, parse_stored_share

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.children import Runner

CHUNK_BYTES = 4 << 20
_ROOT = Path(__file__).parent.parent.parent
_ME = Identity("Bench", "bench@localhost")
_BATCH = 50
_RENDEZVOUS_S = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Parts:
    """Measured values of each part.

    Attributes:
        copy: seconds per byte of a snapshot: one memcpy by one thread.
        hash, encode, decode: seconds per plain byte on one core.
        stored: stored bytes per plain byte.
        write, read: seconds per byte of a pack, written and synced, and read again, on this disk.
        share: seconds until what a rank has stored is understood by rank 0.
        merge: seconds per chunk until its id is in an encoded manifest.
        ref: seconds of the move of a ref.
        capture, settle: seconds of a commit of 1 MB by a run of two processes: what training waits,
            and from then until it is durable.
        open: seconds until such a run is back at its commit, its writers included.
        start: seconds until a new process has imported torch and the hooks.
        rendezvous: seconds of one request to torch's store, at which all ranks meet.
        cores: of this machine.
    """

    copy: list[float]
    hash: list[float]
    encode: list[float]
    decode: list[float]
    stored: list[float]
    write: list[float]
    read: list[float]
    share: list[float]
    merge: list[float]
    ref: list[float]
    capture: list[float]
    settle: list[float]
    open: list[float]
    start: list[float]
    rendezvous: list[float]
    cores: int

    def as_dict(self) -> dict[str, list[float] | int]:
        """Return it for JSON."""
        return asdict(self)


def measure_parts(runner: Runner, folder: Path, *, is_quick: bool) -> Parts:
    """Measure each part, as often as a distribution needs."""
    rounds = 3 if is_quick else 25
    place = fresh_folder(folder)
    chunks = _draw_chunks(1 if is_quick else 8)
    encoded = [_time_coding(chunk) for chunk in 2 * chunks]
    disk = [_time_disk(place / "pack", (4 if is_quick else 64) << 20) for _ in range(rounds)]
    Repo.init(place / "repo")
    repo = Repo.open(place / "repo", identity=_ME)
    repo.commit("a start", allow_empty=True)
    child = partial(run_child, runner, 2, folder=place / "run", state_mb=1, rounds=min(rounds, 7))
    saved, loaded = child("save"), child("load")
    waits = zip(saved["stall"], saved["durable"], strict=True)
    return Parts(
        copy=_time_copies(rounds, (8 if is_quick else 256) << 20),
        hash=[_work(partial(hash_chunk, chunk)) / CHUNK_BYTES for chunk in 2 * chunks],
        encode=[one[0] / CHUNK_BYTES for one in encoded],
        decode=[one[1] / CHUNK_BYTES for one in encoded],
        stored=[one[2] / CHUNK_BYTES for one in encoded],
        write=[one[0] for one in disk],
        read=[one[1] for one in disk],
        share=_time_shares(rounds),
        merge=[_time_merge(200 if is_quick else 20_000) for _ in range(min(rounds, 5))],
        ref=[_time(lambda: repo.branches.create("moved", force=True)) for _ in range(rounds)],
        capture=saved["stall"],
        settle=[durable_s - stall_s for stall_s, durable_s in waits],
        open=loaded["load"],
        start=[_time_start() for _ in range(1 if is_quick else 3)],
        rendezvous=_time_rendezvous(rounds),
        cores=count_cores(),
    )


def _time(action: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


def _work(action: Callable[[], object]) -> float:
    """Return the processor time of this thread: what else the machine does is not in it."""
    began_s = time.thread_time()
    action()
    return time.thread_time() - began_s


def _draw_chunks(count: int) -> list[memoryview]:
    """Return chunks as weights and AdamW's moments in fp32 are: normal, and squares of it."""
    draw = np.random.default_rng(0)
    words = CHUNK_BYTES // 4
    chunks = []
    for number in range(3 * count):
        values = draw.standard_normal(words, np.float32)
        values *= np.float32((0.02, 1e-4, 1e-4)[number % 3])
        chunks.append(memoryview(values * values if number % 3 == 2 else values).cast("B"))
    return chunks


def _time_coding(chunk: memoryview) -> tuple[float, float, int]:
    """Return seconds to encode and decode a chunk, and its bytes as it is stored."""
    scratch, back = EncodeScratch(), DecodeScratch()
    encode_chunk(chunk, get_dtype("F32"), scratch)  # the memory is fresh
    encode_s = _work(lambda: encode_chunk(chunk, get_dtype("F32"), scratch))
    found = encode_chunk(chunk, get_dtype("F32"), scratch)
    body, plain = memoryview(b"".join(found.parts)), memoryview(bytearray(CHUNK_BYTES))
    decode_chunk(found.encoding, body, plain, back)
    decode_s = _work(lambda: decode_chunk(found.encoding, body, plain, back))
    assert plain == chunk
    return encode_s, decode_s, len(body)


def _time_copies(rounds: int, size_bytes: int) -> list[float]:
    source, target = np.ones(size_bytes, np.uint8), np.ones(size_bytes, np.uint8)
    return [_work(lambda: np.copyto(target, source)) / size_bytes for _ in range(rounds)]


def _time_disk(path: Path, size_bytes: int) -> tuple[float, float]:
    """Return seconds per byte to write and sync a pack, and to read it from the disk again."""
    data, back = np.random.default_rng(1).bytes(size_bytes), bytearray(size_bytes)
    write_s = _time(lambda: write_durable(path, [data]))
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return write_s / size_bytes, _time(lambda: file.readinto(back)) / size_bytes


def _time_shares(rounds: int) -> list[float]:
    ids = np.random.default_rng(2).bytes(32 * 28)  # the chunks of a rank of 10,240
    share = StoredShare(1, bytes(32), CHUNK_BYTES, ids, (), {}, WriteCounts()).encode()
    return [_work(lambda: parse_stored_share(share)) for _ in range(rounds * 10)]


def _time_merge(chunks: int) -> float:
    """Return seconds per chunk of the manifest of a file of large tensors."""
    ids = np.random.default_rng(3).bytes(32 * chunks)
    per_tensor = 50
    size = per_tensor * CHUNK_BYTES

    def merge() -> None:
        found = (ChunkId(ids[at : at + 32]) for at in range(0, len(ids), 32))
        segments = []
        for number in range(chunks // per_tensor):
            name = f"layers.{number}.weight"
            view = TensorView(name, "F32", (per_tensor, CHUNK_BYTES // 4))
            segment = Segment(number * size, size, "F32", (view,))
            segments.append(StoredSegment(segment, tuple(islice(found, per_tensor))))
        encode_manifest(
            Manifest("safetensors", len(segments) * size, CHUNK_BYTES, (), tuple(segments))
        )

    return _work(merge) / chunks


def run_child(
    runner: Runner, size: int, verb: str, *, folder: Path, state_mb: int, rounds: int
) -> dict[str, Any]:
    """Return what a real run of some processes measures of its saves or loads."""
    words = ["mvc", str(folder), str(state_mb), str(rounds)]
    return launch(runner, size, "benchmarks.sharded.child", verb, *words)


def launch(runner: Runner, size: int, module: str, *words: str) -> dict[str, Any]:
    """Return the line of JSON that rank 0 of some processes prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(size), "-m", module, *words]
    printed = runner.output(_ROOT, list(command))
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _time_start() -> float:
    """Return the processor time of a new process until it has imported what a training needs."""
    code = "import torch, mvc_hooks; mvc_hooks.Checkpointer"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _time_rendezvous(batches: int) -> list[float]:
    """Return the processor time of a request, of both sides, which are threads of this process."""
    store = distributed.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=_RENDEZVOUS_S)
    found = []
    for _ in range(batches):
        began_s = time.process_time()
        for one in range(_BATCH):
            store.add(f"rank-{one}", 1)
        found.append((time.process_time() - began_s) / _BATCH)
    return found
