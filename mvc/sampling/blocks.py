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

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from mvc.errors import UsageError
from mvc.sampling.permutation import permute, unpermute

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class BlockOrder:
    """Orders of the records of some shards, one for each key.

    Attributes:
        sizes: how many records each shard has. Records are numbered through all shards.
        block: how many consecutive records of a pass are shuffled together; 1: none.
    """

    sizes: Positions
    block: int = 1

    def __post_init__(self) -> None:
        """Check the numbers; UsageError if they are wrong."""
        if type(self.block) is not int or self.block < 1:
            raise UsageError(f"a shuffle block of {self.block!r} records; it takes at least 1")
        object.__setattr__(self, "sizes", np.array(self.sizes, np.int64).reshape(-1))
        if self.sizes.size and int(self.sizes.min()) < 0:
            raise UsageError(f"a shard of {int(self.sizes.min())} records")
        self.sizes.setflags(write=False)

    @property
    def size(self) -> int:
        """How many records there are."""
        return int(self.sizes.sum())

    @property
    def id(self) -> str:
        """Hash of all that the orders depend on, in hex."""
        head = b"mvc blocks 1\0%d\0" % self.block
        return blake3(head + self.sizes.astype("<i8").tobytes()).hexdigest()

    def find_indices(self, places: Positions, key: bytes | int) -> Positions:
        """Return the numbers of the records at some places of the pass with this key."""
        found = self._shuffle(np.asarray(places, np.int64), key, permute)
        shards, begins, starts = _lay_out(self, key)
        slot = np.searchsorted(begins, found, "right") - 1
        return starts[shards[slot]] + found - begins[slot]

    def find_places(self, indices: Positions, key: bytes | int) -> Positions:
        """Return where a pass has some records: the inverse of ``find_indices``."""
        given = np.asarray(indices, np.int64)
        self._check(given)
        shards, begins, starts = _lay_out(self, key)
        shard = np.searchsorted(starts, given, "right") - 1
        slot = unpermute(shard, len(shards), _derive(key, b"shards"))
        return self._shuffle(begins[slot] + given - starts[shard], key, unpermute)

    def _check(self, values: Positions) -> None:
        size = self.size
        if values.size and not 0 <= int(values.min()) <= int(values.max()) < size:
            raise UsageError(f"a position outside an order of {size} elements")

    def _shuffle(
        self,
        places: Positions,
        key: bytes | int,
        move: Callable[[Positions, int, bytes | int], Positions],
    ) -> Positions:
        self._check(places)
        if self.block == 1:
            return places
        blocks, within = np.divmod(places, self.block)
        found, size = np.empty_like(places), self.size
        for number in np.unique(blocks).tolist():
            chosen = blocks == number
            first = number * self.block
            length = min(self.block, size - first)
            moved = move(within[chosen], length, _derive(key, b"block %d" % number))
            found[chosen] = first + moved
        return found


@lru_cache(maxsize=16)
def _lay_out(order: BlockOrder, key: bytes | int) -> tuple[Positions, Positions, Positions]:
    """Return the shards of a pass, where each begins in it, and where each begins by number."""
    count = len(order.sizes)
    shards = permute(np.arange(count), count, _derive(key, b"shards"))
    begins = np.cumsum(order.sizes[shards]) - order.sizes[shards]
    return shards, begins, np.cumsum(order.sizes) - order.sizes


def _derive(key: bytes | int, use: bytes) -> bytes:
    told = b"i%d" % key if isinstance(key, int) else b"b" + key
    return blake3(b"mvc blocks 1\0" + use + b"\0" + told).digest()
