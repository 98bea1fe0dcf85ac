"""Pieces: what one rank has of a state in place of what rank 0 has there.

A commit holds the pieces of rank 1 in ``ranks/1``. Within a piece, tensors that are sharded over all ranks
are not the rank's own: they are stored once, with the state of rank 0, and the piece names their paths.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mvc import FormatError, UnsupportedError
from mvc_hooks.parts.tree import ABSENT, Steps, edit_at, find_at, is_sharded, walk_leaves

RANKS, PIECES = "ranks", "pieces"
"""Top-level names: what a state says about its ranks, and the pieces in a rank's own state."""
_IN_PIECE = re.compile(rf'state\["{PIECES}"\]\[(\d+)\]\["value"\]')


@dataclass(frozen=True, slots=True)
class RankPiece:
    """What one rank has at a path; the values at the paths ``shared`` within it belong to all ranks."""

    path: Steps
    value: Any
    shared: tuple[Steps, ...] = ()

    def over(self, base: Any) -> Any:
        """Return the value, its shared part taken from the value of rank 0."""
        return _swap(self.value, base, self.shared)

    def under(self, live: Any) -> Any:
        """Return a live value with None for its shared part."""
        return _swap(live, None, self.shared)

    def back(self, base: Any, live: Any) -> Any:
        """Return the value of rank 0, its shared part taken from a live value."""
        return _swap(base, live, self.shared)


def _swap(value: Any, other: Any, paths: Collection[Steps]) -> Any:
    """Return a copy of a nested value that has, at some paths, what another value has there."""
    if () in paths:
        return None if other is ABSENT else other
    inside: dict[object, list[Steps]] = {}
    for path in paths:
        inside.setdefault(path[0], []).append(path[1:])
    if not inside:
        return value
    try:
        result: Any = list(value) if type(value) is tuple else copy.copy(value)
        for key, below in inside.items():
            result[key] = _swap(value[key], find_at(other, (key,)), below)
    except (TypeError, LookupError):
        raise FormatError("a piece of a rank is not of the form of what all ranks share") from None
    return tuple(result) if type(value) is tuple else result


def make_piece(path: Steps, value: Any) -> dict[str, Any]:
    """Return the piece to commit for what a rank has at a path."""
    shared = tuple(place for place, leaf in walk_leaves(value) if is_sharded(leaf))
    piece = RankPiece(path, None, shared)
    entry = {"at": list(path), "value": piece.under(value)}
    return {**entry, "shared": [list(place) for place in shared]} if shared else entry


@contextlib.contextmanager
def naming(own: Mapping[str, Any] | None) -> Iterator[None]:
    """Make errors about a piece name its place in the state of the rank, not in the file of pieces."""
    try:
        yield
    except UnsupportedError as error:
        match = _IN_PIECE.match(error.message)
        if own is None or match is None:
            raise
        steps = own[PIECES][int(match[1])]["at"]
        place = "".join(
            f"[{json.dumps(step) if isinstance(step, str) else repr(step)}]" for step in steps
        )
        message = f"state{place}{error.message[match.end() :]}"
        raise UnsupportedError(message, hint=error.hint) from error


def parse_pieces(stored: object) -> list[RankPiece]:
    """Return the pieces that a commit holds; FormatError if it holds something else there."""
    if not isinstance(stored, list):
        raise FormatError("the commit does not say what belongs to a rank")
    pieces = []
    for entry in stored:
        fields: Any = entry if isinstance(entry, dict) else {}
        path, shared = fields.get("at"), fields.get("shared", [])
        is_piece = _is_path(path) and bool(path) and "value" in fields
        if not is_piece or not isinstance(shared, list) or not all(map(_is_path, shared)):
            raise FormatError("the commit has a piece of a rank that does not say where it belongs")
        pieces.append(RankPiece(tuple(path), fields["value"], tuple(map(tuple, shared))))
    return pieces


def _is_path(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(step, Hashable) for step in value)


def overlay(state: Mapping[str, Any], pieces: Sequence[RankPiece]) -> dict[str, Any]:
    """Return the state of a rank: that of rank 0, with the rank's own pieces in it."""
    result: Any = {name: value for name, value in state.items() if name != RANKS}
    for piece in pieces:
        result = edit_at(result, piece.path, piece.over(find_at(state, piece.path)))
    return dict(result)


def spare(into: Any, pieces: Sequence[RankPiece]) -> Any:
    """Return the live tensors that the state of rank 0 may fill: none at pieces, except shared ones."""
    for piece in pieces:
        live = find_at(into, piece.path)
        if live is ABSENT:
            continue
        if any(find_at(live, path) is not ABSENT for path in piece.shared):
            kept = _keep_only(live, set(piece.shared))
        else:
            kept = _nothing_at(piece.path)
        into = edit_at(into, piece.path, kept)
    return into


def hide(state: Mapping[str, Any], pieces: Sequence[RankPiece]) -> dict[str, Any]:
    """Return a live state without what is at pieces, except for the shared part."""
    hidden: Any = dict(state)
    for piece in pieces:
        live = find_at(hidden, piece.path)
        if live is not ABSENT:
            kept = _keep_only(live, set(piece.shared)) if piece.shared else None
            hidden = edit_at(hidden, piece.path, kept)
    return dict(hidden)


def pick(into: Any, pieces: Sequence[RankPiece]) -> dict[str, Any]:
    """Return the live tensors at pieces, which the rank's own state fills, nested like that state."""
    targets = []
    for piece in pieces:
        live = find_at(into, piece.path)
        if live is not ABSENT:
            for path in piece.shared:
                live = edit_at(live, path, _nothing_at((*piece.path, *path)))
        targets.append({} if live is ABSENT or live is None else {"value": live})
    return {PIECES: targets}


def _keep_only(live: Any, kept: set[Steps]) -> Any:
    for path, _ in list(walk_leaves(live)):
        if path not in kept:
            live = edit_at(live, path, _nothing_at(path))
    return live


def _nothing_at(path: Steps) -> Any:
    """Return what stands for no tensor at a path: items of a sequence need something."""
    return None if type(path[-1]) is int else ABSENT
