"""What a ConsistentDataLoader is given: options, checked, and datasets as the sources of its plan."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import DataLoader, IterableDataset

from mvc import UsageError
from mvc.sampling import BlockOrder, Skips, Source, Stage
from mvc_data.packing import PackedDataset
from mvc_data.shards import ShardCheck, as_checks

if TYPE_CHECKING:
    from mvc.sampling import SamplePlan


BATCH_HINT = "pass global_batch_size=..., the samples of all ranks together"
_REPLACED = {
    "batch_size": BATCH_HINT,
    "sampler": "the order comes from seed=...; to leave samples out, pass skip=...",
    "batch_sampler": "the order comes from seed=...; to leave samples out, pass skip=...",
}
_Tail = Literal["short", "drop", "wrap"]
_TAILS: Mapping[object, _Tail] = {False: "short", True: "drop", "wrap": "wrap"}


def find_tail(drop_last: object) -> _Tail:
    """Return what becomes of samples that fill no batch; UsageError if ``drop_last`` does not say."""
    if drop_last not in _TAILS:
        raise UsageError(f"drop_last is {drop_last!r}, not True, False or 'wrap'")
    return _TAILS[drop_last]


def check_options(options: Mapping[str, Any]) -> None:
    """Check that torch's DataLoader has these, and none contradicts a fixed order; UsageError if not."""
    for name, hint in _REPLACED.items():
        if name in options:
            raise UsageError(f"{name} contradicts the order of a ConsistentDataLoader", hint=hint)
    known = inspect.signature(DataLoader.__init__).parameters
    for name in options.keys() - known.keys():
        near = get_close_matches(name, known, 1)
        raise UsageError(
            f"a ConsistentDataLoader has no option {name!r}",
            hint=f"did you mean {near[0]}?" if near else "it has those of torch's DataLoader",
        )
    if not options.get("in_order", True):
        raise UsageError("in_order=False contradicts a fixed order", hint="leave it out")


def check_skips(plan: SamplePlan, skips: object) -> Skips:
    """Return what to skip; UsageError if there are no such samples."""
    if not isinstance(skips, Skips):
        raise UsageError(
            f"{skips!r} is not of class Skips",
            hint="mvc.sampling.Skips().add_samples(name, first, last, reason=...)",
        )
    sizes = {source.name: source.size for source in plan.sources}
    for skipped in skips.ranges:
        if skipped.source not in sizes:
            raise UsageError(
                f"samples of {skipped.source!r} cannot be skipped: it is not a dataset",
                hint=f"the datasets are {', '.join(sizes)}",
            )
        if skipped.last >= sizes[skipped.source]:
            raise UsageError(
                f"sample {skipped.last} of {skipped.source!r} cannot be skipped: "
                f"it has {sizes[skipped.source]} samples",
                hint="their numbers begin at 0",
            )
    return skips


def name_checks(datasets: Mapping[str, Any], shards: Any) -> dict[str, ShardCheck]:
    """Return the checks by dataset, maps loaded; that of a single one by the name of its map.

    A stream brings that of its own map, if none is given.
    """
    brought = {name: getattr(dataset, "check", None) for name, dataset in datasets.items()}
    own = {name: check for name, check in brought.items() if isinstance(check, ShardCheck)}
    if shards is None:
        shards = own if len(datasets) > 1 else [*own.values()]
    if isinstance(shards, Mapping):
        _check_names(datasets, "shards", shards)
        shards = {**(own if len(datasets) > 1 else {}), **shards}
    elif len(datasets) > 1:
        raise UsageError(
            "shards does not name the dataset that it belongs to",
            hint=f'shards={{"{min(datasets)}": ...}}',
        )
    checks = as_checks(shards)
    if len(checks) > len(datasets):
        raise UsageError(f"{len(checks)} shard maps for one dataset", hint="pass one")
    return {name: check.load() for name, check in checks.items()}


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
    sources = []
    for name, dataset in datasets.items():
        # Other libraries may mean something else by these names.
        tree, order = getattr(dataset, "shards", None), getattr(dataset, "order", None)
        sources.append(
            Source(
                name,
                _measure(name, dataset),
                (weights or {}).get(name),
                trees.get(name) or (tree if isinstance(tree, str) else None),
                order if isinstance(order, BlockOrder) else None,
                dataset.id if isinstance(dataset, PackedDataset) else None,
            )
        )
    return tuple(sources)


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
    endless = [name for name, dataset in datasets.items() if getattr(dataset, "is_endless", False)]
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
