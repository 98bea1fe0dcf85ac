"""What belongs to each rank, when a run goes on with another number of ranks.

The state of all ranks does not depend on their number. What belongs to one rank does: with fewer ranks
some of it has nowhere to go, and with more there is none for the new ones, unless all ranks had the same.
A position in data that is divided among the ranks is one of that number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc import FormatError
from mvc_hooks.parts.data import SHARED, DataPart
from mvc_hooks.parts.gradients import GradsPart
from mvc_hooks.parts.make import RNG
from mvc_hooks.parts.rng import GeneratorPart, RngPart
from mvc_hooks.parts.tree import ABSENT, find_at, format_path, has_arrays
from mvc_hooks.ranks.own import has_shards, splits_data
from mvc_hooks.ranks.pieces import PIECES, RANKS, overlay, parse_pieces
from mvc_hooks.ranks.replicas import digest_state
from mvc_hooks.ranks.spelling import join_words, spell_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from mvc_hooks.parts.part import Part
    from mvc_hooks.parts.restoring import StateSource
    from mvc_hooks.parts.tree import Steps
    from mvc_hooks.ranks.pieces import RankPiece


@dataclass(frozen=True, slots=True)
class RankLoss:
    """A path whose value the run would lose for some ranks, or lacks for them (``is_missing``)."""

    path: Steps
    ranks: tuple[int, ...]
    is_missing: bool = False


def count_ranks(outline: Mapping[str, Any]) -> object:
    """Return how many ranks made a commit, as it says."""
    stored = outline.get(RANKS)
    return stored.get("size") if isinstance(stored, dict) else 1


def find_losses(
    source: StateSource,
    parts: Mapping[Steps, Part],
    paths: Sequence[Steps],
    size: int,
    records: Collection[Steps] = (),
) -> list[RankLoss]:
    """Return what would be lost in a run with ``size`` ranks.

    The live run's own is at ``paths``; what the commit has at ``records``, others take over.
    """
    outline = source.identify()
    stored = count_ranks(outline)
    if type(stored) is not int:
        raise FormatError("the commit does not say how many ranks made it")
    pieces = [
        {
            piece.path: piece.over(find_at(outline, piece.path))
            for piece in _find_pieces(source, rank)
        }
        for rank in range(stored)
    ]
    known = dict.fromkeys([*paths, *(path for by_path in pieces for path in by_path)])
    losses = []
    for path in (known_path for known_path in known if known_path not in records):
        base = find_at(outline, path)
        if find_at(base, (SHARED,)) is True:
            continue
        values = [digest_state(by_path.get(path, base)) for by_path in pieces]
        part = parts.get(path)
        # Whether this is a position in data that is divided among the ranks.
        split = find_at(outline, (RANKS, "split"))
        is_split = list(path) in split if isinstance(split, list) else False
        is_split = is_split or (part is not None and splits_data(part))
        if is_split and find_at(outline, (*path, "batches_drawn")) not in (0, ABSENT):
            losses.append(RankLoss(path, tuple(range(stored))))
            losses.append(RankLoss(path, tuple(range(stored, size)), is_missing=True))
        elif size < stored:
            lost = [rank for rank in range(size, stored) if values[rank] not in values[:size]]
            losses.append(RankLoss(path, tuple(lost)))
        elif len(set(values)) > 1 or (stored == 1 and _is_of_one(base, part)):
            losses.append(RankLoss(path, tuple(range(stored, size)), is_missing=True))
    return [loss for loss in losses if loss.ranks]


def find_shared(source: StateSource, live: Mapping[str, Any]) -> set[str]:
    """Return the names of parts with DTensors, live or in a commit of several ranks."""
    stored = count_ranks(source.outline())
    # Each of the other ranks says the same.
    pieces = _find_pieces(source, 1) if type(stored) is int and stored > 1 else []
    return {str(piece.path[0]) for piece in pieces if piece.shared} | {
        name for name, value in live.items() if has_shards(value)
    }


def _find_pieces(source: StateSource, rank: int) -> list[RankPiece]:
    """Return what the commit has of a rank in place of rank 0's."""
    if rank == 0:
        return []
    return parse_pieces(source.folder(f"{RANKS}/{rank}").identify().get(PIECES))


def read_records(source: StateSource, records: Collection[Steps], rank: int) -> dict[str, Any]:
    """Return what another rank of a commit has of its own at some paths, where it is in a state."""
    pieces = parse_pieces(source.folder(f"{RANKS}/{rank}").load({}).get(PIECES))
    return overlay({}, [piece for piece in pieces if piece.path in records])


def _is_of_one(value: Any, part: Part | None) -> bool:
    """Return whether what one process had was not meant for several."""
    if isinstance(part, DataPart):
        return not part.is_shared and bool(find_at(value, ("batches_drawn",)) != 0)
    if isinstance(part, GradsPart):
        return has_arrays(value)
    return isinstance(part, (RngPart, GeneratorPart))


def explain(losses: Iterable[RankLoss], parts: Mapping[Steps, Part]) -> str:
    """Return in words what is lost: ``the generators of ranks 2 and 3 would be lost``."""
    named: dict[tuple[bool, tuple[int, ...]], dict[str, None]] = {}
    for loss in losses:
        names = named.setdefault((loss.is_missing, loss.ranks), {})
        names[_name(loss.path, parts.get(loss.path))] = None
    return "; ".join(
        f"it has {join_words(names, 'no ')} of {spell_ranks(ranks)}"
        if is_missing
        else f"{join_words(names, 'the ')} of {spell_ranks(ranks)} would be lost"
        for (is_missing, ranks), names in named.items()
    )


def _name(path: Steps, part: Part | None) -> str:
    if isinstance(part, (RngPart, GeneratorPart)) or path == (RNG,):
        return "generators"
    if isinstance(part, DataPart):
        return "position in the data"
    if isinstance(part, GradsPart):
        return "accumulated gradients"
    if part is None and len(path) > 1:
        return f"buffers of {format_path(path[:-1])}"
    return f"state of {format_path(path)}"
