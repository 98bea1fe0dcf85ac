"""What became of every tensor of two models, with statistics: piece by piece, on all cores.

First it is found out which pairs differ. Ids tell without a read; where only one side has them, the
other is hashed, and where none has, both are read up to the first difference. Then statistics of
those that differ are looked up by their two ids, or computed and kept. Memory is a few pieces a
core, whatever the tensors' sizes; only a strided tensor is read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.chunkstore.forks import compute_each
from mvc.chunkstore.parallel import for_each
from mvc.comparison.pairs import TensorChange, TensorPair, find_common_shape, identify
from mvc.comparison.piecewise import PairRun, cut_ranges
from mvc.errors import FormatError
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES
from mvc.numbers.statistics import TensorStatistics
from mvc.progress import announce, report

if TYPE_CHECKING:
    from mvc.ids import TensorId
    from mvc.workspace.context import Context
    from mvc.workspace.kept import Kept
    from mvc.workspace.tensors import ModelTensor

PAIR = b"pair"
"""The kind of kept statistics, whose key is ``pair_key``."""


def pair_key(old: TensorId, new: TensorId) -> bytes:
    """Return the key under which the statistics of two tensors are kept."""
    return bytes.fromhex(old) + bytes.fromhex(new)


def gather(
    context: Context | None, pairs: Sequence[TensorPair], *, threads: int
) -> list[TensorChange]:
    """Return the change of each pair of ``pair_models``, in the same order; their models are open."""
    ids = [_Ids.of(pair) for pair in pairs]
    different = _find_different(pairs, ids, threads)
    shapes = {place: find_common_shape(pairs[place]) for place in sorted(different)}
    keys = {place: ids[place].key for place, shape in shapes.items() if shape is not None}
    kept = None if context is None else context.kept
    found = _look_up(kept, keys)
    runs = {
        place: PairRun(pairs[place], shape)
        for place, shape in shapes.items()
        if shape is not None and place not in found
    }
    try:
        _compute(list(runs.values()), threads)
    finally:  # what was done before Ctrl-C need not be done again
        fresh = {place: run.total for place, run in runs.items() if run.total is not None}
        named = ((keys[place], total) for place, total in fresh.items())
        if kept is not None:
            kept.put_many(PAIR, {key: total.encode() for key, total in named if key is not None})
    found |= fresh
    return [
        TensorChange(
            pair, _status(pair, is_different=place in different), found.get(place), ids[place].key
        )
        for place, pair in enumerate(pairs)
    ]


def _status(pair: TensorPair, *, is_different: bool) -> str:
    if pair.old is None:
        return "added"
    if pair.new is None:
        return "removed"
    if is_different:
        return "modified"
    return "renamed" if pair.is_renamed else "unchanged"


@dataclass(slots=True)
class _Ids:
    """The identities of a pair, as far as they are known by now."""

    old: TensorId | None
    new: TensorId | None

    @classmethod
    def of(cls, pair: TensorPair) -> _Ids:
        old, new = (None if side is None else side.id for side in (pair.old, pair.new))
        return cls(old, new)

    @property
    def key(self) -> bytes | None:
        return None if self.old is None or self.new is None else pair_key(self.old, self.new)


def _find_different(pairs: Sequence[TensorPair], ids: Sequence[_Ids], threads: int) -> set[int]:
    """Return the places of pairs whose sides differ; fills in ids that are found on the way."""
    different: set[int] = set()
    unknown: list[int] = []
    for place, pair in enumerate(pairs):
        if pair.old is None or pair.new is None or ids[place].old == ids[place].new is not None:
            continue
        old, new = pair.old.view, pair.new.view
        is_told = ids[place].key is not None and _is_plain(pair.old) and _is_plain(pair.new)
        if (old.dtype, old.shape) != (new.dtype, new.shape) or is_told:
            different.add(place)
        else:
            unknown.append(place)

    def look(place: int, _: None) -> int:
        done, is_same = _look(pairs[place], ids[place])
        if not is_same:
            different.add(place)
        return done

    announce(sum(pairs[place].shown.size_bytes for place in unknown))
    for_each(unknown, lambda: None, look, threads=threads, progress=report)
    return different


def _is_plain(tensor: ModelTensor) -> bool:
    return tensor.segment.is_plain


def _look(pair: TensorPair, ids: _Ids) -> tuple[int, bool]:
    """Return bytes read, and whether both sides are equal, by hash or byte for byte."""
    old, new = pair.old, pair.new
    assert old is not None
    assert new is not None
    if ids.old is None and ids.new is not None and _is_plain(new):
        ids.old = identify(old, new.chunk_bytes)
    elif ids.new is None and ids.old is not None and _is_plain(old):
        ids.new = identify(new, old.chunk_bytes)
    else:
        read_old, read_new = old.open(), new.open()
        return new.size_bytes, all(
            (read_old(offset, size) == read_new(offset, size)).all()
            for offset, size in cut_ranges(new.size_bytes, DEFAULT_CHUNK_BYTES)
        )
    return new.size_bytes, ids.old == ids.new


def _look_up(kept: Kept | None, keys: dict[int, bytes | None]) -> dict[int, TensorStatistics]:
    """Return place → kept statistics."""
    if kept is None:
        return {}
    known = {place: key for place, key in keys.items() if key is not None}
    stored = kept.get_many(PAIR, known.values())
    found: dict[int, TensorStatistics] = {}
    for place, key in known.items():
        if key in stored:
            try:
                found[place] = TensorStatistics.decode(stored[key])
            except FormatError:
                continue  # of another version: computed again
    return found


def _compute(runs: Sequence[PairRun], threads: int) -> None:
    pieces = [(run, number) for run in runs for number in range(len(run.pieces))]
    size_bytes = sum(run.size_bytes for run in runs)
    announce(size_bytes)
    compute_each(
        pieces,
        lambda piece: piece[0].compare(piece[1]),
        lambda piece, parts: piece[0].take(piece[1], parts),
        # Each process would read a strided tensor whole, and keep it.
        size_bytes=size_bytes if all(run.is_streamed for run in runs) else 0,
        threads=threads,
        progress=report,
    )
