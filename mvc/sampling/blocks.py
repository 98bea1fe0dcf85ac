"""An order for sources that are read in order: shards by a key, shuffled within blocks.

A pass reads the shards one after the other, in an order that the key gives. The sequence of their
records is cut into blocks of ``block`` records, whatever the shards' ends, and each block is permuted
by a key of its own. So the record at any place of a pass is a pure function of (sizes, block, key):
no buffer has a state, and a resume or another number of readers changes nothing.

A record moves by less than ``block`` places from where a pass without blocks would read it. Two
records of one shard stay within the length of the shard plus twice ``block``. Where that is too
near, make the block larger (a reader in order holds up to two of them), or shuffle when the shards
are written. A shuffle buffer of as many records moves a record less far forward but without a limit
back, and its content is a state that depends on who fills it.

Memory is 24 bytes a shard and pass; a lookup takes O(log shards).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from mvc.errors import FormatError, UsageError
from mvc.sampling.mixture import split
from mvc.sampling.permutation import MAX_SIZE, is_whole, permute, spell_key, unpermute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

_MOST_RUNS = 64
"""Runs of shards of equal size that a plan stores; beyond, their hash, as a commit has to stay small."""
_MOST_SHARDS = 1 << 24


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockOrder:
    """Orders of the records of some shards, one for each key.

    Attributes:
        sizes: how many records each shard has. Records are numbered through all shards.
        block: how many consecutive records of a pass are shuffled together; 1: none.
        id: hash of all that the orders depend on, in hex. Where it is given, it is all that is known.
    """

    sizes: Positions
    block: int = 1
    id: str = ""

    def __post_init__(self) -> None:
        """Check the numbers; UsageError if they are wrong."""
        if not is_whole(self.block, 1, MAX_SIZE):
            raise UsageError(f"a shuffle block of {self.block!r} records; it takes at least 1")
        object.__setattr__(self, "sizes", np.array(self.sizes, np.int64).reshape(-1))
        if self.sizes.size and int(self.sizes.min()) < 0:
            raise UsageError(f"a shard of {int(self.sizes.min())} records")
        self.sizes.setflags(write=False)
        if not self.id:
            head = b"mvc blocks 1\0%d\0" % self.block
            digest = blake3(head + self.sizes.astype("<i8").tobytes()).hexdigest()
            object.__setattr__(self, "id", digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockOrder) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"blocks of {self.block} ({self.id[:12]})"

    @property
    def size(self) -> int:
        """How many records there are."""
        return int(self.sizes.sum())

    @property
    def is_known(self) -> bool:
        """Whether the sizes of the shards are there, and not only their hash."""
        return bool(self.sizes.size)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, which ``parse`` takes; many different sizes as their hash."""
        ends = np.flatnonzero(np.diff(self.sizes, append=-1))
        if not self.is_known or len(ends) > _MOST_RUNS:
            return {"block": self.block, "id": self.id}
        runs = np.stack([np.diff(ends, prepend=-1), self.sizes[ends]], 1)
        return {"block": self.block, "runs": runs.tolist()}

    @classmethod
    def parse(cls, value: object) -> BlockOrder:
        """Return a stored order; FormatError if it is malformed."""
        if not isinstance(value, Mapping) or set(value) not in ({"block", "id"}, {"block", "runs"}):
            raise FormatError("an order by blocks must have the fields block and runs, or id")
        block = value["block"]
        if not is_whole(block, 1, MAX_SIZE):
            raise FormatError("an order by blocks has no whole number as block")
        if "id" in value:
            if not isinstance(value["id"], str) or not re.fullmatch("[0-9a-f]{64}", value["id"]):
                raise FormatError("an order by blocks has an id that is not a hash")
            return cls(np.zeros(0, np.int64), block, value["id"])
        return cls(_parse_runs(value["runs"]), block)

    def find_indices(self, places: Positions, key: bytes | int) -> Positions:
        """Return the numbers of the records at some places of the pass with this key."""
        self._check(np.asarray(places, np.int64))
        unshuffled = self._shuffle(np.asarray(places, np.int64), key, permute)
        shards, begins, starts = _lay_out(self, key)
        slot = np.searchsorted(begins, unshuffled, "right") - 1
        return starts[shards[slot]] + unshuffled - begins[slot]

    def find_places(self, indices: Positions, key: bytes | int) -> Positions:
        """Return where a pass has some records: the inverse of ``find_indices``."""
        given = np.asarray(indices, np.int64)
        self._check(given)
        shards, begins, starts = _lay_out(self, key)
        shard = np.searchsorted(starts, given, "right") - 1
        slot = unpermute(shard, len(shards), _derive(key, b"shards"))
        return self._shuffle(begins[slot] + given - starts[shard], key, unpermute)

    def _check(self, values: Positions) -> None:
        if not self.is_known:
            raise UsageError(
                "an order by blocks does not tell the sizes of its shards",
                hint="they are in the map of the shards",
            )
        size = self.size
        if values.size and not 0 <= int(values.min()) <= int(values.max()) < size:
            raise UsageError(f"a position outside an order of {size} elements")

    def _shuffle(
        self,
        places: Positions,
        key: bytes | int,
        move: Callable[[Positions, int, bytes | int], Positions],
    ) -> Positions:
        if self.block == 1:
            return places
        blocks, within = np.divmod(places, self.block)
        shuffled, size = np.empty_like(places), self.size
        for number, chosen in split(blocks):
            first = number * self.block
            length = min(self.block, size - first)
            moved = move(within[chosen], length, _derive(key, b"block %d" % number))
            shuffled[chosen] = first + moved
        return shuffled


def _parse_runs(value: object) -> Positions:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_RUNS:
        raise FormatError("an order by blocks has no runs of shards")
    records = 0
    for run in value:
        if not isinstance(run, list) or list(map(type, run)) != [int, int]:
            raise FormatError("a run of shards is not two whole numbers")
        count, size = run
        records += count * size
        if not 0 < count <= _MOST_SHARDS or size < 0 or records > MAX_SIZE:
            raise FormatError("a run of shards has impossible numbers")
    if sum(count for count, _ in value) > _MOST_SHARDS:
        raise FormatError(f"an order of more than {_MOST_SHARDS} shards")
    counts, sizes = np.array(value, np.int64).T
    return np.repeat(sizes, counts)


@lru_cache(maxsize=16)
def _lay_out(order: BlockOrder, key: bytes | int) -> tuple[Positions, Positions, Positions]:
    """Return the shards of a pass, where each begins in it, and where each begins by number."""
    count = len(order.sizes)
    shards = permute(np.arange(count), count, _derive(key, b"shards"))
    begins = np.cumsum(order.sizes[shards]) - order.sizes[shards]
    return shards, begins, np.cumsum(order.sizes) - order.sizes


def _derive(key: bytes | int, use: bytes) -> bytes:
    return blake3(b"mvc blocks 1\0" + use + b"\0" + spell_key(key)).digest()
