"""The live run as one state: its parts, its counters, and what changes when."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from mvc import UsageError
from mvc_hooks.divergence.guard import StepGuard
from mvc_hooks.divergence.scale import is_scaling, read_first_scale, read_scale
from mvc_hooks.environment import read_environment
from mvc_hooks.extension import OWN, Extension, Origin
from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.gradients import GradsPart, refuse_unreduced
from mvc_hooks.parts.make import GRADIENTS, make_parts
from mvc_hooks.parts.names import ParameterNames
from mvc_hooks.parts.optimizer_state import find_inner, find_optimizers
from mvc_hooks.parts.part import find_parts, flatten_parts
from mvc_hooks.parts.restoring import StateSource, capture_parts, restore_parts
from mvc_hooks.parts.tree import to_local, walk_leaves
from mvc_hooks.parts.value import ValuePart
from mvc_hooks.ranks.group import Ranks
from mvc_hooks.ranks.pieces import RANKS
from mvc_hooks.ranks.state import RankState
from mvc_hooks.run.audit import StateWatch
from mvc_hooks.run.counters import Counters
from mvc_hooks.run.doubts import (
    HALF_STEP,
    STRAY_LOADER,
    THREADED,
    StrayWatch,
    TailWatch,
    doubt_parts,
)
from mvc_hooks.run.extensions import ENTRIES, Extensions

if TYPE_CHECKING:
    from pathlib import Path

    from torch.utils.hooks import RemovableHandle

    from mvc_hooks.ranks.own import RankView
    from mvc_hooks.snapshot.copying import Fence

RUN, ENVIRONMENT = "run", "environment"
_EXTRAS = (RUN, ENVIRONMENT, "watch", "ladder")
_RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")


class _ForwardHook:
    """Notes that a model runs; in copies of the model, and in files of it, it does nothing."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def __call__(self, *_: object) -> None:
        self._run.is_clean = False
        self._run.tail.has_begun |= torch.is_grad_enabled()

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, ({}, "get")  # from (module, arguments) it returns the arguments


@dataclass(frozen=True, slots=True)
class StoredRun:
    """What a commit holds besides the parts: ``watch`` and ``ladder`` are states of the judge.

    ``doubts`` say why the run may go on otherwise than it did.
    """

    counters: Counters
    watch: Any
    ladder: Any
    environment: Mapping[str, Any]
    doubts: Sequence[str] = ()


class LiveRun:
    """Everything that is alive in a run; ``data`` is the one loader, if there is just one.

    ``doubts`` are lines about parts that it seems to lack. It is clean if nothing was drawn, run
    or stepped since the last complete step, as far as hooks can see. ``extras`` are the top-level names
    of its state that belong to the run and its extensions, not to a part.
    """

    def __init__(
        self,
        objects: Mapping[str, object],
        ranks: Ranks | None = None,
        extensions: Sequence[Extension] = (),
        options: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Take objects by name, the extensions of a run, and the options that are only for these."""
        objects = {name: value for name, value in objects.items() if value is not None}
        leaves = list(walk_leaves(objects))
        values = [leaf for _, leaf in leaves]
        self._modules = [value for value in values if isinstance(value, nn.Module)]
        places = {found: path for path, leaf in leaves for found in find_optimizers(leaf)}
        self._optimizers = list(places)
        self._schedulers = [value for value in values if isinstance(value, LRScheduler)]
        self._scalers = [value for value in values if is_scaling(value)]
        self.has_scaler = bool(self._scalers)
        self.first_scale = read_first_scale(self._scalers)
        own_entries = (extension.entry for extension in extensions if extension.entry)
        self._entries = dict.fromkeys([*ENTRIES, *own_entries])
        self.extras = (*_EXTRAS, *self._entries)
        self.objects, self.parts = objects, make_parts(objects, (*self.extras, RANKS))
        if not self._modules and not self._optimizers:
            raise UsageError("no model and no optimizer to commit", hint="pass model=...")
        self._grads = GradsPart(self._optimizers, ParameterNames(objects))
        self.parts[GRADIENTS] = self._grads
        entries = flatten_parts(self.parts)
        loaders = find_parts(self.parts, DataPart)
        self._data_parts = [part for _, part in loaders]
        self._data_names = {str(path[0]) for path, _ in loaders}
        self.data = self._data_parts[0] if len(loaders) == 1 else None
        self.doubts = list(doubt_parts(leaves, self._modules, places, self.parts))
        self.watch = StateWatch(objects, entries)
        self.tail = TailWatch(entries)
        self.counters = Counters()
        ranks = ranks or Ranks()
        records = [(name, OWN) for name in self._entries]
        self._ranks = RankState(ranks, self.parts, self.extras, records)
        self.extensions = Extensions(extensions, entries, options, has_data=ranks.size > 1)
        self.environment = self.read_environment()
        self.is_clean = True
        self._guard, self._strays = StepGuard(self._optimizers), StrayWatch()
        self._fences: list[Fence] = []
        self._handles = list(self._hook())

    def _hook(self) -> Iterator[RemovableHandle]:
        for optimizer in self._optimizers:
            yield optimizer.register_step_pre_hook(self._before_step)
        for module in self._modules:
            # torch.compile would compile a hook in, or drop it.
            if not hasattr(module, "_orig_mod"):
                yield module.register_forward_pre_hook(_ForwardHook(self))

    def read_environment(self, script: Path | None = None) -> dict[str, Any]:
        """Return the environment of the run, its loaders included; ``script`` as for the function."""
        data = {name: facts for part in self._data_parts for name, facts in part.describe().items()}
        return read_environment(script) | {"data": data, "ddp": self._ranks.plan_buckets()}

    # The steps.

    def _before_step(self, *_: object) -> None:
        self.is_clean = False
        for fence in self._fences:
            fence.stand()
        self._fences.clear()

    def doubt_step(self, loss: object, metrics: Iterable[str] = ()) -> Iterator[str]:
        """Say what seems wrong with a step of the user's; to be asked at the first two."""
        near = get_close_matches("loss", metrics, 1, 0.75) if loss is None else ()
        if near and self.counters.step == 0:
            yield f"no loss is judged: {near[0]}= is only a metric; did you mean loss=?"
        if isinstance(loss, torch.Tensor) and loss.requires_grad and not self._grads.has_trained:
            yield HALF_STEP
        for part in self._data_parts:
            if part.draws_in_thread:
                yield THREADED.format(part.name)
                part.draws_in_thread = False
        yield from self.extensions.doubt()
        if self._strays.look([part.iterator for part in self._data_parts]):
            yield STRAY_LOADER

    def stand_before_step(self, fence: Fence) -> None:
        """Put a fence before the next optimizer step."""
        if fence.watched:
            self._fences.append(fence)

    def drop_next_step(self) -> None:
        """Make the next step of every optimizer do nothing."""
        self._guard.drop_next()

    def complete_step(self, tokens: int, samples: int) -> None:
        """Count a complete step."""
        self.counters.step += 1
        self.counters.tokens += tokens
        self.counters.samples += samples
        if self.data is not None and self.data.batches_drawn:
            self.counters.batches = self.data.batches_drawn
        else:  # the user draws the batches, one per step as far as this can tell
            self.counters.batches += 1
            self.pass_over()
        self._guard.cancel()  # a scaler that skipped the step never called the optimizer
        self.is_clean = True
        for part in self._data_parts:
            part.check_known()
            part.check_drawn()

    @property
    def lr(self) -> float | None:
        """Learning rate of the first group, if it can be read without waiting for a device."""
        for optimizer in self._optimizers:
            rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
            return float(rate) if isinstance(rate, (int, float)) else None
        return None

    @property
    def scale(self) -> torch.Tensor | float | None:
        """Loss scale of the scaler, of several the lowest, where it lies; None without one."""
        return read_scale(self._scalers)

    # Data.

    def next_batch(self) -> Any:
        """Return the next batch; those to skip are drawn and dropped."""
        if self.data is None:
            if self._data_parts:
                raise UsageError(
                    "next_batch() does not know from which of several loaders to draw",
                    hint="pass dataloader= with the one to train with alone, or with an object whose "
                    "__iter__ draws from all of them, or use torchdata's "
                    "StatefulDataLoader and iterate them yourself",
                )
            raise UsageError(
                "no part of the run is a loader",
                hint="pass dataloader=..., or find the data by ckpt.batch_index",
            )
        self.is_clean = False
        last = self.counters.last_left_out(self.data.batches_drawn + 1)
        if last is not None:
            self.data.drop(last - self.data.batches_drawn)
        return self.data.next_batch()

    @property
    def can_rewind_data(self) -> bool:
        """Whether data goes back with the state: it is drawn here, or by ``batch_index``."""
        return all(part.can_rewind and part.batches_drawn for part in self._data_parts)

    def pass_over(self) -> None:
        """Move the batch index past batches to skip, if data is found by it."""
        last = self.counters.last_left_out(self.counters.batches + 1)
        if not self._data_parts and last is not None:
            self.counters.batches = last

    @property
    def skips_unread(self) -> bool:
        """Whether the loader passes over batches without loading them, and records why."""
        return self.data is not None and self.data.skips_unread

    def leave_out(self, first: int, last: int, reason: str) -> None:
        """Skip batches that are yet to come, counted from 1."""
        if self.data is not None and self.data.skips_unread:
            self.data.leave_out(first, last, reason)
            return
        self.counters.leave_out([(first, last)])
        self.pass_over()

    def drop_batches(self, count: int) -> int:
        """Skip the next batches, if that can be done here; return how many."""
        if self.data is not None and self.data.batches_drawn:
            self.data.drop(count)
            self.counters.batches = self.data.batches_drawn
            return count
        if not self._data_parts:
            self.counters.batches += count
            return count
        return 0

    # The state.

    def capture(self, extras: Mapping[str, object]) -> dict[str, object]:
        """Return the whole state of this rank; tensors are the live ones."""
        state = capture_parts(self.parts)
        refuse_unreduced(state[GRADIENTS])
        state |= {RUN: asdict(self.counters), ENVIRONMENT: self.environment}
        return {**state, **self.extensions.capture(), **extras}

    def view(self, extras: Mapping[str, object]) -> RankView:
        """Return the state as this rank commits it; every rank must call this."""
        return self._ranks.view(self.capture(extras))

    def check_replicas(self) -> None:
        """Check that the ranks hold one model, and the same state of optimizers; every rank must call it."""
        self._ranks.check(partial(capture_parts, self.parts))

    def find_difference(self) -> str | None:
        """Return in words how the state of another rank differs in form; every rank must call it."""
        return self._ranks.find_difference(capture_parts(self.parts))

    def restore(
        self, source: StateSource, *, allow: Sequence[str] = (), leave_data: bool = False
    ) -> StoredRun:
        """Restore the state of all parts, or all but the loaders, and verify it to the bit."""
        self.extensions.add_readers(source)
        opened = self._ranks.open(source, allow, partial(capture_parts, self.parts))
        outline = opened.source.outline()
        stored = (name for name in self._entries if name in outline)
        extras = {name: ValuePart(name, None) for name in (*_EXTRAS, *stored)}
        leave: Collection[str] = {*opened.unknown, *(self._data_names if leave_data else ())}
        values = restore_parts(opened.source, {**self.parts, **extras}, allow=allow, leave=leave)
        counters = Counters.parse(values[RUN])
        for extension in self.extensions:
            if extension.entry is not None:
                name = extension.entry
                origin = Origin(
                    ranks=opened.ranks if name in outline else None,
                    read_own=lambda rank, name=name: opened.read_records(rank).get(name),  # type: ignore[misc]
                    is_commit=not source.is_own,
                    leaves_data=leave_data,
                )
                extension.restore(values.get(extension.entry), origin)
        environment = values[ENVIRONMENT] if isinstance(values[ENVIRONMENT], Mapping) else {}
        return StoredRun(counters, values["watch"], values["ladder"], environment, opened.doubts)

    def fenced_tensors(self) -> dict[int, torch.Tensor]:
        """Return the device tensors that only ``optimizer.step`` changes, by storage address."""
        found: dict[int, torch.Tensor] = {}
        for optimizer in self._optimizers:
            # One that steps through another one changes parameters in methods of its own.
            for group in () if find_inner(optimizer) else optimizer.param_groups:
                for param in group["params"]:
                    for _, tensor in walk_leaves([param, optimizer.state.get(param, {})]):
                        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                            found[to_local(tensor).untyped_storage().data_ptr()] = tensor
        return found

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rates, and the values that schedulers compute them from."""
        if factor == 1:
            return
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for name in _RATES:
                    if name in group:
                        group[name] = group[name] * factor
        # A scheduler computes the next rate from its own record of the first ones.
        for scheduler in self._schedulers:
            _scale_scheduler(scheduler, factor)

    def remove(self) -> None:
        """Take all hooks off, and close the extensions."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._guard.remove()
        self._grads.remove()
        for part in self._data_parts:
            part.remove()
        self.extensions.close()


def _scale_scheduler(scheduler: Any, factor: float) -> None:
    for name in ("base_lrs", "_last_lr", "min_lrs", "max_lrs"):
        rates = getattr(scheduler, name, None)
        if isinstance(rates, list):
            setattr(scheduler, name, [rate * factor for rate in rates])
    if isinstance(getattr(scheduler, "eta_min", None), (int, float)):
        scheduler.eta_min *= factor
    for inner in getattr(scheduler, "_schedulers", ()):
        _scale_scheduler(inner, factor)
