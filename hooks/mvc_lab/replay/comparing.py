"""A live run compared with a commit: each rank compares what is here, and all of them know what was found."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mvc.training import ArrayOutline
from mvc_hooks.extension import OWN
from mvc_hooks.parts.tree import (
    ABSENT,
    Steps,
    edit_at,
    find_at,
    format_path,
    is_sharded,
    order_like,
    outline,
    pair_leaves,
    read_bits,
    to_local,
)
from mvc_hooks.ranks.pieces import PIECES, RANKS, RankPiece, hide, overlay, parse_pieces
from mvc_lab.replay.report import ReplayDifference, ReplayPoint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from mvc import Repo
    from mvc.training import StoredState
    from mvc_hooks.ranks.group import Ranks
    from mvc_hooks.run.live import LiveRun

    Measure = tuple[object, int, int, float | None]

_NOTHING = (None, 0, 0, None)


def compare_run(
    repo: Repo, run: LiveRun, ranks: Ranks, point: ReplayPoint, exact_to: int
) -> tuple[int, ReplayDifference | None]:
    """Count the tensors of a live run and a commit; find their first difference after ``exact_to``.

    Every rank must call it, and all return the same.
    """
    commit = _RankCommit(repo, point.commit, ranks.rank, run.extras)
    live = run.capture({})
    tensors, lines = commit.verify(live)
    of_extensions: list[str] = []
    for extension in run.extensions:
        if extension.entry is not None:
            stored = ranks.together(partial(commit.load_entry, extension.entry))
            of_extensions += extension.compare(stored)
    every = ranks.exchange((tensors, lines))
    total = sum(count for count, _ in every)
    most = max(len(lines) for _, lines in every)
    if not most and not of_extensions:
        return total, None
    names = of_extensions[:1]
    elements, size, largest = 0, 0, None
    if most:
        mine = [(at, commit.name(path), path) for at, path in commit.find(live)] if lines else []
        places = ranks.exchange([(at, name) for at, name, _ in mine])
        names = [name for _, name in sorted({place for rank in places for place in rank})]
        # A difference without a place has its line alone, of the first rank that has one.
        names = names or [next(lines[0] for _, lines in every if lines)]
        path = next((path for _, name, path in mine if name == names[0]), None)
        measures = ranks.exchange(_NOTHING if path is None else commit.measure(live, path))
        # Ranks with the same part of the tensor count once.
        parts = {box: (count, gap) for box, count, _, gap in measures if count}
        elements = sum(count for count, _ in parts.values())
        size = max(size for _, _, size, _ in measures)
        largest = max((gap for _, gap in parts.values() if gap is not None), default=None)
    others = max(len(set(names)), most) if most else 0
    return total, ReplayDifference(
        step=point.step,
        after_step=exact_to,
        commit=point.commit,
        name=names[0],
        elements=elements,
        size=size,
        largest=largest,
        others=others + len(of_extensions) - 1,
    )


@dataclass(frozen=True, slots=True)
class _Own:
    """What a commit has of one rank alone, in a folder."""

    folder: str
    state: StoredState
    pieces: list[RankPiece]


class _RankCommit:
    """A commit as one rank of the run has it, to be compared with what is live there."""

    def __init__(self, repo: Repo, commit: str, rank: int, extras: Collection[str]) -> None:
        """Open it; ``extras`` are names of what is not compared here, but for what ranks have at ``own``."""
        self._repo, self._commit, self._rank, self._extras = repo, commit, rank, extras
        self._base = repo.open_state(commit)
        self._own: _Own | None = None
        if rank:
            folder = f"{RANKS}/{rank}"
            state = repo.open_state(commit, folder=folder)
            self._own = _Own(folder, state, parse_pieces(state.outline.get(PIECES)))

    @property
    def _pieces(self) -> list[RankPiece]:
        return [] if self._own is None else self._own.pieces

    def load_entry(self, name: str) -> Any:
        """Return what the commit has of an extension, with what is this rank's own; None if nothing."""
        entry = self._base.load((name,)) if name in self._base.outline else None
        places = [number for number, piece in enumerate(self._pieces) if piece.path == (name, OWN)]
        return {**entry, OWN: self._load_own(places[0])} if entry and places else entry

    def _load_own(self, number: int) -> Any:
        assert self._own is not None
        return self._own.state.load((PIECES, number, "value"))

    def _pick(self, live: dict[str, Any]) -> dict[str, Any]:
        """Return the parts that the commit has; counters, watch and environment are not compared."""
        names = [name for name in self._base.outline if name not in (*self._extras, RANKS)]
        return {name: live[name] for name in names if name in live}

    def verify(self, live: dict[str, Any]) -> tuple[int, list[str]]:
        """Return how many tensors were compared that no other rank counts, and what differs."""
        state = hide(self._pick(live), self._pieces)
        check = self._repo.verify_state(order_like(state, self._base.outline), self._commit)
        paths: list[Steps] = [(name,) for name in (*self._extras, RANKS)]
        # As the lines of ``verify_state`` begin.
        starts = tuple(
            "state"
            + "".join(f"[{json.dumps(step) if type(step) is str else repr(step)}]" for step in path)
            for path in [*paths, *(piece.path for piece in self._pieces)]
        )
        lines = [line for line in check.differences if not line.startswith(starts)]
        if self._own is None:
            return check.tensors, lines
        mine: Any = self._own.state.outline
        for number, piece in enumerate(self._own.pieces):
            value = find_at(live, piece.path)
            kept = None if value is ABSENT else piece.under(value)
            own_of = piece.path[0] if piece.path[1:] == (OWN,) else None
            if own_of in self._extras:  # compared apart: it may list other ids
                kept = self._load_own(number)
            mine = edit_at(mine, (PIECES, number, "value"), kept)
        mine = order_like(mine, self._own.state.outline)
        own = self._repo.verify_state(mine, self._commit, folder=self._own.folder)
        return own.tensors, [*lines, *(f"rank {self._rank}: {line}" for line in own.differences)]

    def find(self, live: dict[str, Any]) -> Iterator[tuple[int, Steps]]:
        """Yield the leaves that differ here, in the order of the commit; one is read at a time."""
        stored = overlay(self._base.outline, self._pieces)
        stored = {name: value for name, value in stored.items() if name not in self._extras}
        pairs = pair_leaves(stored, self._pick(live), (), same_type=True)
        for number, (path, theirs, ours) in enumerate(pairs):
            if not isinstance(theirs, ArrayOutline):
                if read_bits(ours) != read_bits(theirs):
                    yield number, path
            elif not _has_form(ours, theirs):
                yield number, path
            else:
                here, there = self._read(path, ours)
                if read_bits(here) != read_bits(there):
                    yield number, path

    def name(self, path: Steps) -> str:
        """Return a path dotted; it says whose it is, if that is not rank 0 or all."""
        _, is_own = self._find_piece(path)
        return f"{format_path(path)} of rank {self._rank}" if is_own else format_path(path)

    def _find_piece(self, path: Steps) -> tuple[Steps, bool]:
        """Return where in the commit a leaf is, and whether in this rank's own state."""
        for number, piece in enumerate(self._pieces):
            length = len(piece.path)
            if path[:length] == piece.path and path[length:] not in piece.shared:
                return (PIECES, number, "value", *path[length:]), True
        return path, False

    def _read(self, path: Steps, ours: Any) -> tuple[Any, Any]:
        """Return a leaf as it is here, and as the commit has it."""
        place, is_own = self._find_piece(path)
        state = self._own.state if is_own and self._own is not None else self._base
        if not is_sharded(ours):
            return ours, state.load(place)
        here = to_local(ours.detach())
        there = torch.empty(here.shape, dtype=here.dtype)
        box = _find_box(ours)
        if box is not None:
            data: Any = there.reshape(-1).view(torch.uint8).numpy()
            state.read_boxes([(place, *box, memoryview(data))])
        return here, there

    def measure(self, live: dict[str, Any], path: Steps) -> Measure:
        """Return which part of a tensor is here, how many elements differ, of how many, by how much."""
        ours = find_at(live, path)
        theirs = find_at(overlay(self._base.outline, self._pieces), path)
        if not (isinstance(theirs, ArrayOutline) and _has_form(ours, theirs)):
            return _NOTHING
        elements, largest = _measure(*self._read(path, ours))
        box = _find_box(ours) if is_sharded(ours) else None
        return box, elements, math.prod(theirs.shape), largest


def _has_form(ours: object, theirs: ArrayOutline) -> bool:
    if isinstance(ours, (torch.Tensor, np.ndarray)):
        return bool(outline(ours) == theirs)
    return theirs.kind == "bytes" and isinstance(ours, (bytes, bytearray))


def _find_box(shard: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return offsets and sizes of the part of a DTensor that is here; None if nothing is."""
    chunks = shard.__create_chunk_list__() if to_local(shard).numel() else ()
    return next(((tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks), None)


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        plain = (plain if plain.layout is torch.strided else plain.to_dense()).resolve_conj()
        is_odd = plain.dtype is torch.bfloat16 or "float8" in str(plain.dtype)
        return (plain.double() if is_odd else plain.resolve_neg()).numpy()
    return value if isinstance(value, np.ndarray) else None


def _measure(live: Any, stored: Any) -> tuple[int, float | None]:
    """Return how many elements of two tensors of one form differ, and by how much at most."""
    ours, theirs = _as_array(live), _as_array(stored)
    if ours is None or theirs is None:
        return 0, None
    left, right = np.atleast_1d(ours).ravel(), np.atleast_1d(theirs).ravel()
    width = left.dtype.itemsize
    rows = [np.ascontiguousarray(side).view(np.uint8).reshape(-1, width) for side in (left, right)]
    is_different = (rows[0] != rows[1]).any(axis=1)
    with np.errstate(all="ignore"):
        gaps = np.abs(left[is_different].astype(complex) - right[is_different].astype(complex))
    finite = gaps[np.isfinite(gaps)]
    return int(is_different.sum()), float(finite.max()) if finite.size else None
