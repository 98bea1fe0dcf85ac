"""What the loaders of other libraries draw their order from, as far as a commit has to hold it.

Where a loader's own state is exact the position is taken from it: see ``parts/own_state.py``.

* A streamed dataset of ``datasets`` leaves its shuffle buffer out of its state. Its passes are drawn again.
* webdataset has no state. Its passes are drawn again, and stages that count passes are set to theirs.
* Fabric's loaders count passes, and tell a DistributedSampler that its epoch is this number.
* Grain's iterators have the state, and its loaders none.

An order that comes from nothing that can be stored is refused when the loader is passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from mvc import UsageError
from mvc_hooks.parts.own_state import find_root
from mvc_hooks.parts.reach import find_reachable
from mvc_hooks.parts.value import Stateful

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNSEEDED = "takes a new seed in every process, so its order cannot be drawn again"
_OLD = ("resampled", "resampled_")


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
        one = pending.pop()
        if type(one).__name__ == "BufferShuffledExamplesIterable":
            return True
        pending += [above] if (above := getattr(one, "ex_iterable", None)) is not None else []
        pending += list(getattr(one, "ex_iterables", None) or ())
    return False


def refuse_inexact(name: str, loader: Any) -> None:
    """Check that the order of a loader can come back; UsageError if its library makes that impossible."""
    for one in (loader, *find_reachable(loader, DataLoader).values()):
        dataset = getattr(one, "dataset", one)
        library = _find_library(dataset) if isinstance(dataset, IterableDataset) else ""
        is_kept = one is loader or (isinstance(loader, Stateful) and not _is_of_accelerate(loader))
        if library and not (is_kept and one is not dataset and library == _find_library(one)):
            raise UsageError(
                f"{name} has a {type(dataset).__name__} of {library}, whose position is known to its "
                "own loader only",
                hint=f"pass the {library}.StreamingDataLoader itself as dataloader",
            )
        if hasattr(one, "next_iter_state") and _has_buffer(dataset):
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


def _is_of_accelerate(loader: object) -> bool:
    """Return whether a loader has a state only for the sake of its class."""
    return hasattr(loader, "base_dataloader")


def _list_stages(loader: Any) -> list[Any]:
    """Return the stages of all pipelines of webdataset that a loader reaches, by their order."""
    found = [loader, *find_reachable(loader, IterableDataset).values()]
    pipelines = [one for one in found if find_root(type(one)) == "webdataset"]
    return [stage for one in pipelines for stage in getattr(one, "pipeline", ())]


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
    seeds = [getattr(one, "kw", {}).get("seed", getattr(one, "seed", None)) for one in stages]
    return [int(seed) for seed in seeds if isinstance(seed, (int, str)) and str(seed).isdigit()]


def capture_passes(loader: Any) -> list[int]:
    """Return what webdataset's stages and Fabric's loaders have counted of passes."""
    return [getattr(one, name) for one, name in _list_counting(loader)]


def restore_passes(loader: Any, counts: list[int]) -> None:
    """Set what webdataset's stages and Fabric's loaders count."""
    for (one, name), count in zip(_list_counting(loader), counts, strict=False):
        setattr(one, name, count)


def _list_counting(loader: Any) -> Iterator[tuple[Any, str]]:
    """Yield what counts passes, and the name of its count."""
    for stage in _list_stages(loader):
        if type(getattr(stage, "epoch", None)) is int and not hasattr(stage, "set_epoch"):
            yield stage, "epoch"
    for one in find_reachable(loader, object).values():
        if type(one).__name__ == "_FabricDataLoader":
            yield one, "_num_iter_calls"


def divides(loader: Any) -> bool:
    """Return whether a loader gives a rank only a share of the data, as its library does it."""
    for one in find_reachable(loader, object).values():
        root, held = find_root(type(one)), getattr(one, "__dict__", {})
        split = held.get("_distributed") if root == "datasets" else None
        if split is not None and split.world_size > 1:
            return True
        if root == "grain" and getattr(held.get("_shard_options"), "shard_count", 1) > 1:
            return True
        if root == "litdata" and getattr(held.get("distributed_env"), "world_size", 1) > 1:
            return True
    names = [getattr(one, "__name__", "") for one in _list_stages(loader)]
    return "split_by_node" in names
