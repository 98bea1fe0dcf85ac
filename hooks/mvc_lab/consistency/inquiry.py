"""What differs between the ranks, where, and why: asked only after a check has found that something does.

Every rank takes part: they exchange digests of all that they hold, then each tensor that differs is sent by one
rank that holds it, and compared by the others.

Some tensors legally differ: buffers that each rank's batches change, state that an optimizer keeps for one rank.
The first two steps of a process are for learning which. What differs at one of them is the rank's own and is not
compared from then on. What was the same at both and changed in between is shared: a later difference is an
alarm. What was the same and did not change, as while a module is frozen, stays open until it changes: then
it is a rank's own if it changed on *all* ranks and differs. A change on one rank alone is an alarm always.
Parameters are never a rank's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from mvc_hooks.parts.tree import is_sharded
from mvc_lab.consistency.digest import (
    BitDifference,
    TensorDigests,
    compare_bits,
    find_index,
    view_bytes,
)
from mvc_lab.consistency.kept import CheckedShare, probe_transport, read_stored, step_again
from mvc_lab.consistency.reports import Deviation
from mvc_lab.consistency.verdict import Suspect, Testimony, Trial, find_unlike

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc import Repo
    from mvc_hooks.ranks.group import Ranks
    from mvc_lab.consistency.held import ComparedTensors, HeldTensor

LOOKS = 2


@dataclass(slots=True)
class Learned:
    """What is known of tensors that are no parameters, alike on all ranks."""

    own: set[str] = field(default_factory=set)  # names of what may differ from rank to rank
    shared: set[str] = field(default_factory=set)  # names of what must not
    _last: dict[str, bytes] = field(default_factory=dict)

    def note_same(self, name: str, mine: bytes) -> None:
        """Note that a tensor is the same on all ranks that hold it."""
        if self._last.get(name, mine) != mine and name not in self.own:
            self.shared.add(name)
        self._last[name] = mine

    def has_changed(self, name: str, mine: bytes) -> bool:
        """Return whether a tensor changed on this rank since it was last the same on all."""
        return self._last.get(name, mine) != mine

    def is_own(self, name: str, changed: Sequence[bool]) -> bool:
        """Return whether a tensor that differs is a rank's own, and learn it.

        ``changed`` says for each rank that holds it whether it changed since it was the same; that it is not
        shared is known.
        """
        if all(changed):
            self.own.add(name)
        return name in self.own

    def forget(self) -> None:
        """Forget how tensors looked last, as after they were restored."""
        self._last.clear()


MOST = 8  # how many tensors are compared element by element
_SENT_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What an inquiry needs; ``rows`` are group → the rows of ranks that hold the same part."""

    ranks: Ranks
    holdings: ComparedTensors
    rows: Mapping[str, Sequence[tuple[int, ...]]]
    learned: Learned

    def testify(self, checked: Sequence[CheckedShare]) -> list[Testimony]:
        """Return what each rank says of itself; every rank must call it."""
        held = self.holdings.tensors
        digests = TensorDigests(tensor.local() for tensor in held).read()
        live = {tensor.name: digest for tensor, digest in zip(held, digests, strict=True)}
        changed = frozenset(
            tensor.name
            for tensor in held
            if tensor.kind != "parameter"
            and self.learned.has_changed(tensor.name, live[tensor.name])
        )
        testimony = Testimony(live, changed, frozenset(self.learned.shared), {}, {}, {}, {})
        for checked_share in checked:
            testimony.before.update(checked_share.list_before())
            testimony.grads.update(checked_share.list_gradients())
            testimony.after.update(checked_share.list_after())
            testimony.redone.update(step_again(checked_share))
        return self.ranks.exchange(testimony)

    def find_suspects(self, testimonies: Sequence[Testimony]) -> Trial:
        """Return what differs and must not."""
        state = []
        for held in self.holdings.tensors:
            for row in self.rows[held.group]:
                suspect = Suspect(
                    held.name, {rank: testimonies[rank].live[held.name] for rank in row}
                )
                if suspect.is_unlike and not self._is_legal(held, row, testimonies):
                    state.append(suspect)
        rows = {held.name: tuple(self.rows[held.group]) for held in self.holdings.tensors}
        return Trial(state, find_unlike(testimonies, rows, "grads"), testimonies, rows=rows)

    def _is_legal(
        self, held: HeldTensor, row: Sequence[int], testimonies: Sequence[Testimony]
    ) -> bool:
        """Return whether a tensor may differ on ranks, and learn it."""
        is_shared = any(held.name in testimony.shared for testimony in testimonies)
        if held.kind == "parameter" or is_shared:
            return False
        changed = [held.name in testimonies[rank].changed for rank in row]
        return self.learned.is_own(held.name, changed)

    def gather(self, trial: Trial, stored_in: tuple[Repo, str] | None) -> Trial:
        """Return the trial with what storage and transport say; every rank must call it."""
        first = (*trial.state, *trial.gradients)[0]
        held = {tensor.name: tensor for tensor in self.holdings.tensors}
        is_sound = probe_transport(held[first.name].find())
        stored = {}
        if stored_in is not None:
            names = dict.fromkeys(suspect.name for suspect in trial.state[:MOST])
            stored = {name: read_stored(*stored_in, held[name]) for name in names}
        answers = self.ranks.exchange((stored, is_sound))
        tables, verdicts = zip(*answers, strict=True)
        return replace(trial, stored=tables, is_sound=verdicts)

    def locate(self, trial: Trial, checked: Sequence[CheckedShare]) -> tuple[Deviation, ...]:
        """Compare the first suspects element by element; every rank must call it."""
        deviations = []
        for suspect in trial.list_origins()[:MOST]:
            right = trial.find_right(suspect)
            source = right[0] if right else suspect.row[0]
            held = next(tensor for tensor in self.holdings.tensors if tensor.name == suspect.name)
            if suspect.key is None:
                here, offset = held.local(), 0
            else:
                here, offset = _find_kept(checked, suspect)
            mine = here.cpu() if here is not None and self.ranks.rank in suspect.row else None
            difference = self._compare_with(mine, source)
            answers = self.ranks.exchange(
                None if difference is None else _place(held, difference, offset)
            )
            heard = [
                answer for answer in (answers[rank] for rank in suspect.row) if answer is not None
            ]
            index, *_ = [index for index, _ in heard if index is not None] or [()]
            differences = [difference for _, difference in heard]
            odd = [rank for rank in suspect.row if suspect.digests[rank] != suspect.digests[source]]
            deviation = Deviation(
                f"gradient of {suspect.name}" if suspect.is_gradient else suspect.name,
                tuple(odd) if right else suspect.row,
                source if right else None,
                index,
                max((difference.max_delta for difference in differences), default=0.0),
                sum(difference.bits for difference in differences),
                sum(difference.elements for difference in differences),
            )
            deviations.append(deviation)
        return tuple(deviations)

    def _compare_with(self, mine: torch.Tensor | None, source: int) -> BitDifference | None:
        """Return how this rank's tensor differs from that of another rank, None if it has none."""
        data = None if mine is None else view_bytes(mine)
        difference = BitDifference()
        for first, block in self.send(mine, source):
            if mine is not None and data is not None and first + len(block) <= len(data):
                ours = data[first : first + len(block)].view(mine.dtype)
                more = compare_bits(ours, block.view(mine.dtype))
                difference = difference.then(more, first // mine.element_size())
        return None if mine is None else difference

    def send(self, mine: torch.Tensor | None, source: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Send a rank's tensor to all ranks; yield its bytes in blocks, each with its offset."""
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
        held = {tensor.name: tensor for tensor in self.holdings.tensors}
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


def _find_kept(
    checked: Sequence[CheckedShare], suspect: Suspect
) -> tuple[torch.Tensor | None, int]:
    """Return the kept copy of a tensor or gradient, and the number of its first element in the local tensor."""
    for checked_share in checked:
        for held, piece in checked_share.pieces:
            here = held.local() if (held.name, piece.part) == suspect.key else None
            for before in checked_share.before if here is not None else ():
                kept = before.find(held, piece, of_gradient=suspect.is_gradient)
                if kept is not None and here is not None:
                    is_cut = piece.parts > 1 and kept.numel() != here.numel()
                    return kept, piece.range(here.numel())[0] if is_cut else 0
    return None, 0


def _place(
    held: HeldTensor, difference: BitDifference, offset: int
) -> tuple[tuple[int, ...] | None, BitDifference]:
    """Return the index of the first difference in the whole tensor."""
    tensor, here = held.find(), held.local()
    if difference.first is None or here is None:
        return None, difference
    offsets: Sequence[int] = ()
    if is_sharded(tensor):
        (chunk,) = tensor.__create_chunk_list__()
        offsets = tuple(chunk.offsets)
    return find_index(difference.first + offset, here.shape, offsets), difference
