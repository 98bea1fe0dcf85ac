"""The buckets of DistributedDataParallel (DDP), which a new process has to have as the last one had.

DDP sums gradients bucket by bucket. Where a gradient lies in its bucket says at which rank its sum
begins, so with more than two ranks it says how the sum is rounded. In the first backward pass DDP takes
the parameters in the order in which they were registered; it then makes its buckets again, once, in the order
in which that pass was done with them (``Reducer::rebuild_buckets`` of torch). A process that resumes in
the middle of a run would go through this again, and its first steps would come out otherwise.

So commits say which parameter is in which bucket, and before a resume DDP gets a backward pass of no
gradients that is done with them in that order. If DDP finds unused parameters, its first buckets are its last.
A static graph counts in its first passes how often each parameter is used: only a real pass will do.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.parallel import DistributedDataParallel

from mvc import FormatError
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.names import name_parameters
from mvc_hooks.parts.part import Part, find_parts
from mvc_hooks.parts.tree import format_path, is_sharded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Order = list[list[str]]
    _Kind = tuple[torch.dtype, torch.device]

IN_ANY_ORDER = 2  # up to this count, numbers have the same sum in any order
_LOOKS = 2  # a run may begin before there is a DDP; at its second commit it has trained
_SHOWN = 6  # sizes of buckets that one line says
_LOST = "gradients may be summed in another order than before the resume: "
_NOT_THERE = f"{_LOST}there was no DistributedDataParallel yet; make it before the checkpointer"
_NOT_MADE = (
    f"{_LOST}only training tells DistributedDataParallel which is in use; pass warm_up=..., a "
    "function that runs one forward and backward pass"
)


class Buckets:
    """The buckets of all DDPs that hold parameters of a run."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts
        self._known: WeakKeyDictionary[DistributedDataParallel, Order] = WeakKeyDictionary()
        self._unknown: list[tuple[DistributedDataParallel, list[str]]] = []
        self._looks = 0

    def plan(self) -> dict[str, object]:
        """Return the settings of each DDP and the sizes of its first buckets, by its number."""
        return {str(number): _plan(ddp) for number, (ddp, _) in enumerate(self._find())}

    def describe(self) -> list[Order]:
        """Return the names of the parameters in each bucket of each DDP; every rank must call it.

        DDP makes its buckets at the forward pass that follows the first backward pass. If that was
        the last thing to happen, they are made now.
        """
        if self._looks < _LOOKS:
            self._looks += 1
            self._unknown = [pair for pair in self._find() if pair[0] not in self._known]
        for ddp, names in list(self._unknown):
            order = _read(ddp, names)
            if order is not None:
                self._known[ddp] = order
                self._unknown.remove((ddp, names))
        return sorted(self._known.values())

    def restore(self, stored: object) -> list[str]:
        """Make all DDPs use the buckets that a commit names; every rank must call it.

        Returns:
            In words, why sums may not come out as before.

        Raises:
            FormatError: the commit names no buckets.
        """
        given: Any = stored
        is_list = isinstance(given, list) and all(isinstance(order, list) for order in given)
        lists = [bucket for order in given for bucket in order] if is_list else [None]
        if not all(
            isinstance(bucket, list) and bucket and set(map(type, bucket)) <= {str}
            for bucket in lists
        ):
            raise FormatError("the commit does not say which gradients were summed together")
        orders = {frozenset(_flatten(order)): order for order in given}
        left = set(orders)
        doubts: list[str] = []
        for ddp, names in self._find():
            order = orders.get(frozenset(names))
            left.discard(frozenset(names))
            has_trained = ddp in self._known or _read(ddp, names) is not None
            if has_trained and order is None and _reset_buckets(ddp):
                # It had not trained yet when the commit was made.
                self._known.pop(ddp, None)
                self._unknown.append((ddp, names))
            if has_trained or order is None:
                continue  # its buckets are those of the commit, or the first ones, as then
            if _make(ddp, names, order):
                self._known[ddp] = order
            else:
                doubts.append(_NOT_MADE)
        if left and not any(map(is_sharded, self._name_parameters().values())):
            doubts.append(_NOT_THERE)
        return list(dict.fromkeys(doubts))

    def list_models(self) -> list[DistributedDataParallel]:
        """Return the DDPs that hold parameters of the run, on all ranks in one order."""
        return [ddp for ddp, _ in self._find()]

    def _find(self) -> list[tuple[DistributedDataParallel, list[str]]]:
        """Return all DDPs of the run, with the names of the parameters that each of them reduces.

        Users may pass a model that they have wrapped, or the model inside, which does not know of it.
        """
        models = list(self._look())
        if len({tuple(names) for _, names in models}) < len(models):
            models.clear()
            gc.collect()  # one that nothing holds any more may be gone on another rank
            models += self._look()
        return sorted(
            models, key=lambda pair: pair[1]
        )  # all ranks in one order: making is a message

    def _look(self) -> Iterator[tuple[DistributedDataParallel, list[str]]]:
        known = {id(param): name for name, param in self._name_parameters().items()}
        kinds = set(_list_kinds(DistributedDataParallel))
        for ddp in gc.get_objects():
            if type(ddp) in kinds:  # issubclass takes half as long again
                names = [known.get(id(param), "") for param in _list_reduced(ddp)]
                if names and all(names):
                    yield ddp, names

    def _name_parameters(self) -> dict[str, torch.nn.Parameter]:
        return {
            f"{format_path(path)}.{name}": param
            for path, part in find_parts(self._parts, ModulePart)
            for name, param in name_parameters(part.module).items()
        }


def _list_kinds(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _list_kinds(subclass)


def _plan(ddp: Any) -> dict[str, object]:
    with contextlib.suppress(AttributeError, LookupError, RuntimeError):  # not what torch promises
        facts = ddp._get_ddp_logging_data()  # noqa: SLF001  torch's documentation has users call it
        sizes = [
            int(size) for size in str(facts.get("bucket_sizes", "")).split(",") if size.strip()
        ]
        shown = ", ".join(map(str, sizes[:_SHOWN])) + (", ..." if len(sizes) > _SHOWN else "")
        return {
            "bucket_cap_mb": facts["bucket_cap_bytes"] / 2**20,
            "buckets": f"{len(sizes)} of {sum(sizes)} bytes: {shown}",
            "static_graph": bool(ddp.static_graph),
            "find_unused_parameters": bool(facts["find_unused_parameters"]),
            "gradient_as_bucket_view": bool(facts["gradient_as_bucket_view"]),
        }
    return {}


def _list_reduced(ddp: Any) -> list[torch.nn.Parameter]:
    """Return the parameters whose gradients a DDP sums, as it numbers them."""
    with contextlib.suppress(AttributeError):
        params: list[torch.nn.Parameter] = ddp._build_params_for_reducer()[0]  # noqa: SLF001  there is no public way
        return params
    return []


def _read(ddp: Any, names: Sequence[str]) -> Order | None:
    """Return the names in each bucket that a DDP has made, or None if it has still its first ones."""
    with contextlib.suppress(AttributeError, RuntimeError, LookupError):  # not what torch promises
        if ddp.reducer._rebuild_buckets():  # noqa: SLF001  there is no public way
            ddp._has_rebuilt_buckets = True  # noqa: SLF001  as forward() does
        indices_text = _ask(ddp)
        if indices_text is None:  # it notes that in forward(), and not always
            ddp.logger.set_runtime_stats_and_log()
            indices_text = _ask(ddp)
        if indices_text is not None:
            order = [
                [names[int(index)] for index in bucket.split()]
                for bucket in indices_text.split(",")
            ]
            return order if sorted(_flatten(order)) == sorted(names) else None
    return None


def _ask(ddp: Any) -> str | None:
    indices_text = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices")  # noqa: SLF001  torch's documentation has users call it
    return str(indices_text) if indices_text else None


class _Done(torch.autograd.Function):
    """Its backward pass tells a DDP that it is done with parameters, in an order."""

    @staticmethod
    def forward(ctx: Any, start: torch.Tensor, reducer: Any, order: list[int]) -> torch.Tensor:
        ctx.told = reducer, order
        return start.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        reducer, order = ctx.told
        for index in order:
            reducer._autograd_hook(index)  # noqa: SLF001  what DDP hangs on parameters
        return grads[0], None, None


def _make(ddp: Any, names: Sequence[str], order: Order) -> bool:
    """Make a DDP use these buckets, for which it sums zeros once; return whether it does."""
    if ddp.static_graph or ddp.mixed_precision is not None:  # what forward() prepares is missing
        return False
    params, is_sparse = ddp._build_params_for_reducer()  # noqa: SLF001  as above
    indices = {name: index for index, name in enumerate(names)}
    numbered = [[indices[name] for name in bucket] for bucket in order]
    grads = [param.grad for param in params]
    none = zip(params, is_sparse, strict=True)  # a reducer makes dense zeros itself, no sparse ones
    _set_gradients(params, [_make_sparse_zero(param) if sparse else None for param, sparse in none])
    with contextlib.suppress(AttributeError):  # not what torch promises
        ddp.reducer.prepare_for_forward()
        ddp.reducer.prepare_for_backward([])
        with torch.enable_grad():
            start = torch.zeros((), device=params[0].device, requires_grad=True)
            order_done = list(_order_done(numbered, params, _count_full(ddp, numbered, params)))
            done: Any = _Done.apply(start, ddp.reducer, order_done)  # type: ignore[no-untyped-call]
            done.backward()
        _set_gradients(params, grads)
        return _read(ddp, names) == order
    return False


def _make_sparse_zero(param: torch.Tensor) -> torch.Tensor:
    """Return the gradient of an embedding none of whose rows was used."""
    empty = torch.zeros(1, 0, dtype=torch.long, device=param.device)
    rows = param.new_zeros(0, *param.shape[1:])
    return torch.sparse_coo_tensor(empty, rows, param.shape, check_invariants=True)


def _reset_buckets(ddp: Any) -> bool:
    """Give a DDP its first buckets back, in the way in which one that was pickled gets them.

    Returns:
        Whether that was done. It is not where the order does not count, or what is hooked in
        would get lost.
    """
    with contextlib.suppress(AttributeError):  # not what torch promises
        has_hook = ddp._get_ddp_logging_data().get("comm_hook")  # noqa: SLF001  as above
        is_lost = has_hook and not ddp._comm_hooks  # noqa: SLF001  there is no public way
        if is_lost or ddp.mixed_precision is not None or ddp.process_group.size() <= IN_ANY_ORDER:
            return False
        params, sparse = ddp._build_params_for_reducer()  # noqa: SLF001
        named = ddp._build_debug_param_to_name_mapping(params)  # noqa: SLF001
        ddp.reducer._remove_autograd_hooks()  # noqa: SLF001
        ddp._ddp_init_helper(params, sparse, named, ddp.static_graph)  # noqa: SLF001
        for hook, state in ddp._comm_hooks:  # noqa: SLF001
            torch.distributed._register_comm_hook(ddp.reducer, state, hook)  # type: ignore[attr-defined]  # noqa: SLF001
        if ddp.static_graph:
            ddp._static_graph_delay_allreduce_enqueued = False  # noqa: SLF001
            ddp.reducer._set_static_graph()  # noqa: SLF001
            ddp.logger._set_static_graph()  # noqa: SLF001
        ddp._has_rebuilt_buckets = False  # noqa: SLF001
        return True
    return False


def _set_gradients(
    params: Sequence[torch.nn.Parameter], grads: Sequence[torch.Tensor | None]
) -> None:
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad


def _order_done(
    buckets: Sequence[list[int]], params: Sequence[torch.nn.Parameter], full: int
) -> Iterator[int]:
    """Yield the parameters of buckets in an order in which a backward pass makes such buckets.

    The ``full`` first ones come as they were full; the rest of each type and device after them, the last one
    that was begun first. So one parameter of each type comes early enough to begin it in its turn.
    """
    rest: dict[_Kind, list[int]] = {}
    for bucket in reversed(buckets[full:]):
        kind = _find_kind(bucket, params)
        if kind in rest:  # the commit has smaller buckets than this DDP makes
            break
        rest[kind] = bucket
    firsts: dict[_Kind, int] = {}
    for bucket in buckets:
        firsts.setdefault(_find_kind(bucket, params), bucket[0])
    order: list[int] = []
    for bucket in buckets[: len(buckets) - len(rest)]:
        kind = _find_kind(bucket, params)
        if kind in rest:
            order += [firsts[earlier] for earlier in takewhile(kind.__ne__, rest)]
        order += bucket
    yield from dict.fromkeys([*order, *chain.from_iterable(rest.values())])


def _count_full(
    ddp: Any, buckets: Sequence[list[int]], params: Sequence[torch.nn.Parameter]
) -> int:
    """Return how many buckets DDP has made because they were full; the others hold the rest."""
    config = getattr(ddp, "_bucket_config", None)  # newer versions have one
    first = getattr(config, "first_bucket_bytes_cap", torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)  # type: ignore[attr-defined]  # noqa: SLF001  what DDP takes
    limits = getattr(config, "per_bucket_bytes_caps", ()) or (first, ddp.bucket_bytes_cap)
    counts: Counter[_Kind] = Counter()
    full = 0
    for number, bucket in enumerate(buckets, 1):
        kind = _find_kind(bucket, params)
        limit = limits[min(counts[kind], len(limits) - 1)]
        counts[kind] += 1
        if sum(params[index].nbytes for index in bucket) >= limit:
            full = number
    return full


def _find_kind(bucket: list[int], params: Sequence[torch.nn.Parameter]) -> _Kind:
    """Return the type and device of the numbers in a bucket."""
    return params[bucket[0]].dtype, params[bucket[0]].device


def _flatten(order: Order) -> list[str]:
    return [name for bucket in order for name in bucket]
