"""What belongs to one rank of a run, told apart from what all ranks share.

Parameters and optimizer state are the same everywhere, or DTensors, of which each rank has a part. A
rank's own are generators, the position in the data, gradients that accumulate and are not averaged
yet, errors of a compressing hook, and buffers that its batches changed. Those of rank 0 lie where those
of a single process would be. The other ranks' are states of their own, ``ranks/1/state.json`` and
so on, of *pieces*: ``{"pieces": [{"at": ["rng"], "value": ...}, ...]}``. DTensors among them are
shared like all DTensors: ``shared`` says where, and the value has None there.

Optimizer state need not lie on the ranks as its parameter does (``describe_placed``). It comes back
sharded as its parameter, because most of it is, and because that fits any number of ranks.
Tensor parallelism makes exceptions: the gradient of an embedding that is sharded by rows is whole on
every rank if what it returns is sharded by sequence, and so is a momentum that began as a copy of it. The
values are the same either way, but an optimizer that looks at a matrix as a whole (Muon) then adds up in
another order. So a commit of several ranks says which state lies otherwise, and a run whose
parameters lie as they did then has it so again.

A run in which each rank has a model of its own would come back wrong. So whole tensors have to be the same on all ranks, parts of DTensors on those that hold the same part. The
bytes are compared before the first commit, and once more after the first steps, when optimizers have their
state; the forms again whenever a commit has failed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import blake3
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data.distributed import DistributedSampler

from mvc import FormatError, UnsupportedError
from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.loaders import divides
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.names import clean_name
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.optimizer_state import index_parameters
from mvc_hooks.parts.part import DETAILS, Part, find_parts, flatten_parts
from mvc_hooks.parts.reach import find_reachable
from mvc_hooks.parts.shards import COPIED, spell_placements
from mvc_hooks.parts.tree import (
    ABSENT,
    Steps,
    find_at,
    format_path,
    is_array,
    is_sharded,
    list_items,
    map_leaves,
    outline,
    read_bits,
    walk_leaves,
)
from mvc_hooks.ranks.pieces import PIECES, RANKS, make_piece

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mvc_hooks.ranks.group import Ranks


_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))


def describe_placed(parts: Mapping[Steps, OptimizerPart]) -> list[dict[str, Any]]:
    """Return which state of optimizers lies otherwise than its parameter, to be committed."""
    described = []
    for path, part in parts.items():
        placed: list[list[Any]] = [
            [index, name, spell_placements(value)]
            for (index, name), value, param in part.list_sharded()
            if value.placements != param.placements and value.device_mesh == param.device_mesh
        ]
        state = [
            entry for entry in placed if all(how == COPIED or type(how) is int for how in entry[2])
        ]
        if state:
            layout = _digest_layout(part.optimizer)
            described.append({"at": list(path), "layout": layout, "state": state})
    return described


def expect_placed(stored: object, parts: Mapping[Steps, OptimizerPart]) -> None:
    """Tell optimizers how stored state lay, those whose parameters lie as they did then."""
    try:
        known = {tuple(entry["at"]): entry for entry in stored or ()}  # type: ignore[attr-defined]
        for path, part in parts.items():
            described = known.get(path)
            is_same = described is not None and described["layout"] == _digest_layout(
                part.optimizer
            )
            part.placed = (
                _parse_placed(described["state"], part.optimizer) if described and is_same else {}
            )
    except (TypeError, LookupError, ValueError):
        raise FormatError("the commit does not say how optimizer state lay on the ranks") from None


def _parse_placed(stored: Any, optimizer: Optimizer) -> dict[tuple[object, object], list[object]]:
    params: dict[int, Any] = index_parameters(optimizer)
    placements = {(index, name): list(placed) for index, name, placed in stored}
    for (index, _), placed in placements.items():
        possible = (COPIED, *range(params[index].ndim))
        if len(placed) != params[index].device_mesh.ndim or not set(placed) <= set(possible):
            raise ValueError("no placements of this parameter")
    return placements


def _digest_layout(optimizer: Optimizer) -> str:
    """Return what tells apart ways to lay an optimizer's parameters out on ranks."""
    params: dict[int, Any] = index_parameters(optimizer)
    layout = [
        (
            index,
            (*param.device_mesh.shape, param.device_mesh.mesh_dim_names),
            spell_placements(param),
        )
        for index, param in params.items()
        if is_sharded(param)
    ]
    return hashlib.sha256(repr(layout).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RankView:
    """A captured state as one rank commits it."""

    shared: dict[str, Any]  # the state of all ranks; that of rank 0 has its own in it
    rank: int = 0
    ranks: int = 1
    own: dict[str, Any] | None = None  # what a rank other than 0 has besides, or None
    private: tuple[str, ...] = ()  # top-level names that rank 0 alone has in ``shared``
    # Paths in ``shared``, the same on all ranks, where the arrays of rank 0 count.
    first: tuple[Steps, ...] = ()

    def terms(self) -> dict[str, Any]:
        """Return what ``mvc.training.layout_state`` is told besides the shared state."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "shared"
        }


class OwnParts:
    """Which parts of a run may differ from rank to rank."""

    def __init__(
        self,
        parts: Mapping[str, Part],
        extras: Collection[str] = (),
        records: Collection[Steps] = (),
    ) -> None:
        """Take the parts, and top-level names that rank 0 alone has to commit, but for paths in them."""
        self._extras, self.records = tuple(extras), tuple(records)
        self._modules: list[tuple[Steps, ModulePart]] = []
        self.optimizers: dict[Steps, OptimizerPart] = {}
        self.parts: dict[Steps, Part] = {}
        shared: set[object] = set()
        for entry in flatten_parts(parts):
            if isinstance(entry.part, ModulePart):
                self._modules.append((entry.path, entry.part))
            elif isinstance(entry.part, OptimizerPart):
                self.optimizers[entry.path] = entry.part
            # Optimizers, schedulers and scalers compute the same on every rank.
            value = getattr(entry.part, "_value", None)
            is_same = isinstance(entry.part, (ModulePart, OptimizerPart)) or isinstance(
                value, (Optimizer, LRScheduler, torch.amp.GradScaler)
            )
            if is_same or entry.path[0] == DETAILS:
                shared.add(entry.path[0])
            else:
                self.parts[entry.path] = entry.part
        self.names = {str(path[0]) for path in self.parts if path[0] not in shared}
        """Top-level names below which everything belongs to one rank."""
        self._buffers: dict[Steps, tuple[object, list[Steps]]] = {}
        self._loaders: list[Any] = []
        self._split: list[list[object]] = []

    def find(self, state: Mapping[str, Any]) -> list[Steps]:
        """Return the paths at which a captured state may differ from rank to rank."""
        paths = []
        for path, part in self._modules:
            # The entries of a state dict that are not parameters, looked up when its names change.
            held = find_at(state, path)
            names, buffers = self._buffers.get(path, (None, []))
            if names != held.keys():
                params = part.module.named_parameters(remove_duplicate=False)
                known = {clean_name(name) for name, _ in params}
                buffers = [(*path, name) for name in held if name not in known]
                self._buffers[path] = dict.fromkeys(held).keys(), buffers
            paths += buffers
        return [*paths, *self.parts]

    def view(
        self, state: Mapping[str, Any], rank: int, size: int, buckets: Sequence[object] = ()
    ) -> RankView:
        """Return a captured state as that rank commits it, with the buckets of gradients."""
        paths = self.find(state)
        mixed = {name for name in self.names if has_shards(state.get(name))}
        names = self.names - mixed
        first = (*(path for path in paths if path[0] not in names), (DETAILS,))
        private = (*sorted(names), *self._extras)
        if rank == 0:
            shared = {**state, RANKS: self._describe(size, buckets)}
            return RankView(shared, 0, size, None, private, first)
        shared = {name: value for name, value in state.items() if name not in private}
        values = ((path, find_at(state, path)) for path in (*paths, *self.records))
        own = {PIECES: [make_piece(path, value) for path, value in values if value is not ABSENT]}
        return RankView(shared, rank, size, own, (), first)

    def _describe(self, size: int, buckets: Sequence[object]) -> dict[str, Any]:
        """Return what a commit says about its ranks."""
        loaders = [part.loader for part in self.parts.values() if isinstance(part, DataPart)]
        # A library may bind them late. Looking into them takes a while.
        if list(map(id, self._loaders)) != list(map(id, loaders)):
            self._loaders = loaders
            self._split = [list(path) for path, part in self.parts.items() if splits_data(part)]
        facts = {
            "split": self._split,
            "placed": describe_placed(self.optimizers),
            "buckets": buckets,
        }
        return {"size": size, **{name: value for name, value in facts.items() if value}}


def splits_data(part: Part) -> bool:
    """Return whether a loader gives every rank a share of the data that depends on their number."""
    if not isinstance(part, DataPart):
        return False
    samplers = find_reachable(part.loader, (DistributedSampler,))
    return any(sampler.num_replicas > 1 for sampler in samplers.values()) or divides(part.loader)


def has_shards(value: object) -> bool:
    """Return whether a DTensor is anywhere in a nested value."""
    if isinstance(value, (list, tuple)) and _PLAIN.issuperset(map(type, value)):
        return False  # positions in the data may be long lists of numbers
    items = None if isinstance(value, torch.nn.Module) else list_items(value)
    if items is None:
        return is_sharded(value)
    return any(has_shards(item) for _, item in items)


_HINT = (
    "every rank of a run has the same parts, and trains one model: wrap it in DistributedDataParallel, "
    "or shard it with fully_shard or parallelize_module"
)
_HINT_STAGES = (
    "every rank of a run has the same parts, and trains one model; what has stages of a pipeline, each on ranks of its "
    "own, is saved through mvc_hooks.dcp"
)
_HINT_OPTIMIZER = (
    "an optimizer that keeps the state of a parameter on one rank alone cannot be committed: use one that has "
    "all of it on every rank, or shard the model by fully_shard"
)


def check_replicas(ranks: Ranks, parts: Mapping[str, Part], state: Mapping[str, Any]) -> None:
    """Compare parameters and optimizer state of all ranks; UnsupportedError names what differs."""
    every = ranks.exchange(dict(_digest_parts(parts, state)))
    seen: dict[tuple[str, str], tuple[int, bytes]] = {}
    for rank, digests in enumerate(every):
        for name in {**every[0], **digests}:
            if name not in every[0] or name not in digests:
                here, away = (0, rank) if name in every[0] else (rank, 0)
                raise UnsupportedError(
                    f"rank {here} has {name}, and rank {away} has not",
                    hint=_HINT_OPTIMIZER if _is_of_optimizer(name, parts) else _HINT_STAGES,
                )
            place, digest = digests[name]
            other, expected = seen.setdefault((name, place), (rank, digest))
            if digest == expected:
                continue
            raise UnsupportedError(
                f"{name} differs between rank {other} and rank {rank}",
                hint=_HINT_OPTIMIZER if _is_of_optimizer(name, parts) else _HINT,
            )


def _is_of_optimizer(name: str, parts: Mapping[str, Part]) -> bool:
    paths = (format_path(path) for path, _ in find_parts(parts, OptimizerPart))
    return any(f"{name}.".startswith(f"{path}.") for path in paths)


def _digest_parts(
    parts: Mapping[str, Part], state: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Yield name, which part of it is here, and a hash of that; what is not sharded is here whole."""
    for entry in flatten_parts(parts):
        if isinstance(entry.part, ModulePart):
            for name, param in entry.part.module.named_parameters():
                yield from _digest_value((*entry.path, name), param)
        elif isinstance(entry.part, OptimizerPart):
            yield from _digest_value(entry.path, find_at(state, entry.path))


def _digest_value(path: Steps, value: Any) -> Iterator[tuple[str, tuple[str, bytes]]]:
    for place, leaf in walk_leaves(value):
        if is_sharded(leaf):
            boxes = [(list(box.offsets), list(box.sizes)) for box in leaf.__create_chunk_list__()]
            name = f"{leaf.dtype} {list(leaf.shape)} {boxes}"
            yield format_path((*path, *place)), (name, digest_state(leaf))
    rest = map_leaves(value, lambda leaf, _: None if is_sharded(leaf) else leaf)
    if rest is not None:
        yield format_path(path), ("", digest_state(rest))


def digest_state(value: Any) -> bytes:
    """Return a hash of a nested state; equal hashes mean equal bits."""
    hasher = blake3.blake3()
    items = list_items(value)
    if items is None:
        what, data = read_bits(value)
        hasher.update(what.encode())
        hasher.update(data)
    else:
        hasher.update(f"{type(value).__name__} {len(items)}".encode())
    for key, item in items or ():
        hasher.update(repr(key).encode())
        hasher.update(digest_state(item))
    return hasher.digest()


def find_difference(ranks: Ranks, view: RankView) -> str | None:
    """Return in words where the forms of the ranks' states first differ; every rank must call it."""
    forms = [
        (format_path(path), f"{outline(leaf)}{getattr(leaf, 'placements', '')}")
        for path, leaf in walk_leaves(view.shared)
        if path[0] not in view.private and is_array(leaf)
    ]
    digests = ranks.exchange(digest_state(forms))
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is None:
        return None
    every = ranks.exchange(forms if ranks.rank in (0, other) else None)
    ours, theirs = dict(every[0]), dict(every[other])
    for path in {**ours, **theirs}:
        if ours.get(path) != theirs.get(path):
            here, there = (form.get(path, "missing") for form in (ours, theirs))
            return f"{path} is {here} on rank 0 and {there} on rank {other}"
    return f"rank {other} has its tensors in another order than rank 0"
