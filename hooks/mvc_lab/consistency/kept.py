"""What is kept of a share around the optimizer's step, and what can be asked again when ranks differ.

Before the step the parameters of a share, their optimizer state and their gradients are copied, and the gradients
digested; after the step parameters and state are digested. The copies are digested only when there is something
to explain. Then the step, the transport and the storage are tried again.

A shadow of the optimizer (its class, settings and plain attributes) steps copies of a share, in place, from what
was kept. If every rank gets the bits that it has, or one rank alone does not, that says who is right, even with
two ranks. An optimizer whose step couples parameters, needs a closure, or draws numbers does not come to the same
bits from a share: then the healthy ranks do not either, and nothing is concluded.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from mvc import CorruptionError, MvcError
from mvc_hooks.parts.optimizer_state import find_inner
from mvc_hooks.parts.tree import is_sharded, to_local
from mvc_lab.consistency.digest import TensorDigests, digest_on_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.optim import Optimizer

    from mvc import Repo
    from mvc_lab.consistency.held import HeldTensor, Slot, UnitSlice

Key = tuple[str, int]  # name of a tensor, and number of the slice


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
    """Digest a share after the step. ``wholes`` has, for each unit, the number of local elements of its parameter."""
    slices = []
    for held, piece in pieces:
        here = held.local()
        slices.append(None if here is None else cut(here, piece, wholes.get(piece.unit, 0)))
    return CheckedShare(number, tuple(pieces), TensorDigests(slices), tuple(before))


_PLAIN = (bool, int, float, str, type(None))
_ROUNDS = 3
_NUMBERS = 1 << 18
_FACTOR = 0x9E3779B97F4A7C1  # odd: all bits are in use


def step_again(checked_share: CheckedShare) -> dict[Key, bool]:
    """Return for each piece of a share whether the step done again comes to the bits that are there.

    Pieces of an optimizer that cannot step a share are left out.
    """
    live, is_same = checked_share.list_after(), dict[tuple[str, int], bool]()
    for before in checked_share.before:
        stepped = _step(before)
        if stepped is None:
            continue
        keys, results = [], []
        for held, piece in checked_share.pieces:
            at = next((at for at, slot in enumerate(before.slots) if slot.piece == piece), None)
            if at is None or held.kind == "buffer":
                continue
            param, state = stepped[at]
            result = param if held.kind == "parameter" else state.get(held.path[-1])
            is_rest = piece.part > 0 and held.kind == "state"
            if is_rest and isinstance(result, torch.Tensor) and result.numel() != param.numel():
                continue
            keys.append((held.name, piece.part))
            results.append(result if isinstance(result, torch.Tensor) else None)
        digests = TensorDigests(results).read()
        is_same |= {key: live[key] == digest for key, digest in zip(keys, digests, strict=True)}
    return is_same


def _step(before: KeptStep) -> list[tuple[torch.Tensor, dict[Any, Any]]] | None:
    """Return parameters and state after the step, or None if it cannot be done again."""
    if before.has_closure or find_inner(before.optimizer):
        return None
    devices = {kept.param.device for kept in before.slots if kept.param.is_cuda}
    params = []
    for kept in before.slots:
        needs_grad = kept.slot.param.requires_grad
        params.append(torch.nn.Parameter(kept.param.clone(), requires_grad=needs_grad))
        if kept.grad is not None:
            params[-1].grad = kept.grad.clone()
    try:
        shadow = _make_shadow(before, params)
        with torch.random.fork_rng(devices=list(devices)):
            type(shadow).step(shadow)
    except Exception:  # noqa: BLE001  whatever another's optimizer needs that its shadow lacks
        return None
    return [(param.detach(), shadow.state.get(param, {})) for param in params]


def _make_shadow(before: KeptStep, params: list[torch.nn.Parameter]) -> Any:
    optimizer = before.optimizer
    groups = [{**settings, "params": []} for settings in before.settings]
    for kept, param in zip(before.slots, params, strict=True):
        groups[kept.slot.group]["params"].append(param)
    state = {
        param: {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in kept.state.items()
        }
        for kept, param in zip(before.slots, params, strict=True)
        if kept.state
    }
    plain = {key: value for key, value in vars(optimizer).items() if isinstance(value, _PLAIN)}
    shadow: Any = object.__new__(type(optimizer))
    shadow.__setstate__(
        {
            **plain,
            "defaults": dict(optimizer.defaults),
            "state": defaultdict(dict, state),
            "param_groups": [group for group in groups if group["params"]],
        }
    )
    return shadow


def probe_transport(tensor: Any) -> bool:
    """Return whether sums of known numbers over the ranks that hold a tensor come out right here.

    All of these ranks must call it.
    """
    device = to_local(tensor.detach()).device
    is_sound = True
    groups: list[Any] = [None]  # all ranks
    if is_sharded(tensor):
        mesh = tensor.device_mesh
        copied = [
            dim for dim, placement in enumerate(tensor.placements) if placement.is_replicate()
        ]
        groups = [mesh.get_group(dim) for dim in copied if mesh.size(dim) > 1]
    for group in groups:
        ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
        for turn in range(_ROUNDS):
            numbers = torch.arange(turn, turn + _NUMBERS, device=device)
            total = numbers * _FACTOR + ranks.index(distributed.get_rank())
            expected = numbers * _FACTOR * len(ranks) + sum(range(len(ranks)))
            distributed.all_reduce(total, group=group)
            is_sound = is_sound and torch.equal(total, expected)
    return is_sound


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a commit has of a tensor."""

    damage: str | None = None  # why it cannot be read, or None
    # That of its bytes, as of the live tensor; None if that cannot be said.
    digest: bytes | None = None


def read_stored(repo: Repo, commit: str, held: HeldTensor) -> StoredTensor:
    """Read a tensor of the newest commit again, every chunk of it hashed.

    One that the commit does not have is evidence of nothing.
    """
    try:
        value = repo.open_state(commit).load(held.path)
    except CorruptionError as error:
        return StoredTensor(damage=error.message)
    except MvcError:
        return StoredTensor()
    live = held.find()
    is_whole = isinstance(value, torch.Tensor) and isinstance(live, torch.Tensor)
    if not is_whole or is_sharded(live) or live.device.type != "cpu":
        return StoredTensor()
    return StoredTensor(digest=digest_on_host(value))
