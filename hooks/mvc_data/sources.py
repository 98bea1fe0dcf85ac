"""From the datasets of a loader to the sources of its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from mvc import UsageError
from mvc.sampling import BlockOrder, Source, Stage
from mvc_data.packing import PackedDataset
from mvc_data.shards import ShardCheck, as_checks


def name_checks(datasets: Mapping[str, Any], shards: Any) -> dict[str, ShardCheck]:
    """Return the checks by dataset, maps loaded; that of a single one by the name of its map.

    A stream brings that of its own map, if none is given.
    """
    own = {name: one.check for name, one in datasets.items() if _brings_check(one)}
    if shards is None:
        shards = own if len(datasets) > 1 else [*own.values()]
    if isinstance(shards, Mapping):
        _check_names(datasets, "shards", shards)
        shards = {**(own if len(datasets) > 1 else {}), **shards}
    elif len(datasets) > 1:
        raise UsageError(
            "shards does not say of which dataset", hint=f'shards={{"{min(datasets)}": ...}}'
        )
    found = as_checks(shards)
    if len(found) > len(datasets):
        raise UsageError(f"{len(found)} shard maps for one dataset", hint="pass one")
    return {name: check.load() for name, check in found.items()}


def _brings_check(dataset: object) -> bool:
    return isinstance(getattr(dataset, "check", None), ShardCheck)


def make_sources(
    datasets: Mapping[str, Any],
    weights: Mapping[str, float] | None,
    checks: Mapping[str, ShardCheck],
) -> tuple[Source, ...]:
    """Return the sources of a plan, with the trees of the shard maps that are checked."""
    _check_names(datasets, "weights", weights or {})
    trees = {name: check.source.tree for name, check in checks.items()}  # type: ignore[union-attr]  # loaded
    if len(datasets) == len(trees) == 1:
        trees = dict(zip(datasets, trees.values(), strict=True))
    return tuple(
        Source(
            name,
            _measure(name, one),
            (weights or {}).get(name),
            trees.get(name) or _find_tree(one),
            _find_order(one),
            getattr(one, "id", None) if isinstance(one, PackedDataset) else None,
        )
        for name, one in datasets.items()
    )


def make_stage(stage: object, names: tuple[str, ...]) -> Stage:
    """Return a stage of a curriculum: where it ends, and weights by name of dataset."""
    if not isinstance(stage, (tuple, list)) or len(stage) != 2 or not isinstance(stage[1], Mapping):  # noqa: PLR2004  a pair
        raise UsageError(f"{stage!r} is not a stage", hint="pass (end, {name: weight, ...})")
    until, weights = stage
    for name in set(weights) - set(names):
        raise UsageError(f"a stage has {name!r}, which is not a dataset")
    return Stage(until, tuple(weights.get(name, 0.0) for name in names))


def find_endless(datasets: Mapping[str, Any]) -> bool:
    """Return whether there is one dataset, of unknown length; UsageError if it is one of several."""
    endless = [name for name, one in datasets.items() if getattr(one, "is_endless", False)]
    if endless and len(datasets) > 1:
        raise UsageError(
            f"dataset {endless[0]!r} does not say how many samples it has, and is not alone",
            hint="IterableSource(make, size) takes that many as an epoch",
        )
    return bool(endless)


def _check_names(datasets: Mapping[str, Any], what: str, named: Mapping[str, object]) -> None:
    for name in set(named) - set(datasets):
        raise UsageError(
            f"{what} has {name!r}, which is not a dataset",
            hint=f"the datasets are {', '.join(datasets)}",
        )


def _find_tree(dataset: object) -> str | None:
    """Return the tree hash of the shard map that a dataset says it reads; libraries use the name, too."""
    found = getattr(dataset, "shards", None)
    return found if isinstance(found, str) else None


def _find_order(dataset: Any) -> BlockOrder | None:
    """Return how a dataset that is read in order wants to be shuffled."""
    order = getattr(dataset, "order", None)
    return order if isinstance(order, BlockOrder) else None


def _measure(name: str, dataset: Any) -> int:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"dataset {name!r} has no __getitem__ that finds a sample by its index",
            hint="wrap it: mvc_data.IterableSource(lambda: dataset)",
        )
    try:
        size: int = len(dataset)
        return size
    except TypeError:
        raise UsageError(f"dataset {name!r} has no length") from None
