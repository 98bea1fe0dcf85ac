"""Histories that would take days to make for real: ``python -m benchmarks.synthetic KIND FOLDER N``.

Kinds: ``wide`` makes three commits (``a``, ``b``, ``c``) of one checkpoint with N tensors and 7.5
chunks each, of which ``b`` changes every tenth and ``c`` all; ``long`` makes N commits of a
checkpoint of 129 tensors, each with a step, a metric and another manifest; ``blamed`` makes N of 300
tensors, of which a tenth changes each time. The chunks themselves do not exist: nothing measured here may read one, and if it tried, it would fail.

A process of its own, because it turns fsync off: the histories are made once and thrown away.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mvc.formats.layout import single_tensor
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES, Manifest, StoredSegment
from mvc.formats.manifest_lines import encode_manifest
from mvc.history.values import MODE_FILE, Identity, Stamp, TreeEntry
from mvc.ids import ChunkId
from mvc.workspace import context as contexts

if TYPE_CHECKING:
    from mvc.history.git import GitHistory
    from mvc.ids import GitId

_WHO = Identity("Bench", "bench@localhost")
_START_S = 1_700_000_000
_HEADER_BYTES = 4096


def make_chunks(rng: np.random.Generator, counts: list[int]) -> list[tuple[ChunkId, ...]]:
    """Return random chunk ids, so many for each tensor."""
    return [tuple(ChunkId(rng.bytes(32)) for _ in range(count)) for count in counts]


def make_manifest(chunks: list[tuple[ChunkId, ...]], rng: np.random.Generator) -> bytes:
    """Return the manifest of a safetensors file whose tensors have these chunks."""
    at, segments = _HEADER_BYTES, []
    for number, ids in enumerate(chunks):
        elements = len(ids) * DEFAULT_CHUNK_BYTES // 2
        name = f"model.layers.{number // 10}.block.{number % 10}.weight"
        segment = single_tensor(name, "BF16", (elements // 1024, 1024), at)
        segments.append(StoredSegment(segment, ids))
        at = segment.end
    gaps = (ChunkId(rng.bytes(32)),)
    return encode_manifest(Manifest("safetensors", at, DEFAULT_CHUNK_BYTES, gaps, tuple(segments)))


def commit(
    history: GitHistory, manifest: bytes, message: str, parent: GitId | None, n: int
) -> GitId:
    """Write one commit of one file; no ref moves."""
    blob = history.write_blob(manifest)
    tree = history.write_tree({"model.safetensors": TreeEntry(MODE_FILE, blob)})
    return history.write_commit(
        tree=tree,
        parents=() if parent is None else (parent,),
        message=message,
        author=Stamp(_WHO, _START_S + 60 * n, 0),
    )


def make_wide(history: GitHistory, tensors: int) -> None:
    """Three versions of a file with very many tensors, as branches a, b and c."""
    rng = np.random.default_rng(1)
    counts = [7 + number % 2 for number in range(tensors)]
    first = make_chunks(rng, counts)
    other = make_chunks(rng, counts)
    some = [other[n] if n % 10 == 0 else first[n] for n in range(tensors)]
    parent: GitId | None = None
    for name, chunks in (("a", first), ("b", some), ("c", other)):
        parent = commit(history, make_manifest(chunks, np.random.default_rng(2)), name, parent, 0)
        history.update_ref(
            f"refs/heads/{name}", parent, expected=None, message="made", stamp=Stamp.now(_WHO)
        )


def make_long(history: GitHistory, commits: int, tensors: int = 129, changed: int = 1) -> None:
    """A training run: one commit after the other on main."""
    rng = np.random.default_rng(1)
    chunks = make_chunks(rng, [2] * tensors)
    parent: GitId | None = None
    for number in range(commits):
        for place in range(changed):
            chunks[(number * changed + place) % tensors] = make_chunks(rng, [2])[0]
        message = f"step {number}\n\nStep: {number}\nMetric: loss={3 - number / commits:.4f}\n"
        parent = commit(
            history, make_manifest(chunks, np.random.default_rng(2)), message, parent, number
        )
    assert parent is not None
    history.update_ref(
        "refs/heads/main", parent, expected=None, message="made", stamp=Stamp.now(_WHO)
    )


def make_blamed(history: GitHistory, commits: int) -> None:
    """A training run of a larger model, in which much changes."""
    make_long(history, commits, tensors=300, changed=30)


def main() -> None:
    os.fsync = lambda _descriptor: None  # see above
    kind, folder, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    history = contexts.init(folder).history
    {"wide": make_wide, "long": make_long, "blamed": make_blamed}[kind](history, number)


if __name__ == "__main__":
    main()
