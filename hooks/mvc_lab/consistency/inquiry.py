"""What differs between the ranks, where, and why: asked only after a check has found that something does.

Every rank takes part: they exchange digests of all that they hold, then each tensor that differs is sent by one
rank that holds it, and compared by the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mvc_hooks.parts.tree import is_sharded
from mvc_lab.consistency.bits import BitDifference, compare_bits, find_index
from mvc_lab.consistency.digest import Digests, view_bytes
from mvc_lab.consistency.probe import probe_transport
from mvc_lab.consistency.reports import Deviation
from mvc_lab.consistency.shadow import step_again
from mvc_lab.consistency.stored import read_stored
from mvc_lab.consistency.verdict import Suspect, Testimony, Trial

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc import Repo
    from mvc_hooks.ranks.group import Ranks
    from mvc_lab.consistency.held import Held, Holdings
    from mvc_lab.consistency.learning import Learned
    from mvc_lab.consistency.sight import Sight

MOST = 8
"""How many tensors are compared element by element."""
_SENT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What an inquiry needs; ``rows`` are group → the rows of ranks that hold the same part."""

    ranks: Ranks
    holdings: Holdings
    rows: Mapping[str, Sequence[tuple[int, ...]]]
    learned: Learned

    def testify(self, sights: Sequence[Sight]) -> list[Testimony]:
        """Return what each rank says of itself; every rank must call it."""
        held = self.holdings.tensors
        here = [one.local() for one in held]
        digests = Digests(here).read()
        live = {
            one.name: (digest, 0 if tensor is None else tensor.nbytes)
            for one, tensor, digest in zip(held, here, digests, strict=True)
        }
        changed = frozenset(
            one.name
            for one in held
            if one.kind != "parameter" and self.learned.has_changed(one.name, live[one.name][0])
        )
        said = Testimony(
            live,
            changed,
            frozenset(self.learned.shared),
            _join(one.list_before() for one in sights),
            _join(one.list_gradients() for one in sights),
            _join(one.list_after() for one in sights),
            _join(step_again(one) for one in sights),
        )
        return self.ranks.exchange(said)

    def find_suspects(self, testimonies: Sequence[Testimony]) -> Trial:
        """Return what differs and must not."""
        state = [
            suspect
            for one in self.holdings.tensors
            for suspect in self._compare_row(one, testimonies)
            if not self._is_legal(one, suspect, testimonies)
        ]
        groups = {one.name: one.group for one in self.holdings.tensors}
        rows = {name: tuple(self.rows[group]) for name, group in groups.items()}
        keys = dict.fromkeys(key for one in testimonies for key in one.grads)
        gradients = [
            Suspect(
                key[0],
                {rank: testimonies[rank].grads.get(key, b"") for rank in row},
                key,
                is_gradient=True,
            )
            for key in keys
            for row in rows[key[0]]
        ]
        unlike = [one for one in gradients if len(set(one.digests.values())) > 1]
        return Trial(state, unlike, testimonies, rows=rows)

    def _compare_row(self, held: Held, testimonies: Sequence[Testimony]) -> Iterator[Suspect]:
        for row in self.rows[held.group]:
            found = {rank: testimonies[rank].live[held.name][0] for rank in row}
            if len(set(found.values())) > 1:
                yield Suspect(held.name, found)

    def _is_legal(self, held: Held, suspect: Suspect, testimonies: Sequence[Testimony]) -> bool:
        if held.kind == "parameter" or any(held.name in one.shared for one in testimonies):
            return False
        changed = [held.name in testimonies[rank].changed for rank in suspect.row]
        return self.learned.is_own(held.name, changed)

    def gather(self, trial: Trial, stored_in: tuple[Repo, str] | None) -> Trial:
        """Return the trial with what storage and transport say; every rank must call it."""
        first = (*trial.state, *trial.gradients)[0]
        held = {one.name: one for one in self.holdings.tensors}
        is_sound = probe_transport(held[first.name].find())
        stored = {}
        if stored_in is not None:
            names = dict.fromkeys(one.name for one in trial.state[:MOST])
            stored = {name: read_stored(*stored_in, held[name]) for name in names}
        said = self.ranks.exchange((stored, is_sound))
        return Trial(
            trial.state, trial.gradients, trial.testimonies,
            [one for one, _ in said], [one for _, one in said], trial.rows,
        )  # fmt: skip

    def locate(self, trial: Trial, sights: Sequence[Sight]) -> tuple[Deviation, ...]:
        """Compare the first suspects element by element; every rank must call it."""
        some = trial.list_origins()[:MOST]
        return tuple(self._locate(trial, one, sights) for one in some)

    def _locate(self, trial: Trial, suspect: Suspect, sights: Sequence[Sight]) -> Deviation:
        right = trial.find_right(suspect)
        source = right[0] if right else suspect.row[0]
        held = next(one for one in self.holdings.tensors if one.name == suspect.name)
        if suspect.key is None:
            here, offset = held.local(), 0
        else:
            here, offset = _find_kept(sights, suspect)
        mine = here.cpu() if here is not None and self.ranks.rank in suspect.row else None
        found = self._compare_with(mine, source)
        told = self.ranks.exchange(None if found is None else _place(held, found, offset))
        others = [one for one in (told[rank] for rank in suspect.row) if one is not None]
        index, *_ = [one for one, _ in others if one is not None] or [()]
        differences = [one for _, one in others]
        odd = [rank for rank in suspect.row if suspect.digests[rank] != suspect.digests[source]]
        return Deviation(
            f"gradient of {suspect.name}" if suspect.is_gradient else suspect.name,
            tuple(odd) if right else suspect.row,
            source if right else None,
            index,
            max((one.max_delta for one in differences), default=0.0),
            sum(one.bits for one in differences),
            sum(one.elements for one in differences),
        )

    def _compare_with(self, mine: torch.Tensor | None, source: int) -> BitDifference | None:
        """Return how this rank's tensor differs from that of another rank, None if it has none."""
        data = None if mine is None else view_bytes(mine)
        found = BitDifference()
        for first, block in self.send(mine, source):
            if mine is not None and data is not None and first + len(block) <= len(data):
                ours = data[first : first + len(block)].view(mine.dtype)
                one = compare_bits(ours, block.view(mine.dtype))
                found = found.then(one, first // mine.element_size())
        return None if mine is None else found

    def send(self, mine: torch.Tensor | None, source: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the bytes of a rank's tensor on every rank, by blocks: where each begins, and it."""
        is_source = self.ranks.rank == source
        data = view_bytes(mine) if is_source and mine is not None else None
        size = self.ranks.exchange(None if data is None else len(data))[source] or 0
        for first in range(0, size, _SENT_BYTES):
            block = torch.empty(min(_SENT_BYTES, size - first), dtype=torch.uint8)
            if data is not None:
                block.copy_(data[first : first + len(block)])
            self.ranks.send(block, source)
            yield first, block

    def resync(self, trial: Trial) -> None:
        """Give all ranks the right bits of what differs; every rank must call it."""
        held = {one.name: one for one in self.holdings.tensors}
        for suspect in trial.state:
            here = held[suspect.name].local()
            is_mine = here is not None and self.ranks.rank in suspect.row
            source = trial.find_right(suspect)[0]
            got = bytearray() if is_mine else None
            mine = here.cpu() if here is not None and is_mine else None
            for _, block in self.send(mine, source):
                if got is not None:
                    got += block.numpy().tobytes()
            if here is not None and got:
                right = torch.frombuffer(got, dtype=here.dtype).reshape(here.shape)
                with torch.no_grad():
                    here.copy_(right)


def _join(tables: Iterator[dict[Any, Any]]) -> dict[Any, Any]:
    return {key: value for table in tables for key, value in table.items()}


def _find_kept(sights: Sequence[Sight], suspect: Suspect) -> tuple[torch.Tensor | None, int]:
    """Return what was kept of a tensor or its gradient, and at which element of what is here it begins."""
    for sight in sights:
        for held, piece in sight.pieces:
            here = held.local() if (held.name, piece.part) == suspect.key else None
            for before in sight.before if here is not None else ():
                kept = before.find(held, piece, of_gradient=suspect.is_gradient)
                if kept is not None and here is not None:
                    is_cut = piece.parts > 1 and kept.numel() != here.numel()
                    return kept, piece.range(here.numel())[0] if is_cut else 0
    return None, 0


def _place(
    held: Held, found: BitDifference, offset: int
) -> tuple[tuple[int, ...] | None, BitDifference]:
    """Return the index of the first difference in the whole tensor."""
    tensor, here = held.find(), held.local()
    if found.first is None or here is None:
        return None, found
    offsets: Sequence[int] = ()
    if is_sharded(tensor):
        (chunk,) = tensor.__create_chunk_list__()
        offsets = tuple(chunk.offsets)
    return find_index(found.first + offset, here.shape, offsets), found
