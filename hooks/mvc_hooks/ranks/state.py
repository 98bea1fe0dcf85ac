"""The state of a run as one of its ranks commits it and gets it back.

The state of all ranks does not depend on their number. What belongs to one rank does: with fewer ranks
some of it has nowhere to go, and with more there is none for the new ones, unless all ranks had the same.
A position in data that is divided among the ranks is one of that number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from mvc import ConflictError, FormatError
from mvc_hooks.parts.data import SHARED, DataPart
from mvc_hooks.parts.gradients import GradsPart
from mvc_hooks.parts.make import RNG
from mvc_hooks.parts.restoring import StateSource
from mvc_hooks.parts.rng import GeneratorPart, RngPart
from mvc_hooks.parts.tree import ABSENT, edit_at, find_at, format_path, has_arrays, order_like
from mvc_hooks.ranks.buckets import IN_ANY_ORDER, Buckets
from mvc_hooks.ranks.group import join_words, spell_ranks, spell_size
from mvc_hooks.ranks.own import (
    OwnParts,
    RankView,
    check_replicas,
    digest_state,
    expect_placed,
    find_difference,
    has_shards,
    splits_data,
)
from mvc_hooks.ranks.pieces import PIECES, RANKS, RankPiece, overlay, parse_pieces, pick, spare

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from mvc_hooks.parts.part import Part
    from mvc_hooks.parts.tree import Steps
    from mvc_hooks.ranks.group import Ranks


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
    """Return what a run of ``size`` ranks, whose own is at ``paths``, would lose; others take over ``records``."""
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
    for path in filter(lambda path: path not in records, known):
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


class RankSource:
    """The state of a rank as a commit has it: that of rank 0, with the rank's ``own`` pieces, if any."""

    def __init__(self, base: StateSource, own: StateSource | None) -> None:
        self._base, self._own = base, own
        self._stored: dict[str, Any] = {}
        self._pieces: dict[str, Any] = {}

    def outline(self) -> dict[str, Any]:
        """Return its structure."""
        return overlay(self._base.outline(), self._outline_pieces())

    def load(self, into: Mapping[str, object]) -> dict[str, Any]:
        """Return it, with live tensors filled."""
        pieces = self._outline_pieces()
        # The source would fill what is at pieces with the values of rank 0.
        self._stored = self._base.load(spare(into, pieces))
        self._pieces = {PIECES: []} if self._own is None else self._own.load(pick(into, pieces))
        return overlay(self._stored, parse_pieces(self._pieces[PIECES]))

    def check(self, state: Mapping[str, object]) -> tuple[str, ...]:
        """Return a line for every difference of a live state of this rank."""
        # Put this rank's values where the commit has them, and rank 0's back in their places.
        whole: Any = {**state, RANKS: self._stored[RANKS]}
        mine: Any = self._pieces
        for number, piece in enumerate(parse_pieces(mine[PIECES])):
            live = find_at(state, piece.path)
            mine = edit_at(mine, (PIECES, number, "value"), piece.under(live))
            base = find_at(self._stored, piece.path)
            whole = edit_at(whole, piece.path, piece.back(base, live))
        differences = self._base.check(order_like(whole, self._stored))
        if self._own is None:
            return differences
        return (*differences, *self._own.check(order_like(mine, self._pieces)))

    def _outline_pieces(self) -> list[RankPiece]:
        return [] if self._own is None else parse_pieces(self._own.outline().get(PIECES))


@dataclass(frozen=True, slots=True)
class Opened:
    """A stored state as one rank has it."""

    source: StateSource
    ranks: int  # how many made it
    # Returns the records of another one of them, where they are in a state.
    read_records: Callable[[int], dict[str, Any]] = lambda _: {}
    unknown: Collection[str] = ()  # names of the parts that are not stored for this rank
    doubts: Sequence[str] = ()  # in words, why the run may not go on as it did


class RankState:
    """Tells apart what this rank and what all ranks have, on the way out and back."""

    def __init__(
        self,
        ranks: Ranks,
        parts: Mapping[str, Part],
        extras: Collection[str] = (),
        records: Collection[Steps] = (),
    ) -> None:
        """Take the parts of a run; the top-level ``extras`` besides them are committed by rank 0.

        At the paths ``records`` in them each rank has its own, which other ranks can take over.
        """
        self._ranks, self._parts = ranks, parts
        self._own = OwnParts(parts, extras, records)
        self._buckets = Buckets(parts)
        self._is_checked = False

    def plan_buckets(self) -> dict[str, object]:
        """Return how each DistributedDataParallel groups gradients, for the record of the environment."""
        return {} if self._ranks.size == 1 else self._buckets.plan()

    def check(self, capture: Callable[[], Mapping[str, Any]]) -> None:
        """Check that the ranks hold one model; every rank must call it."""
        if not self._ranks.is_alone:
            check_replicas(self._ranks, self._parts, capture())
            self._is_checked = True

    def view(self, state: dict[str, Any]) -> RankView:
        """Return a captured state as this rank commits it; every rank must call it."""
        ranks = self._ranks
        if ranks.size == 1:
            return RankView(state)
        if not self._is_checked:
            self.check(lambda: state)
        buckets = self._buckets.describe()
        return self._own.view(state, ranks.rank, ranks.size, buckets)

    def find_difference(self, state: dict[str, Any]) -> str | None:
        """Return in words how the state of another rank differs in form; every rank must call it."""
        if self._ranks.is_alone:
            return None
        return find_difference(
            self._ranks, self._own.view(state, self._ranks.rank, self._ranks.size)
        )

    def open(
        self, source: StateSource, allow: Sequence[str], capture: Callable[[], Mapping[str, Any]]
    ) -> Opened:
        """Return the state as this rank has it, given what returns the live one; every rank must call it."""
        if source.is_own:
            return Opened(source, self._ranks.size)
        rank, size = self._ranks.rank, self._ranks.size
        outline = self._ranks.together(source.outline)
        stored = count_ranks(outline)
        unknown: Collection[str] = ()
        if stored != size:
            losses = self._ranks.ask_first(
                lambda: find_losses(
                    source, self._own.parts, self._own.find(capture()), size, self._own.records
                )
            )
            self._check(losses, stored, allow)
            missing = {
                str(loss.path[0]) for loss in losses if rank in loss.ranks and loss.is_missing
            }
            # A DTensor that only some ranks filled would be wrong: a part with one comes as rank 0's.
            shared = self._ranks.ask_first(lambda: find_shared(source, capture()))
            unknown = missing & self._own.names - shared
        ranks_entry = outline.get(RANKS)
        facts = ranks_entry if isinstance(ranks_entry, dict) else {}
        expect_placed(facts.get("placed"), self._own.optimizers)
        if ranks_entry is None:
            return Opened(source, 1, unknown=unknown)
        doubts = self._buckets.restore(facts.get("buckets", [])) if size > 1 else ()
        is_exact = stored == size > IN_ANY_ORDER  # of other ranks it is another sum
        is_known = type(stored) is int and rank < stored
        mine = RankSource(source, source.folder(f"{RANKS}/{rank}") if is_known and rank else None)
        return Opened(
            StateSource(mine.outline, mine.load, mine.check),
            stored if type(stored) is int else 1,
            partial(read_records, source, self._own.records),
            unknown,
            doubts if is_exact else (),
        )

    def _check(self, losses: Sequence[RankLoss], stored: object, allow: Sequence[str]) -> None:
        if losses and RANKS not in allow:
            raise ConflictError(
                f"the run has {spell_size(self._ranks.size)}, but the commit was made by {spell_size(stored)}: "
                f"{explain(losses, self._own.parts)}",
                hint=f'start as many ranks, or pass allow=["{RANKS}"]: each rank takes what the commit '
                "has for it, and a rank that the commit does not know keeps what it has now",
            )
