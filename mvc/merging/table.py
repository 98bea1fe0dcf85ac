"""The three-way merge as data: each side's change to a thing, and the outcome.

A *thing* is a file of a tree or a tensor of a file; all that counts is which version of it each side
has. The base is what the sides have in common:

    base has it     ours        theirs      then
    no              added       absent      ours
                    absent      added       theirs
                    added       added       both, if they are equal; else a conflict, add/add
    yes             same        same        nothing happened: it is kept
                    changed     same        ours
                    same        changed     theirs
                    changed     changed     both, if they are equal; else a conflict, modify/modify
                    removed     same        removed
                    same        removed     removed
                    removed     removed     removed
                    changed     removed     a conflict, modify/remove
                    removed     changed     a conflict, modify/remove

More than two sides are folded: what the first two give is merged with the third, and so on. A thing
that a side has under another name, and once only, was renamed there: it is still the same row. One
that a side renamed and changed is found, too, where it would be a conflict of modify and remove.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class SideChange(Enum):
    """One side's change to a thing."""

    ABSENT = "absent"
    ADDED = "added"
    SAME = "same"
    CHANGED = "changed"
    REMOVED = "removed"


class Outcome(Enum):
    """The outcome for a thing; the last four are conflicts."""

    KEEP = "unchanged"
    OURS = "ours"
    THEIRS = "theirs"
    BOTH = "same change on both sides"
    REMOVE = "removed"
    MODIFY_MODIFY = "changed on both sides"
    MODIFY_REMOVE = "changed on one side, removed on the other"
    ADD_ADD = "added on both sides"
    RENAME_RENAME = "renamed on both sides"

    @property
    def is_conflict(self) -> bool:
        """Whether a strategy or a person must decide."""
        return self in _CONFLICTS


_SIDES = ("ours", "theirs")
_LIKE = 0.5
_MAX_PAIRS = 10_000  # that are compared to find what was renamed and changed
_CONFLICTS = frozenset(
    {Outcome.MODIFY_MODIFY, Outcome.MODIFY_REMOVE, Outcome.ADD_ADD, Outcome.RENAME_RENAME}
)

# fmt: off
TABLE: Mapping[tuple[SideChange, SideChange], Outcome] = {
    (SideChange.ABSENT,  SideChange.ABSENT):  Outcome.KEEP,
    (SideChange.ADDED,   SideChange.ABSENT):  Outcome.OURS,
    (SideChange.ABSENT,  SideChange.ADDED):   Outcome.THEIRS,
    (SideChange.ADDED,   SideChange.ADDED):   Outcome.ADD_ADD,
    (SideChange.SAME,    SideChange.SAME):    Outcome.KEEP,
    (SideChange.CHANGED, SideChange.SAME):    Outcome.OURS,
    (SideChange.SAME,    SideChange.CHANGED): Outcome.THEIRS,
    (SideChange.CHANGED, SideChange.CHANGED): Outcome.MODIFY_MODIFY,
    (SideChange.REMOVED, SideChange.SAME):    Outcome.REMOVE,
    (SideChange.SAME,    SideChange.REMOVED): Outcome.REMOVE,
    (SideChange.REMOVED, SideChange.REMOVED): Outcome.REMOVE,
    (SideChange.CHANGED, SideChange.REMOVED): Outcome.MODIFY_REMOVE,
    (SideChange.REMOVED, SideChange.CHANGED): Outcome.MODIFY_REMOVE,
}
"""(what ours did, what theirs did) → outcome, where the two are not equal."""
# fmt: on


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one thing: an outcome, and the side whose version is the result.

    ``side`` counts from 0, ours; None is a conflict. A side that lacks the thing removes it.
    """

    outcome: Outcome
    side: int | None


@dataclass(frozen=True, slots=True)
class MergeRow(Generic[Thing]):
    """One thing on all sides."""

    name: str  # what the result calls it
    base: Thing | None  # its version in the base, or None
    sides: tuple[Thing | None, ...]  # its version on each side, or None; ours is the first
    decision: Decision  # what follows
    renamed_from: str | None = None  # its name in the base, if a side renamed it

    @property
    def outcome(self) -> Outcome:
        """What follows."""
        return self.decision.outcome

    @property
    def reason(self) -> str:
        """The outcome in words, including which of two sides removed the thing."""
        if self.outcome is Outcome.MODIFY_REMOVE and len(self.sides) == len(_SIDES):
            gone = self.sides.index(None)
            return f"changed in {_SIDES[1 - gone]}, removed in {_SIDES[gone]}"
        return self.outcome.value

    @property
    def result(self) -> Thing | None:
        """The version that is the result, None if it is removed; not for a conflict."""
        assert self.decision.side is not None
        return self.sides[self.decision.side]


def find_change(base: Hashable, side: Hashable) -> SideChange:
    """Return a side's change, given the base's version and its own; None means absent."""
    if base is None:
        return SideChange.ABSENT if side is None else SideChange.ADDED
    if side is None:
        return SideChange.REMOVED
    return SideChange.SAME if side == base else SideChange.CHANGED


def decide(base: Hashable, sides: Sequence[Hashable]) -> Decision:
    """Decide about one thing, given its version in the base and on each side."""
    return reduce(
        lambda so_far, place: _fold(base, sides, so_far, place),
        range(1, len(sides)),
        Decision(_ALONE[find_change(base, sides[0])], 0),
    )


_ALONE = {
    SideChange.ABSENT: Outcome.KEEP,
    SideChange.SAME: Outcome.KEEP,
    SideChange.ADDED: Outcome.OURS,
    SideChange.CHANGED: Outcome.OURS,
    SideChange.REMOVED: Outcome.REMOVE,
}


def _fold(base: Hashable, sides: Sequence[Hashable], so_far: Decision, place: int) -> Decision:
    if so_far.side is None:
        return so_far
    merged, side = sides[so_far.side], sides[place]
    outcome = TABLE[find_change(base, merged), find_change(base, side)]
    if outcome is Outcome.KEEP or side == base:
        return so_far  # nothing new
    if merged == side:
        return Decision(Outcome.BOTH if outcome.is_conflict else outcome, so_far.side)
    if outcome.is_conflict:
        return Decision(outcome, None)
    return Decision(outcome, place)


def merge_names(
    base: Mapping[str, Thing],
    sides: Sequence[Mapping[str, Thing]],
    version: Callable[[Thing], Hashable],
    may_move: Callable[[Thing], bool] = lambda _: True,
    likeness: Callable[[Thing, Thing], float] | None = None,
) -> list[MergeRow[Thing]]:
    """Return a row for every thing of the base or of a side, in the order of ours.

    ``version`` returns what makes two versions of a thing equal, ``may_move`` whether a thing is
    enough of its own to be found again under another name, ``likeness`` how alike two versions
    are, from 0 to 1.
    """
    origins = _find_origins(base, sides, version, may_move)
    if likeness is not None:
        _follow_changed(base, sides, origins, version, likeness)
    names: dict[str, None] = {}
    for side, origin in zip(sides, origins, strict=True):
        names.update(dict.fromkeys(origin.get(name, name) for name in side))
    names.update(dict.fromkeys(base))
    places = [{old: new for new, old in origin.items()} for origin in origins]
    return [_make_row(name, base, sides, places, version) for name in names]


def _make_row(
    name: str,
    base: Mapping[str, Thing],
    sides: Sequence[Mapping[str, Thing]],
    places: Sequence[Mapping[str, str]],
    version: Callable[[Thing], Hashable],
) -> MergeRow[Thing]:
    old = base.get(name)
    found = tuple(
        side.get(place.get(name, name)) for side, place in zip(sides, places, strict=True)
    )
    decision = decide(
        None if old is None else version(old),
        [None if one is None else version(one) for one in found],
    )
    renamed = list(dict.fromkeys(place[name] for place in places if name in place))
    if len(renamed) > 1:
        decision = Decision(Outcome.RENAME_RENAME, None)
    return MergeRow(
        renamed[0] if renamed else name, old, found, decision, name if renamed else None
    )


def _find_origins(
    base: Mapping[str, Thing],
    sides: Sequence[Mapping[str, Thing]],
    version: Callable[[Thing], Hashable],
    may_move: Callable[[Thing], bool],
) -> list[dict[str, str]]:
    """Return for each side: new name → name in the base of what it renamed."""
    found = [dict(_find_renames(base, side, version, may_move)) for side in sides]
    return [
        {
            new: old
            for new, old in origin.items()
            # If another side has something else under the new name, that is not a rename.
            if all(
                new not in side or other.get(new) == old
                for side, other in zip(sides, found, strict=True)
            )
        }
        for origin in found
    ]


def _find_renames(
    base: Mapping[str, Thing],
    side: Mapping[str, Thing],
    version: Callable[[Thing], Hashable],
    may_move: Callable[[Thing], bool],
) -> Iterator[tuple[str, str]]:
    """Yield (new name, old name) of renamed things, if the match is unique."""
    gone = [
        (version(one), name) for name, one in base.items() if name not in side and may_move(one)
    ]
    came = [(version(side[name]), name) for name in side if name not in base]
    counts = Counter(key for key, _ in gone), Counter(key for key, _ in came)
    old_names = dict(gone)
    for key, name in came:
        if counts[0][key] == 1 == counts[1][key]:
            yield name, old_names[key]


def _follow_changed(
    base: Mapping[str, Thing],
    sides: Sequence[Mapping[str, Thing]],
    origins: Sequence[dict[str, str]],
    version: Callable[[Thing], Hashable],
    likeness: Callable[[Thing, Thing], float],
) -> None:
    """Add to ``origins`` what one side renamed and changed while another side changed it."""
    for side, origin in zip(sides, origins, strict=True):
        others = [one for one in sides if one is not side]
        gone = [
            name
            for name in base.keys() - side.keys() - set(origin.values())
            if any(name in one and version(one[name]) != version(base[name]) for one in others)
        ]
        came = [
            name
            for name in side.keys() - base.keys() - origin.keys()
            if not any(name in one for one in others)
        ]
        if len(gone) * len(came) > _MAX_PAIRS:
            continue
        pairs = [(old, new, likeness(base[old], side[new])) for old in gone for new in came]
        shares = defaultdict[tuple[int, str], list[float]](list)
        for old, new, share in pairs:
            shares[0, old].append(share)
            shares[1, new].append(share)
        for old, new, share in pairs:
            rivals = (shares[0, old], shares[1, new])
            if share >= _LIKE and all(
                max(rival) == share and rival.count(share) == 1 for rival in rivals
            ):
                origin[new] = old
