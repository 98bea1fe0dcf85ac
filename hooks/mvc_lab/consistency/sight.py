"""What is kept of a share around the optimizer's step, until the ranks have agreed.

Before the step its parameters, their optimizer state and their gradients are copied, and the gradients
digested; after the step parameters and state are digested. Digests of the copies are made only when there
is something to explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mvc_hooks.parts.tree import is_sharded, to_local
from mvc_lab.consistency.digest import Digests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.optim import Optimizer

    from mvc_lab.consistency.held import Held, Slot
    from mvc_lab.consistency.plan import Slice

Key = tuple[str, int]
"""Name of a tensor, and number of the slice."""


def cut(tensor: torch.Tensor, piece: Slice, whole: int) -> torch.Tensor:
    """Return a slice of a local tensor of ``whole`` elements; another one belongs to slice 0, whole."""
    if piece.parts == 1:
        return tensor
    if tensor.numel() != whole:
        return tensor if piece.part == 0 else tensor.reshape(-1)[:0]
    first, last = piece.range(whole)
    return tensor.reshape(-1)[first:last]


@dataclass(frozen=True, slots=True, eq=False)
class KeptSlot:
    """A slice of a parameter as it was before the step, with its gradient and its state, all copies."""

    slot: Slot
    piece: Slice
    param: torch.Tensor
    grad: torch.Tensor | None
    state: dict[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Before:
    """What an optimizer was given: its settings, and a share of its parameters."""

    optimizer: Optimizer
    settings: tuple[dict[str, Any], ...]
    has_closure: bool
    slots: tuple[KeptSlot, ...]
    grads: Digests

    def find(self, held: Held, piece: Slice, *, of_gradient: bool = False) -> torch.Tensor | None:
        """Return what a tensor or its gradient was before the step, the slice that the share has of it."""
        kept = next((one for one in self.slots if one.piece == piece), None)
        if kept is None or held.kind == "buffer":
            return None
        if of_gradient:
            return kept.grad
        found = kept.param if held.kind == "parameter" else kept.state.get(held.path[-1])
        if not isinstance(found, torch.Tensor):
            return None
        is_scalar = piece.part > 0 and held.kind == "state" and found.numel() != kept.param.numel()
        return found.reshape(-1)[:0] if is_scalar else found


def keep_before(
    optimizer: Optimizer, slots: Iterable[tuple[Slot, Slice]], *, has_closure: bool
) -> Before:
    """Copy what an optimizer is about to step."""
    kept = tuple(_keep_slot(slot, piece) for slot, piece in slots)
    settings = tuple(
        {key: _copy(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    )
    grads = Digests(one.grad for one in kept)
    return Before(optimizer, settings, has_closure, kept, grads)


def _keep_slot(slot: Slot, piece: Slice) -> KeptSlot:
    param = to_local(slot.param.detach())
    whole = param.numel()
    grad = _find_gradient(slot.param)
    state = {
        key: _keep_state(value, piece, whole) if isinstance(value, torch.Tensor) else value
        for key, value in slot.state.items()
    }
    here = None if grad is None else cut(grad, piece, whole).clone()
    return KeptSlot(slot, piece, cut(param, piece, whole).clone(), here, state)


def _keep_state(value: torch.Tensor, piece: Slice, whole: int) -> torch.Tensor:
    here = to_local(value.detach())
    return (cut(here, piece, whole) if here.numel() == whole else here).clone()


def _find_gradient(param: torch.Tensor) -> torch.Tensor | None:
    """Return the local gradient as the optimizer gets it, if it lies as its parameter."""
    grad: Any = param.grad
    if grad is None or getattr(grad, "placements", None) != getattr(param, "placements", None):
        return None
    here = to_local(grad.detach()) if is_sharded(grad) else grad.detach()
    return here if here.layout is torch.strided else None


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """One share at one step, as this rank has it."""

    number: int
    pieces: tuple[tuple[Held, Slice], ...]
    after: Digests
    before: tuple[Before, ...]

    @property
    def is_late(self) -> bool:
        """Whether a device is still at work on digests."""
        return self.after.is_late or any(one.grads.is_late for one in self.before)

    def read(self) -> list[bytes]:
        """Return all digests: of what is after the step, and of the gradients."""
        return [*self.after.read(), *(one for kept in self.before for one in kept.grads.read())]

    def list_after(self) -> dict[Key, bytes]:
        """Return the digest of each piece after the step."""
        keys = [(held.name, piece.part) for held, piece in self.pieces]
        return dict(zip(keys, self.after.read(), strict=True))

    def list_before(self) -> dict[Key, bytes]:
        """Return the digest of each piece before the step."""
        found = [
            ((held.name, piece.part), one.find(held, piece))
            for one in self.before
            for held, piece in self.pieces
            if any(kept.piece == piece for kept in one.slots)
        ]
        return dict(
            zip((key for key, _ in found), Digests(one for _, one in found).read(), strict=True)
        )

    def list_gradients(self) -> dict[Key, bytes]:
        """Return the digest of the gradient of each parameter."""
        names = {piece: held for held, piece in self.pieces if held.kind == "parameter"}
        return {
            (names[kept.piece].name, kept.piece.part): digest
            for one in self.before
            for kept, digest in zip(one.slots, one.grads.read(), strict=True)
            if kept.piece in names
        }


def see(
    number: int,
    pieces: Sequence[tuple[Held, Slice]],
    wholes: Mapping[int, int],
    before: Iterable[Before],
) -> Sight:
    """Digest a share after the step; ``wholes`` has the elements of the parameter of each unit."""
    seen = []
    for held, piece in pieces:
        here = held.local()
        whole = wholes.get(piece.unit, 0)
        seen.append(None if here is None else cut(here, piece, whole))
    return Sight(number, tuple(pieces), Digests(seen), tuple(before))
