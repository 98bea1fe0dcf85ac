"""What can be asked again when ranks differ: the optimizer's step, the transport, and storage.

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
    from mvc import Repo
    from mvc_lab.consistency.held import HeldTensor
    from mvc_lab.consistency.kept import CheckedShare, KeptStep, Key

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
    """What a commit has of a tensor.

    Attributes:
        damage: why it cannot be read, or None.
        digest: that of its bytes, as of the live tensor; None if that cannot be said.
    """

    damage: str | None = None
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
