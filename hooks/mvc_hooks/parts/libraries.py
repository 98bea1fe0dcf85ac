"""What loaders of other libraries need, so that their own state brings back the exact position.

A position is taken from a loader where its state is exact. What each library leaves to be done:

* torchdata's nodes, and a streamed dataset of ``datasets`` that is passed itself, say where they are
  only once they are iterated; until then a state that was loaded is what they are at.
* A streamed dataset starts every pass where a loaded state says, unless its epoch is another.
* streaming keeps the position in memory that is shared by processes, and takes a state of an
  earlier epoch than the one it is in for an old one.
* litdata begins the next pass at once after a state of the end of one, and from another number of
  workers or ranks, or another batch size, goes on at a rounded position.
* Grain's iterators have the state, and its loaders none.
* webdataset has none. Its passes are drawn again, and stages that count passes are set to theirs.

An order that comes from nothing that can be stored is refused when the loader is passed.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, get_worker_info

from mvc import ConflictError, UsageError
from mvc_hooks.parts.reach import GENERATORS, find_reachable
from mvc_hooks.parts.value import Stateful

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNSEEDED = "takes a new seed in every process, so its order cannot be drawn again"
_OLD = ("resampled", "resampled_")


_PREPARE = "_prepare_ex_iterable_for_iteration"
"""What a streamed dataset calls when an iterator begins; there is no public way to learn of it."""


class OwnState:
    """A loader with ``state_dict``, which is right without help."""

    is_within_pass = False
    """Whether the iterator that comes next goes on with a pass, and so draws no seed."""
    is_pass_over = False
    """Whether the state that was loaded is that of the end of a pass, where the next one begins."""
    needs_drawing = False
    """Whether the state is exact only together with generators as of the beginning of a pass."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def capture(self) -> Any:
        """Return the state."""
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        """Take a state, from which the next iterator goes on."""
        self.loader.load_state_dict(state)
        self.note_load()

    def note_load(self) -> None:
        """Note that the loader was given a state."""

    def open(self) -> Any:
        """Return an iterator."""
        return iter(self.loader)

    def tidy(self) -> None:
        """Do what is left to do after a batch."""


class _Nodes(OwnState):
    """``torchdata.nodes.Loader``."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.needs_drawing = bool(find_reachable(loader, (RandomSampler, *GENERATORS)))

    def open(self) -> Any:
        """Return an iterator, which has nothing left if the state is that of the end of a pass."""
        before = self.loader.restart_on_stop_iteration
        self.loader.restart_on_stop_iteration = False
        try:
            return super().open()
        finally:
            self.loader.restart_on_stop_iteration = before

    def capture(self) -> Any:
        pending = self.loader._next_iter_state_dict  # noqa: SLF001  no public way to ask
        return super().capture() if pending is None else pending

    def load(self, state: Any) -> None:
        super().load(state)
        self.loader._iter_for_state_dict = False  # noqa: SLF001  made by a state_dict(), it would ignore the state


class _Streamed(OwnState):
    """``datasets.IterableDataset``."""

    def capture(self) -> Any:
        is_pending = _PREPARE in vars(self.loader)
        return self.loader._starting_state_dict if is_pending else super().capture()  # noqa: SLF001  as above

    def note_load(self) -> None:
        """Forget the state once an iterator has begun from it."""
        setattr(self.loader, _PREPARE, self._prepare)

    def _prepare(self, *args: Any, **options: Any) -> Any:
        delattr(self.loader, _PREPARE)
        prepared = getattr(self.loader, _PREPARE)(*args, **options)
        if get_worker_info() is None:  # in a worker the dataset takes the state after this
            forget_position(self.loader)
        return prepared

    def tidy(self) -> None:
        """Let the next pass of a worker be whole."""
        if _PREPARE not in vars(self.loader):
            forget_position(self.loader)


class _Streaming(OwnState):
    """``streaming.StreamingDataLoader``."""

    def load(self, state: Any) -> None:
        super().load(state)
        self.loader.num_samples_yielded = 0
        self.loader.dataset.next_epoch = max(state["epoch"], 0)
        self.is_within_pass = state["sample_in_epoch"] > 0


class _LitData(OwnState):
    """``litdata.StreamingDataLoader``."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._pending: Any = None
        self._loaded: Any = None

    def capture(self) -> Any:
        self.tidy()
        return super().capture() if self._pending is None else self._pending

    def tidy(self) -> None:
        """Forget the state that was loaded once a batch has come."""
        if self._pending is not None and self._loaded != self._count():
            self._pending = None

    def _count(self) -> Any:
        loader = self.loader
        return loader._num_samples_yielded_streaming, dict(loader._num_samples_yielded_wrapper)  # noqa: SLF001  as above

    def load(self, state: Any) -> None:
        before, now = state["dataset"], self.loader.state_dict()["dataset"]
        for name in ("world_size", "num_workers", "batch_size"):
            then, here = before.get(name), now.get(name)
            if then != here:
                raise ConflictError(
                    f"litdata rounds a position in a pass when {name} changes ({then} in the commit, "
                    f"{here} now), which repeats samples",
                    hint=f"go on with {name} {then}",
                )
        super().load(copy.deepcopy(state))
        self._pending, self._loaded = state, self._count()
        self.is_within_pass = self.loader.restore
        self.is_pass_over = not self.loader.restore and state["num_samples_yielded"] not in (0, {})


_KINDS = {
    ("torchdata", "Loader"): _Nodes,
    ("datasets", "IterableDataset"): _Streamed,
    ("streaming", "StreamingDataLoader"): _Streaming,
    ("litdata", "StreamingDataLoader"): _LitData,
}


def forget_position(dataset: Any) -> None:
    """Let the passes that a streamed dataset of ``datasets`` begins from now on be whole."""
    if getattr(dataset, "_starting_state_dict", None) is not None:
        dataset._starting_state_dict = None  # noqa: SLF001  as above


def make_own_state(loader: Any) -> OwnState:
    """Return what reads and sets the own state of a loader."""
    kinds = {(_root(kind), kind.__name__): kind for kind in type(loader).__mro__}
    return next((make(loader) for key, make in _KINDS.items() if key in kinds), OwnState(loader))


def _root(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def has_inexact_state(loader: Any) -> bool:
    """Return whether a loader's own state loses samples: it leaves out a shuffle buffer."""
    return _root(type(loader)) == "datasets" and _has_buffer(loader)


def has_stateful_iterators(loader: Any) -> bool:
    """Return whether the iterators of a loader, and not it, have the state: those of Grain do."""
    return _root(type(loader)) == "grain"


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
    roots = {_root(kind) for kind in type(value).__mro__}
    return next(iter(roots & {"streaming", "litdata"}), "")


def _is_of_accelerate(loader: object) -> bool:
    """Return whether a loader has a state only for the sake of its class."""
    return hasattr(loader, "base_dataloader")


def _list_stages(loader: Any) -> list[Any]:
    """Return the stages of all pipelines of webdataset that a loader reaches, by their order."""
    found = [loader, *find_reachable(loader, IterableDataset).values()]
    pipelines = [one for one in found if _root(type(one)) == "webdataset"]
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
    """Return what webdataset's stages have counted of passes."""
    return [stage.epoch for stage in _list_counting(loader)]


def restore_passes(loader: Any, counts: list[int]) -> None:
    """Set what webdataset's stages count."""
    for stage, count in zip(_list_counting(loader), counts, strict=False):
        stage.epoch = count


def _list_counting(loader: Any) -> Iterator[Any]:
    for stage in _list_stages(loader):
        if type(getattr(stage, "epoch", None)) is int and not hasattr(stage, "set_epoch"):
            yield stage


def divides(loader: Any) -> bool:
    """Return whether a loader gives a rank only a share of the data, as its library does it."""
    for one in find_reachable(loader, object).values():
        root, held = _root(type(one)), getattr(one, "__dict__", {})
        split = held.get("_distributed") if root == "datasets" else None
        if split is not None and split.world_size > 1:
            return True
        if root == "grain" and getattr(held.get("_shard_options"), "shard_count", 1) > 1:
            return True
        if root == "litdata" and getattr(held.get("distributed_env"), "world_size", 1) > 1:
            return True
    names = [getattr(one, "__name__", "") for one in _list_stages(loader)]
    return "split_by_node" in names
