"""Parts of stored tensors: only the chunks that a part meets are read, each of them verified.

All content that is read for a process that has parts of tensors comes through ``read_runs``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mvc.chunkstore.values import ReadRequest
from mvc.formats.manifest import StoredSegment
from mvc.sources import read_bytes
from mvc.workspace.content import LiveChunk, find_different, name_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mvc.numbers.parts import PartRun, TensorPart
    from mvc.sources import ByteSource
    from mvc.workspace.context import Context
    from mvc.workspace.tensors import ModelTensor

Place: TypeAlias = "tuple[str, str]"
"""File and name of a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredRun:
    """A chunk of a stored tensor that a part meets."""

    path: str
    stored: StoredSegment
    run: PartRun


def read_runs(
    context: Context, runs: Sequence[StoredRun], take: Callable[[int, memoryview], None]
) -> None:
    """Read chunks, each once; ``take`` is given the index of a run and its chunk.

    It is called from several threads at once, in any order, and the bytes are valid meanwhile.
    """
    requests = [
        ReadRequest(
            one.stored.chunks[one.run.number],
            one.run.size_bytes,
            index,
            name_run(one.stored.segment, one.path),
        )
        for index, one in enumerate(runs)
    ]
    context.store.read_many(requests, lambda request, plain: take(request.offset, plain))


def read_part(
    context: Context,
    tensor: ModelTensor,
    part: TensorPart,
    runs: Sequence[PartRun],
    target: memoryview,
) -> None:
    """Fill a buffer with a part of a stored tensor, given what it has of each chunk."""
    stored = StoredSegment(tensor.segment, tensor.chunks or ())

    def take(index: int, chunk: memoryview) -> None:
        run = runs[index]
        mine = target[run.part_offset : run.part_offset + run.part_bytes]
        part.take(run, chunk, mine)
        if not run.is_whole:
            context.digests.note((stored.chunks[run.number], part, run), mine)

    read_runs(context, [StoredRun(tensor.path, stored, run) for run in runs], take)


@dataclass(frozen=True, slots=True, eq=False)
class LivePart:
    """A part of a tensor in memory, and the stored tensor it should be a part of."""

    source: ByteSource  # the bytes of the part
    part: TensorPart
    stored: StoredSegment
    chunk_bytes: int
    place: Place


def find_different_parts(
    context: Context, parts: Sequence[LivePart]
) -> tuple[dict[Place, set[int]], Counter[Place]]:
    """Return place → numbers of the chunks that differ, and how many chunks each part meets.

    A chunk that a part has whole is compared by its hash. So is what it has of others if it was read from
    there before; else what is stored is read.
    """
    whole: list[LiveChunk[Place]] = []
    others: list[tuple[LivePart, StoredRun]] = []
    totals: Counter[Place] = Counter()
    for one in parts:
        for run in one.part.cut(one.chunk_bytes):
            totals[one.place] += 1
            if run.is_whole:
                wanted = one.stored.chunks[run.number]
                live = (one.source, run.part_offset, run.size_bytes)
                whole.append(LiveChunk(*live, wanted, one.place, run.number))
                continue
            digest = context.digests.take((one.stored.chunks[run.number], one.part, run))
            if digest is None:
                others.append((one, StoredRun(one.place[0], one.stored, run)))
            else:
                live = (one.source, run.part_offset, run.part_bytes)
                whole.append(LiveChunk(*live, digest, one.place, run.number))
    wrong = find_different(whole, threads=context.store.threads)

    def take(index: int, chunk: memoryview) -> None:
        one, stored = others[index]
        if _differs(one, stored.run, chunk):
            wrong.setdefault(one.place, set()).add(stored.run.number)

    read_runs(context, [stored for _, stored in others], take)
    return wrong, totals


def _differs(one: LivePart, run: PartRun, chunk: memoryview) -> bool:
    wanted = np.empty(run.part_bytes, np.uint8)
    one.part.take(run, chunk, wanted.data)
    live = read_bytes(one.source, run.part_offset, run.part_bytes)
    return not np.array_equal(wanted, np.frombuffer(live, np.uint8))
