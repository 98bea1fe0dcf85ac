"""Which replica checks which chunks of a sharded state, and in which commit.

A rank that holds the same box as another one can *check* what that keeps (``keepers``): it copies its own
bytes too, and has them hashed to the id that the chunk must have. Each commit is a *round*, in which one of
``CHECK_ROUNDS`` chunks is due, so a rank copies about a sixteenth more than it keeps, and every chunk is checked
once in ``CHECK_ROUNDS`` commits.

Chunk ``c`` of array ``a`` is due in round ``phase(a) + c``. The phases follow the multiples of the
golden ratio, which spread every arithmetic progression evenly (Weyl 1916; Knuth, The Art of Computer
Programming 3, section 6.4): a model repeats its layers, and what is the same in each of them must
not come due at once, all of it on one rank.

A chunk may have parts from several ranks. Each part is checked by another rank than the one that keeps it; one of
these gathers them all: the one with the most, and never the rank that stores the chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mvc.numbers.boxes import locate_part
from mvc.states.keepers import Keepers, round_up

CHECK_ROUNDS = 16
_GOLDEN, _BITS = 0x9E3779B1, 32  # 2**32 divided by the golden ratio


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """What a rank checks of a chunk: the number of the box, where in that, and where in its image."""

    array: int
    chunk: int
    number: int
    start: int
    size_bytes: int
    offset: int


class Check:
    """The check of one commit; it knows where the parts are in the images of all ranks."""

    def __init__(
        self, keepers: Keepers, round_number: int, find_start: Callable[[int], int]
    ) -> None:
        """Take the round, and what returns where in the image of a rank its parts begin."""
        self.keepers, self.round = keepers, round_number
        self._find_start = find_start
        self._parts: dict[int, dict[tuple[int, int], list[CheckedPart]]] = {}

    def parts_of(self, rank: int) -> dict[tuple[int, int], list[CheckedPart]]:
        """Return (array, chunk) → what a rank checks of it."""
        found = self._parts.get(rank)
        if found is None:
            found = {}
            for part in list_checked(self.keepers, rank, self._find_start(rank), self.round):
                found.setdefault((part.array, part.chunk), []).append(part)
            self._parts[rank] = found
        return found


def list_due(array: int, chunks: range, round_number: int) -> range:
    """Return which of some chunks of an array are due in a round."""
    phase = (array * _GOLDEN % 2**_BITS) * CHECK_ROUNDS >> _BITS
    return range(
        chunks.start + (round_number - phase - chunks.start) % CHECK_ROUNDS,
        chunks.stop,
        CHECK_ROUNDS,
    )


def list_checked(
    keepers: Keepers, rank: int, start: int, round_number: int
) -> Iterator[CheckedPart]:
    """Yield the parts that a rank checks in a round; in its image they lie from ``start`` on."""
    for array, (form, division) in enumerate(zip(keepers.forms, keepers.divisions, strict=True)):
        numbers = division.numbers_checked_by(rank)
        # Single numbers, such as the step counters of an optimizer, are on all ranks of any run.
        if not numbers or form.elements == 1:
            continue
        for chunk in list_due(array, division.chunks_of(numbers), round_number):
            for number, count in division.find_parts(chunk):
                kept = division.kept[number]
                if kept.checker == rank:
                    first, _ = division.run_of(chunk)
                    begin = locate_part(kept.shape, kept.box, first) * form.item_bytes
                    size = count * form.item_bytes
                    yield CheckedPart(array, chunk, number, begin, size, start)
                    start = round_up(start + size)


def find_checker(keepers: Keepers, array: int, chunk: int) -> int | None:
    """Return the rank that checks a chunk; None if some of it is on one rank only."""
    division = keepers.divisions[array]
    counts: dict[int, int] = {}
    for number, count in division.find_parts(chunk):
        checker = division.kept[number].checker
        if checker < 0:
            return None
        counts[checker] = counts.get(checker, 0) + count
    counts.pop(int(keepers.owners[array][chunk]), None)  # it keeps a part that another one checks
    most = max(counts.values())
    ranks = sorted(rank for rank, count in counts.items() if count == most)
    return ranks[(array + chunk) % len(ranks)]


def list_checkers(keepers: Keepers, round_number: int) -> Iterator[tuple[int, int, int]]:
    """Yield (array, chunk, rank that checks it) of all chunks that are checked in a round."""
    for array, (form, owners) in enumerate(zip(keepers.forms, keepers.owners, strict=True)):
        chunks = range(len(owners) if form.elements > 1 else 0)
        for chunk in list_due(array, chunks, round_number):
            checker = find_checker(keepers, array, chunk)
            if checker is not None:
                yield array, chunk, checker


def count_checkable(keepers: Keepers) -> int:
    """Return how many chunks are checked in all rounds together."""
    return sum(1 for number in range(CHECK_ROUNDS) for _ in list_checkers(keepers, number))
