"""What belongs to a loader besides its position: generators, epochs, the workers that divide a stream."""

from __future__ import annotations

import hashlib
import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from mvc import ConflictError
from mvc_hooks.parts.reach import GENERATORS, find_reachable
from mvc_hooks.parts.rng import find_attribute, restore_generators
from mvc_hooks.parts.value import Stateful

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

RANDOM_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_GENERATORS = (
    "generator",
    "sampler.generator",
    "batch_sampler.generator",
    "batch_sampler.sampler.generator",
)
_WITH_EPOCH = ("", "sampler", "batch_sampler", "batch_sampler.sampler", "dataset")


def list_generators(loader: object) -> dict[str, Any]:
    """Return path → generator of loader, samplers and dataset."""
    named = {path: find_attribute(loader, path) for path in _GENERATORS}
    found = {path: one for path, one in named.items() if isinstance(one, GENERATORS)}
    known = {id(one) for one in found.values()}
    others = find_reachable(loader, GENERATORS).items()
    return {**found, **{path: one for path, one in others if id(one) not in known}}


def set_generators(
    name: str,
    loader: object,
    states: Mapping[str, Any],
    given: Collection[str],
    *,
    is_final: bool = False,
) -> None:
    """Set the generators of a loader; those that are not stored and were not ``given`` at first go.

    Raises:
        ConflictError: a stored one no longer exists, though this is the final state.
    """
    live = list_generators(loader)
    for path in live.keys() - states.keys() - set(given):
        # Made at its first use, which is not yet.
        above, _, attribute = path.rpartition(".")
        owner = find_attribute(loader, above)
        if hasattr(owner, attribute):
            setattr(owner, attribute, None)
    missing = restore_generators(loader, live, states)
    if missing and is_final:
        raise ConflictError(
            f"{name} had a generator {missing[0]}, which no longer exists",
            hint="make it before the checkpointer",
        )


def find_epoch_owners(loader: object, loaders: Iterable[object]) -> list[Any]:
    """Return what of a loader has ``set_epoch``."""
    owners: list[Any] = []
    for root, path in itertools.product([loader, *loaders], _WITH_EPOCH):
        owner = find_attribute(root, path)
        if hasattr(owner, "set_epoch") and all(owner is not other for other in owners):
            owners.append(owner)
    return owners


def find_ordered(loader: object) -> dict[str, Any]:
    """Return path → what of a loader has a computed order, and so knows its position by itself."""
    found = find_reachable(loader, object).items()
    return {path: one for path, one in found if hasattr(type(one), "make_part")}


def count_divided(loaders: Iterable[DataLoader[Any]]) -> list[int]:
    """Return among how many workers each stream is divided, on which its order depends."""
    streams = [one for one in loaders if isinstance(one.dataset, IterableDataset)]
    return [max(one.num_workers, 1) for one in streams]


def check_divided(name: str, stored: list[int], loaders: Iterable[DataLoader[Any]]) -> None:
    """Check that streams are divided as they were, in the middle of a pass."""
    for then, now in zip(stored, count_divided(loaders), strict=False):
        if then != now:
            raise ConflictError(
                f"{name} is a stream that was divided among {then} workers, and is now among "
                f"{now}: the middle of a pass cannot be drawn again",
                hint=f"go on with num_workers={then} to the end of the pass",
            )


def describe_loader(loader: DataLoader[Any]) -> dict[str, object]:
    """Return what the batches of a loader depend on."""
    facts: dict[str, object] = {
        name: getattr(loader, name) for name in ("batch_size", "drop_last", "num_workers")
    }
    facts |= {name: type(getattr(loader, name)).__name__ for name in ("sampler", "batch_sampler")}
    with suppress(Exception):  # a method of the user's, which may not be there
        facts["items"] = len(loader.dataset)  # type: ignore[arg-type]
    if isinstance(loader.dataset, Subset):
        indices = np.asarray(loader.dataset.indices, np.int64)
        facts["subset"] = hashlib.sha256(indices.tobytes()).hexdigest()[:16]
    return facts


def has_unknown_order(sampler: Any, loader: Any) -> bool:
    """Return whether the order of a sampler depends on generators that it does not store."""
    if isinstance(sampler, Stateful) or type(sampler).__module__.startswith("torchdata"):
        return False
    own = find_reachable(sampler, GENERATORS, without=loader.dataset)
    return isinstance(sampler, RANDOM_SAMPLERS) or bool(own)
