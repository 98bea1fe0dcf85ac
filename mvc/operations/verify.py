"""verify: is the live state, or a file of the worktree, bit for bit what a commit holds?

Nothing is decoded: the live bytes are cut and hashed where the commit's were, and the ids compared.
A chunk id is the hash of plain bytes that was checked when they were stored and is checked again
whenever they leave the store, so equal ids mean equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.chunkstore.parallel import for_each
from mvc.formats.manifest import cut_sizes
from mvc.ids import hash_chunk
from mvc.states.compare import compare_texts
from mvc.states.image import pair_segments
from mvc.states.outline import check_sizes
from mvc.states.state import STATE_FILE, encode_state
from mvc.workspace.manifests import find_manifest
from mvc.workspace.state_files import TensorSizes, read_state_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mvc.formats.manifest import Manifest, StoredSegment
    from mvc.ids import ChunkId, GitId
    from mvc.states.state import StateFile
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class StateCheck:
    """What a comparison of a live state with a commit found.

    Attributes:
        commit: compared with.
        tensors: how many were compared.
        size_bytes: of all of them.
        differences: a line for each tensor or value that is not the same; empty: bit-exact.
    """

    commit: GitId
    tensors: int
    size_bytes: int
    differences: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Whether every bit is the same."""
        return not self.differences


def verify_state(context: Context, state: Mapping[str, object], revision: str) -> StateCheck:
    """Compare a live state with a commit's, bit by bit.

    Args:
        context: the repository.
        state: nested, as for ``commit_state``; nothing in it is changed or copied as a whole.
        revision: which commit.

    Raises:
        NotFoundError: no such revision, or it holds no state.
        UnsupportedError: a live value that is not data.
        FormatError: the commit lacks something that its state names.
    """
    commit = context.history.resolve(revision)
    text = read_state_text(context, commit, revision)
    tree = context.history.read_tree(commit)
    check_sizes(text, TensorSizes(context, tree))  # else a tensor that is not there is not missed
    live = {file.path: file for file in encode_state(state)}
    differences = compare_texts(text, _read_all(live[STATE_FILE]))
    jobs: list[_Job] = []
    tensors = size_bytes = 0
    for path in sorted(live.keys() - {STATE_FILE}):
        manifest = find_manifest(context, tree[path].blob) if path in tree else None
        if manifest is None:
            continue  # the text has named what is extra
        pairs = list(_pair(manifest, live[path]))
        tensors += len(pairs)
        size_bytes += sum(stored.segment.size_bytes for stored, _ in pairs)
        jobs += _cut(live[path], pairs, manifest.chunk_bytes)
    differences += _find_different(jobs, context.store.threads)
    return StateCheck(commit, tensors, size_bytes, tuple(differences))


@dataclass(frozen=True, slots=True)
class _Job:
    """One chunk to compare."""

    file: StateFile
    tensor: str
    offset: int
    size_bytes: int
    wanted: ChunkId


def _pair(manifest: Manifest, file: StateFile) -> Iterator[tuple[StoredSegment, int]]:
    by_segment = {stored.segment: stored for stored in manifest.segments}
    for old, new in pair_segments(by_segment, file.layout.segments):
        yield by_segment[old], new.start


def _cut(
    file: StateFile, pairs: Iterable[tuple[StoredSegment, int]], chunk_bytes: int
) -> Iterator[_Job]:
    for stored, start in pairs:
        offset, name = start, stored.segment.tensors[0].name
        sizes = cut_sizes(stored.segment.size_bytes, chunk_bytes)
        for size, wanted in zip(sizes, stored.chunks, strict=True):
            yield _Job(file, name, offset, size, wanted)
            offset += size


def _find_different(jobs: list[_Job], threads: int) -> list[str]:
    wrong: dict[tuple[str, str], int] = {}

    def compare(job: _Job, _: None) -> int:
        data = job.file.source.view(job.offset, job.size_bytes)
        if data is None:
            data = memoryview(bytearray(job.size_bytes))
            job.file.source.read_into(job.offset, data)
        if hash_chunk(data) != job.wanted:
            place = (job.file.path, job.tensor)
            wrong[place] = wrong.get(place, 0) + 1
        return job.size_bytes

    for_each(jobs, lambda: None, compare, threads=threads)
    totals: dict[tuple[str, str], int] = {}
    for job in jobs:
        totals[job.file.path, job.tensor] = totals.get((job.file.path, job.tensor), 0) + 1
    return [
        f"tensor {place[1]!r} of {place[0]} differs"
        + (f" in {count} of {totals[place]} chunks" if totals[place] > 1 else "")
        for place, count in sorted(wrong.items())
    ]


def _read_all(file: StateFile) -> bytes:
    data = bytearray(file.layout.size_bytes)
    file.source.read_into(0, memoryview(data))
    return bytes(data)
