"""What belongs to a loader besides its position: generators, epochs, the workers that divide a stream.

Loaders of other libraries have more that their order depends on, as far as a commit has to hold it. Where a loader's own state is exact the position is taken from it: see ``parts/own_state.py``.

* A streamed dataset of ``datasets`` leaves its shuffle buffer out of its state. Its passes are drawn again.
* webdataset has no state. Its passes are drawn again, and stages that count passes are set to theirs.
* Fabric's loaders count passes, and tell a DistributedSampler that its epoch is this number.
* Grain's iterators have the state, and its loaders none.

An order that comes from nothing that can be stored is refused when the loader is passed.
"""

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

from mvc import ConflictError, UsageError
from mvc_hooks.parts.own_state import find_root
from mvc_hooks.parts.reach import GENERATORS, find_reachable
from mvc_hooks.parts.rng import find_attribute, restore_generators
from mvc_hooks.parts.value import Stateful

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

RANDOM_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_GENERATORS = (
    "generator",
    "sampler.generator",
    "batch_sampler.generator",
    "batch_sampler.sampler.generator",
)
_WITH_EPOCH = ("", "sampler", "batch_sampler", "batch_sampler.sampler", "dataset")
_UNSEEDED = "takes a new seed in every process, so its order cannot be drawn again"
_OLD = ("resampled", "resampled_")


def list_generators(loader: object) -> dict[str, Any]:
    """Return path → generator of loader, samplers and dataset."""
    named = {path: find_attribute(loader, path) for path in _GENERATORS}
    generators = {path: value for path, value in named.items() if isinstance(value, GENERATORS)}
    known = {id(generator) for generator in generators.values()}
    others = find_reachable(loader, GENERATORS).items()
    return {
        **generators,
        **{path: generator for path, generator in others if id(generator) not in known},
    }


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
    reachable = find_reachable(loader, object).items()
    return {path: value for path, value in reachable if hasattr(type(value), "make_part")}


def count_divided(loaders: Iterable[DataLoader[Any]]) -> list[int]:
    """Return among how many workers each stream is divided, on which its order depends."""
    streams = [loader for loader in loaders if isinstance(loader.dataset, IterableDataset)]
    return [max(loader.num_workers, 1) for loader in streams]


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


def has_inexact_state(loader: Any) -> bool:
    """Return whether a loader's own state loses samples: it leaves out a shuffle buffer."""
    return find_root(type(loader)) == "datasets" and _has_buffer(loader)


def has_stateful_iterators(loader: Any) -> bool:
    """Return whether the iterators of a loader, and not it, have the state: those of Grain do."""
    return find_root(type(loader)) == "grain"


def _has_buffer(dataset: Any) -> bool:
    """Return whether a streamed dataset of ``datasets`` shuffles in a buffer."""
    pending = [getattr(dataset, "_ex_iterable", None)]
    while pending:
        iterable = pending.pop()
        if type(iterable).__name__ == "BufferShuffledExamplesIterable":
            return True
        pending += [above] if (above := getattr(iterable, "ex_iterable", None)) is not None else []
        pending += list(getattr(iterable, "ex_iterables", None) or ())
    return False


def refuse_inexact(name: str, loader: Any) -> None:
    """Check that the order of a loader can come back; UsageError if its library makes that impossible."""
    for reached in (loader, *find_reachable(loader, DataLoader).values()):
        dataset = getattr(reached, "dataset", reached)
        library = _find_library(dataset) if isinstance(dataset, IterableDataset) else ""
        # A loader of Accelerate's has a state only for the sake of its class.
        is_kept = reached is loader or (
            isinstance(loader, Stateful) and not hasattr(loader, "base_dataloader")
        )
        if library and not (
            is_kept and reached is not dataset and library == _find_library(reached)
        ):
            raise UsageError(
                f"{name} has a {type(dataset).__name__} of {library}, whose position is known to its "
                "own loader only",
                hint=f"pass the {library}.StreamingDataLoader itself as dataloader",
            )
        if hasattr(reached, "next_iter_state") and _has_buffer(dataset):
            raise UsageError(
                f"{name} is a StatefulDataLoader over a shuffle buffer, which it does not store",
                hint="use torch's DataLoader, and draw the batches with next_batch()",
            )
    for stage in _list_stages(loader):
        _refuse_unseeded(name, stage)


def _find_library(value: object) -> str:
    """Return which of the libraries with loaders of their own has a class of a value."""
    roots = {find_root(kind) for kind in type(value).__mro__}
    return next(iter(roots & {"streaming", "litdata"}), "")


def _list_stages(loader: Any) -> list[Any]:
    """Return the stages of all pipelines of webdataset that a loader reaches, by their order."""
    reachable = [loader, *find_reachable(loader, IterableDataset).values()]
    pipelines = [value for value in reachable if find_root(type(value)) == "webdataset"]
    return [stage for pipeline in pipelines for stage in getattr(pipeline, "pipeline", ())]


def _refuse_unseeded(name: str, stage: Any) -> None:
    function = getattr(getattr(stage, "f", None), "__name__", "")
    keywords = getattr(stage, "kw", {})
    if function == "_shuffle" and keywords.get("seed") is None and keywords.get("rng") is None:
        raise UsageError(
            f"{name} has webdataset's shuffle(), which {_UNSEEDED}",
            hint="pass seed=, or for another order in each pass compose(webdataset.detshuffle(...))",
        )
    is_open = type(stage).__name__ == "ResampledShards" and not stage.deterministic
    if is_open or function in _OLD:
        raise UsageError(
            f"{name} has shards resampled by webdataset, which {_UNSEEDED}",
            hint="make the pipeline with webdataset.ResampledShards(urls, deterministic=True)",
        )


def describe_order(loader: Any) -> list[int]:
    """Return the seeds of webdataset's stages, each of which it may have made up itself."""
    stages = _list_stages(loader)
    seeds = [getattr(stage, "kw", {}).get("seed", getattr(stage, "seed", None)) for stage in stages]
    return [int(seed) for seed in seeds if isinstance(seed, (int, str)) and str(seed).isdigit()]


def capture_passes(loader: Any) -> list[int]:
    """Return what webdataset's stages and Fabric's loaders have counted of passes."""
    return [getattr(owner, name) for owner, name in _list_counting(loader)]


def restore_passes(loader: Any, counts: list[int]) -> None:
    """Set what webdataset's stages and Fabric's loaders count."""
    for (owner, name), count in zip(_list_counting(loader), counts, strict=False):
        setattr(owner, name, count)


def _list_counting(loader: Any) -> Iterator[tuple[Any, str]]:
    """Yield what counts passes, and the name of its count."""
    for stage in _list_stages(loader):
        if type(getattr(stage, "epoch", None)) is int and not hasattr(stage, "set_epoch"):
            yield stage, "epoch"
    for value in find_reachable(loader, object).values():
        if type(value).__name__ == "_FabricDataLoader":
            yield value, "_num_iter_calls"


def divides(loader: Any) -> bool:
    """Return whether a loader gives a rank only a share of the data, as its library does it."""
    for value in find_reachable(loader, object).values():
        root, held = find_root(type(value)), getattr(value, "__dict__", {})
        split = held.get("_distributed") if root == "datasets" else None
        if split is not None and split.world_size > 1:
            return True
        if root == "grain" and getattr(held.get("_shard_options"), "shard_count", 1) > 1:
            return True
        if root == "litdata" and getattr(held.get("distributed_env"), "world_size", 1) > 1:
            return True
    names = [getattr(stage, "__name__", "") for stage in _list_stages(loader)]
    return "split_by_node" in names
