"""Pieces: parts of a state that one rank has in place of those of rank 0.

Older commits have them within the one state, under ``ranks``: ``{"size": 2, "1": [...]}``, and only
those that differ from rank 0's.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc import FormatError, UnsupportedError
from mvc_hooks.parts.tree import ABSENT, edit_at, find_at, is_sharded, walk_leaves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mvc_hooks.parts.tree import Steps

RANKS, PIECES = "ranks", "pieces"
"""Top-level names: of what a state says about ranks, and of a rank's own state."""
_IN_PIECE = re.compile(rf'state\["{PIECES}"\]\[(\d+)\]\["value"\]')


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank has at a path; at the paths ``shared`` in it the state of all ranks counts."""

    path: Steps
    value: Any
    shared: tuple[Steps, ...] = ()

    def over(self, base: Any) -> Any:
        """Return the value, with what all ranks share from another one, that of rank 0."""
        return _swap(self.value, base, self.shared)

    def under(self, live: Any) -> Any:
        """Return a live value without what all ranks share."""
        return _swap(live, None, self.shared)

    def back(self, base: Any, live: Any) -> Any:
        """Return the value of rank 0 with what all ranks share from a live one."""
        return _swap(base, live, self.shared)


def _swap(value: Any, other: Any, paths: Collection[Steps]) -> Any:
    """Return a nested value with what another one has at some paths; None stands for nothing."""
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
    """Return what a rank has at a path, to be committed."""
    shared = tuple(place for place, leaf in walk_leaves(value) if is_sharded(leaf))
    piece = Piece(path, None, shared)
    found = {"at": list(path), "value": piece.under(value)}
    return {**found, "shared": [list(place) for place in shared]} if shared else found


@contextlib.contextmanager
def naming(own: Mapping[str, Any] | None) -> Iterator[None]:
    """Meanwhile, let errors name what is in pieces by its place in the state of the rank."""
    try:
        yield
    except UnsupportedError as error:
        found = None if own is None else _IN_PIECE.match(error.message)
        if own is None or found is None:
            raise
        steps = own[PIECES][int(found[1])]["at"]
        place = "".join(
            f"[{json.dumps(one) if isinstance(one, str) else repr(one)}]" for one in steps
        )
        raise UnsupportedError(
            f"state{place}{error.message[found.end() :]}", hint=error.hint
        ) from error


def parse_pieces(stored: object) -> list[Piece]:
    """Return stored pieces; FormatError if they are something else."""
    if not isinstance(stored, list):
        raise FormatError("the commit does not say what belongs to a rank")
    return [_parse_piece(one) for one in stored]


def _parse_piece(stored: Any) -> Piece:
    fields: Any = stored if isinstance(stored, dict) else {}
    path, shared = fields.get("at"), fields.get("shared", [])
    is_piece = _is_path(path) and bool(path) and "value" in fields
    if not is_piece or not isinstance(shared, list) or not all(map(_is_path, shared)):
        raise FormatError("the commit has a piece of a rank that does not say where it belongs")
    return Piece(tuple(path), fields["value"], tuple(map(tuple, shared)))


def _is_path(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(step, Hashable) for step in value)


def overlay(state: Mapping[str, Any], pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return the state of rank 0 with the pieces of another rank."""
    result: Any = {name: value for name, value in state.items() if name != RANKS}
    for piece in pieces:
        result = edit_at(result, piece.path, piece.over(find_at(state, piece.path)))
    return dict(result)


def spare(into: Any, pieces: Sequence[Piece]) -> Any:
    """Return live tensors to be filled without those at pieces, apart from what all ranks share."""
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


def hide(state: Mapping[str, Any], pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return a live state with nothing at pieces, apart from what all ranks share."""
    hidden: Any = dict(state)
    for piece in pieces:
        live = find_at(hidden, piece.path)
        if live is not ABSENT:
            kept = _keep_only(live, set(piece.shared)) if piece.shared else None
            hidden = edit_at(hidden, piece.path, kept)
    return dict(hidden)


def pick(into: Any, pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return live tensors to be filled that are at pieces, nested like a rank's own state."""
    found = []
    for piece in pieces:
        live = find_at(into, piece.path)
        for path in piece.shared:
            live = (
                live if live is ABSENT else edit_at(live, path, _nothing_at((*piece.path, *path)))
            )
        found.append({} if live is ABSENT or live is None else {"value": live})
    return {PIECES: found}


def _keep_only(live: Any, kept: set[Steps]) -> Any:
    for path, _ in list(walk_leaves(live)):
        if path not in kept:
            live = edit_at(live, path, _nothing_at(path))
    return live


def _nothing_at(path: Steps) -> Any:
    """Return what stands for no tensor at a path: items of a sequence need something."""
    return None if type(path[-1]) is int else ABSENT
