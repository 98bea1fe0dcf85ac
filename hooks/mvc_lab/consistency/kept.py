"""What is kept of a share around the optimizer's step, until the ranks have agreed.

KeptStep the step its parameters, their optimizer state and their gradients are copied, and the gradients
digested; after the step parameters and state are digested. TensorDigests of the copies are made only when there
is something to explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mvc_hooks.parts.tree import is_sharded, to_local
from mvc_lab.consistency.digest import TensorDigests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.optim import Optimizer

    from mvc_lab.consistency.held import HeldTensor, Slot
    from mvc_lab.consistency.plan import UnitSlice

Key = tuple[str, int]
"""Name of a tensor, and number of the slice."""


def cut(tensor: torch.Tensor, piece: UnitSlice, whole: int) -> torch.Tensor:
    """Return a slice of a local tensor that has ``whole`` elements, as its parameter has.

    A tensor of another size, such as a step counter, is not cut: slice 0 has all of it, the others nothing.
    """
    if piece.parts == 1:
        return tensor
    if tensor.numel() != whole:
        return tensor if piece.part == 0 else tensor.reshape(-1)[:0]
    first, last = piece.range(whole)
    return tensor.reshape(-1)[first:last]


@dataclass(frozen=True, slots=True, eq=False)
class KeptParameter:
    """A slice of a parameter as it was before the step, with its gradient and its state, all copies."""

    slot: Slot
    piece: UnitSlice
    param: torch.Tensor
    grad: torch.Tensor | None
    state: dict[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class KeptStep:
    """What an optimizer was about to step: its settings, and the parameters of a share."""

    optimizer: Optimizer
    settings: tuple[dict[str, Any], ...]
    has_closure: bool
    slots: tuple[KeptParameter, ...]
    grads: TensorDigests

    def find(
        self, held: HeldTensor, piece: UnitSlice, *, of_gradient: bool = False
    ) -> torch.Tensor | None:
        """Return the slice of a tensor, or of its gradient, as it was before the step."""
        kept = next((slot for slot in self.slots if slot.piece == piece), None)
        if kept is None or held.kind == "buffer":
            return None
        if of_gradient:
            return kept.grad
        value = kept.param if held.kind == "parameter" else kept.state.get(held.path[-1])
        if not isinstance(value, torch.Tensor):
            return None
        is_scalar = piece.part > 0 and held.kind == "state" and value.numel() != kept.param.numel()
        return value.reshape(-1)[:0] if is_scalar else value


def keep_step(
    optimizer: Optimizer, slots: Iterable[tuple[Slot, UnitSlice]], *, has_closure: bool
) -> KeptStep:
    """Copy what an optimizer is about to step."""
    kept = tuple(_keep_slot(slot, piece) for slot, piece in slots)
    settings = tuple(
        {
            key: value.detach().clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
            if key != "params"
        }
        for group in optimizer.param_groups
    )
    grads = TensorDigests(slot.grad for slot in kept)
    return KeptStep(optimizer, settings, has_closure, kept, grads)


def _keep_slot(slot: Slot, piece: UnitSlice) -> KeptParameter:
    param = to_local(slot.param.detach())
    whole = param.numel()
    grad = _find_gradient(slot.param)
    state = dict(slot.state)
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            local = to_local(value.detach())
            is_cut = local.numel() == whole
            state[key] = (cut(local, piece, whole) if is_cut else local).clone()
    here = None if grad is None else cut(grad, piece, whole).clone()
    return KeptParameter(slot, piece, cut(param, piece, whole).clone(), here, state)


def _find_gradient(param: torch.Tensor) -> torch.Tensor | None:
    """Return the local gradient as the optimizer gets it, if it is sharded as its parameter is."""
    grad: Any = param.grad
    if grad is None or getattr(grad, "placements", None) != getattr(param, "placements", None):
        return None
    here = to_local(grad.detach()) if is_sharded(grad) else grad.detach()
    return here if here.layout is torch.strided else None


@dataclass(frozen=True, slots=True, eq=False)
class CheckedShare:
    """A share of this rank's tensors that is checked at one step: copies from before it, digests from after it."""

    number: int
    pieces: tuple[tuple[HeldTensor, UnitSlice], ...]
    after: TensorDigests
    before: tuple[KeptStep, ...]

    @property
    def is_late(self) -> bool:
        """Whether a device is still at work on digests."""
        return self.after.is_late or any(kept.grads.is_late for kept in self.before)

    def read(self) -> list[bytes]:
        """Return all digests: of the tensors after the step, then of the gradients."""
        grads = (digest for kept in self.before for digest in kept.grads.read())
        return [*self.after.read(), *grads]

    def list_after(self) -> dict[Key, bytes]:
        """Return the digest of each piece after the step."""
        keys = [(held.name, piece.part) for held, piece in self.pieces]
        return dict(zip(keys, self.after.read(), strict=True))

    def list_before(self) -> dict[Key, bytes]:
        """Return the digest of each piece before the step."""
        copies = {
            (held.name, piece.part): kept.find(held, piece)
            for kept in self.before
            for held, piece in self.pieces
            if any(slot.piece == piece for slot in kept.slots)
        }
        return dict(zip(copies, TensorDigests(copies.values()).read(), strict=True))

    def list_gradients(self) -> dict[Key, bytes]:
        """Return the digest of the gradient of each parameter."""
        names = {piece: held for held, piece in self.pieces if held.kind == "parameter"}
        return {
            (names[slot.piece].name, slot.piece.part): digest
            for kept in self.before
            for slot, digest in zip(kept.slots, kept.grads.read(), strict=True)
            if slot.piece in names
        }


def digest_share(
    number: int,
    pieces: Sequence[tuple[HeldTensor, UnitSlice]],
    wholes: Mapping[int, int],
    before: Iterable[KeptStep],
) -> CheckedShare:
    """Digest a share after the step.

    ``wholes`` has, for each unit, the number of local elements of its parameter.
    """
    slices = []
    for held, piece in pieces:
        here = held.local()
        slices.append(None if here is None else cut(here, piece, wholes.get(piece.unit, 0)))
    return CheckedShare(number, tuple(pieces), TensorDigests(slices), tuple(before))
