"""A model: its ``state_dict``, filled in place, and what a state dict leaves out.

The state of a model is its plain state dict, so that ``model.safetensors`` loads anywhere. Wrappers
do not show: a model has the same names whether it runs bare, in DistributedDataParallel or
DataParallel, or compiled by ``torch.compile``, whole or in pieces (names leave out ``_orig_mod``), or
with modules that compute their activations again (``_checkpoint_wrapped_module``).
An ``AveragedModel`` is a separate model, and keeps its names.

``details`` holds the rest: which parameters are frozen, which modules are in training mode, which
entries are tied (a tie lost in a restore would train another model), and the buffers that no state
dict has because they are not persistent.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mvc import ConflictError, UnsupportedError, UsageError
from mvc_hooks.parts.metrics import capture_metrics, restore_metrics
from mvc_hooks.parts.names import RECOMPUTED, clean_name, is_wrapped, unwrap_module
from mvc_hooks.parts.part import Part, RestoreOrder
from mvc_hooks.parts.shards import blank_shards
from mvc_hooks.parts.tree import (
    ABSENT,
    Difference,
    compare_arrays,
    describe,
    find_at,
    is_array,
    is_sharded,
    locate,
    to_local,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mvc_hooks.parts.tree import Steps

_NAMED = 3
_FIRST: WeakKeyDictionary[nn.Module, dict[str, tuple[object, ...]]] = WeakKeyDictionary()
"""Type and shape of the buffers that models had when they were first seen."""


class ModulePart(Part):
    """The state dict of a model; ``module`` is the model without its wrappers."""

    order = RestoreOrder.MODULE

    def __init__(self, name: str, module: nn.Module) -> None:
        """Take a model; lazy, quantised or data-less parameters are refused."""
        self.module = unwrap_module(module)
        _check_parameters(name, self.module)
        self.companion: ModuleDetails = ModuleDetails(self.module)

    def capture(self) -> dict[str, Any]:
        """Return the state dict, its tensors those of the model."""
        state = self.module.state_dict()
        if not any(map(is_wrapped, [*state, *getattr(state, "_metadata", ())])):
            return state
        renamed = _rename(state, clean_name, clean_name)
        return renamed if len(renamed) == len(state) else state  # two names would be the same

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare by name: every entry must be on both sides, tensors of the same type and shape.

        What modules load in their own way, and buffers, may fit nevertheless.
        """
        if not isinstance(stored, dict):
            yield Difference(path, "a state dict", describe(stored))
            return
        modules = _find_modules(self.module)
        for key in [*live, *(key for key in stored if key not in live)]:
            ours, theirs = live.get(key, ABSENT), stored.get(key, ABSENT)
            differences: Iterable[Difference] = ()
            if ours is ABSENT or theirs is ABSENT:
                differences = [Difference((*path, key), describe(ours), describe(theirs))]
            elif is_array(ours) or is_array(theirs):
                differences = compare_arrays(ours, theirs, (*path, key))
            for difference in differences:
                yield replace(difference, may_fit=_may_fit(modules, key))

    def targets(self, captured: Any, stored: Any) -> object:
        """Return the entries that are the model's memory (hooks may have added others)."""
        own = self._locate_own()
        own_tensors = {
            name: value
            for name, value in captured.items()
            if isinstance(value, torch.Tensor) and locate(value) in own
        }
        others = {name: value for name, value in captured.items() if name not in own_tensors}
        blank = blank_shards(others, stored)
        return own_tensors if blank is ABSENT else {**own_tensors, **blank}

    def restore(self, stored: Any) -> None:
        """Take what could not be filled in place through the model's own ``load_state_dict``."""
        self.companion.replace_grown(stored)
        own, live = self._locate_own(), self.capture()
        if any(not _is_taken(stored[name], live.get(name), own) for name in stored):
            self._load(stored)
        # Autograd did not see these writes: what it saved before must not be used any more.
        for param in self.module.parameters():
            if not param.is_inference():
                torch.autograd.graph.increment_version(param)

    def hold(self, state: Any) -> Callable[[], None]:
        """Return a function that takes it back: what it loads, attributes, and memory."""
        back = super().hold(state)
        modules = [
            (child, dict(vars(child)), dict(child._buffers), dict(child._parameters))  # noqa: SLF001  there is no public way
            for child in self.module.modules()
        ]
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        tensors = [
            (tensor, None if is_sharded(tensor) else tensor.data, state.get(clean_name(name)))
            for name, tensor in named
        ]

        def take_back() -> None:
            with contextlib.suppress(Exception):  # the rest may do
                back()
            for module, attributes, buffers, parameters in modules:
                vars(module).update(attributes)
                module._buffers.clear()  # noqa: SLF001
                module._buffers.update(buffers)  # noqa: SLF001
                module._parameters.clear()  # noqa: SLF001
                module._parameters.update(parameters)  # noqa: SLF001
            for tensor, data, values in tensors:
                if data is not None:
                    tensor.data = data
                if values is not None:
                    to_local(tensor).detach().copy_(to_local(values))

        return take_back

    def _load(self, stored: dict[str, Any]) -> None:
        modules = self.module.named_modules(remove_duplicate=False)
        entry_names = {clean_name(name): name for name in self.module.state_dict()}
        module_names = {clean_name(name): name for name, _ in modules}
        state = _rename(
            stored,
            lambda name: entry_names.get(name, name),
            lambda name: module_names.get(name, name),
        )
        try:
            self.module.load_state_dict(state)  # one of the user may know no strict=
        except RuntimeError as error:
            raise ConflictError(f"the model does not accept its state: {error}") from error

    def _locate_own(self) -> set[tuple[object, ...] | None]:
        tensors = [*self.module.parameters(), *self.module.buffers()]
        return {locate(tensor) for tensor in tensors} - {None}


def _rename(
    state: dict[str, Any], rename: Callable[[str], str], rename_module: Callable[[str], str]
) -> dict[str, Any]:
    """Return a state dict with other names of its entries, and of the modules in its metadata."""
    renamed = OrderedDict((rename(name), value) for name, value in state.items())
    if hasattr(state, "_metadata"):
        items = state._metadata.items()  # noqa: SLF001  the name torch gives it
        renamed._metadata = OrderedDict((rename_module(key), item) for key, item in items)  # type: ignore[attr-defined]  # noqa: SLF001
    return renamed


def _is_taken(stored: Any, live: Any, own: set[tuple[object, ...] | None]) -> bool:
    if not isinstance(stored, torch.Tensor) or not isinstance(live, torch.Tensor):
        return False
    place = locate(stored)
    if place is None or place == locate(live):
        return place in own or not stored.numel()
    # Memory in which elements overlap cannot be filled; it may hold the values already.
    here, there = to_local(live), to_local(stored)
    return locate(live) in own and torch.equal(there.to(here.device), here)


def _find_modules(module: nn.Module) -> dict[str, nn.Module]:
    named = module.named_modules(remove_duplicate=False)
    return {clean_name(name): child for name, child in named}


def _join(prefix: str, key: str) -> str:
    """Return the name of a buffer below the module of a name, which is empty for the outermost."""
    return f"{prefix}.{key}" if prefix else key


def _say(outline: tuple[object, ...] | None) -> str:
    """Return type and shape as differences name them."""
    if outline is None:
        return "None"
    dtype, shape = outline
    return f"{dtype} {list(shape)}".removeprefix("torch.")  # type: ignore[call-overload]  # a shape


def _may_fit(modules: Mapping[str, nn.Module], key: str) -> bool:
    """Return whether an entry of a state dict is a buffer, or a module loads it in its own way."""
    prefix, _, name = key.rpartition(".")
    owner = modules.get(prefix)
    if owner is None:
        return False
    steps = prefix.split(".") if prefix else []
    above = [modules.get(".".join(steps[:count])) for count in range(len(steps) + 1)]
    return (
        name == "_extra_state"
        or name not in owner._parameters  # noqa: SLF001  there is no public way
        or type(modules[""]).load_state_dict is not nn.Module.load_state_dict
        or any(outer is not None and _loads_itself(outer) for outer in above)
    )


def _loads_itself(module: nn.Module) -> bool:
    own = type(module)._load_from_state_dict  # noqa: SLF001  what modules override
    # Those of torch's own layers only serve older versions; they never take another shape.
    is_plain = own.__module__.startswith("torch.nn.modules.")
    return not is_plain or bool(module._load_state_dict_pre_hooks)  # noqa: SLF001  there is no public way


def _check_parameters(name: str, module: nn.Module) -> None:
    lazy, odd = [], []
    for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            lazy.append(f"{name}.{key}")
        elif to_local(tensor).is_meta or to_local(tensor).is_quantized:
            odd.append(f"{name}.{key}")
    if lazy:
        raise UsageError(
            f"{_list(lazy)} has no shape yet", hint="run the model once before this is made"
        )
    if odd:
        raise UnsupportedError(
            f"{_list(odd)} is a quantised or data-less tensor",
            hint="dequantise the whole state yourself and commit it with Repo.commit_state",
        )


def _list(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


class ModuleDetails(Part):
    """What a model has that its state dict leaves out."""

    order = RestoreOrder.MODULE

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        # A notebook may make the part of a model more than once.
        self._first = _FIRST.setdefault(module, self._outline_buffers())
        self._registered = {
            _join(prefix, key)
            for prefix, owner in _find_modules(module).items()
            for key in owner._buffers  # noqa: SLF001  there is no public way
        }
        self._grown: dict[str, str] = {}

    def capture(self) -> dict[str, object]:
        """Return modes, frozen parameters, ties (groups of one tensor), buffers not persistent, and metrics.

        Where other buffers have grown since the model was made, what they were then is in ``grown``.
        """
        module, now, first, grown = self._module, self._outline_buffers(), self._first, self._grown
        if now != first:
            changed = (name for name in {**first, **now} if now.get(name) != first.get(name))
            grown = {name: _say(first.get(name)) for name in changed} | grown
        modules = module.named_modules()
        parameters = module.named_parameters()
        return {
            "training": module.training,
            "other_mode": [
                clean_name(k)
                for k, m in modules
                if m.training != module.training and not hasattr(m, RECOMPUTED)
            ],
            "frozen": [clean_name(k) for k, p in parameters if not p.requires_grad],
            "ties": _find_ties(module),
            "buffers": {
                clean_name(name): owner._buffers[key]  # noqa: SLF001  there is no public way
                for name, owner, key in self._find_buffers()
            },
            **({"grown": grown} if grown else {}),
            **({"metrics": sums} if (sums := capture_metrics(module)) else {}),
        }

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare ties and buffers; these are usually caches, so one that has grown is replaced."""
        ties = find_at(live, ("ties",)), find_at(stored, ("ties",))
        if ties[0] != ties[1]:
            yield Difference((*path, "ties"), str(ties[0]), str(ties[1]))
        ours, theirs = find_at(live, ("buffers",)), find_at(stored, ("buffers",))
        for difference in compare_arrays(ours, theirs, (*path, "buffers")):
            key = difference.path[len(path) + 1 :]
            here, there = find_at(ours, key), find_at(theirs, key)
            # A buffer that was made lazily, or has grown, is replaced.
            is_made = here is None or there is None
            is_grown = (
                is_array(here)
                and is_array(there)
                and (here.dtype, len(here.shape)) == (there.dtype, len(there.shape))
            )
            if not is_made and not is_grown:
                yield difference

    def targets(self, captured: Any, stored: Any) -> object:  # noqa: ARG002  what fits is picked
        """Return the buffers."""
        return {"buffers": find_at(captured, ("buffers",))}

    def restore(self, stored: Any) -> None:
        """Set modes, frozen parameters and buffers."""
        module = self._module
        self._grown = dict(stored.get("grown", {}))
        other, frozen = set(stored["other_mode"]), set(stored["frozen"])
        for name, child in module.named_modules():
            child.training = stored["training"] != (clean_name(name) in other)
        for name, param in module.named_parameters():
            if param.requires_grad == (clean_name(name) in frozen):
                param.requires_grad_(clean_name(name) not in frozen)
        for name, owner, key in self._find_buffers():
            _place(owner, key, stored["buffers"].get(clean_name(name)), module)
        restore_metrics(module, stored.get("metrics", {}))

    def _outline_buffers(self) -> dict[str, tuple[object, ...]]:
        """Return name → type and shape of the buffers in a state dict that load as torch loads."""
        return {
            clean_name(_join(prefix, key)): (buffer.dtype, buffer.shape)
            for prefix, owner in self._module.named_modules(remove_duplicate=False)
            if owner._buffers and not _loads_itself(owner)  # noqa: SLF001  there is no public way
            for key, buffer in owner._buffers.items()  # noqa: SLF001
            if buffer is not None and key not in owner._non_persistent_buffers_set  # noqa: SLF001
        }

    def replace_grown(self, stored: Mapping[str, Any]) -> None:
        """Make buffers what is stored, if they differ because the run made them grow.

        It did if both sides began with the same.
        """
        modules = _find_modules(self._module)
        now = self._outline_buffers()
        for name in {**now, **self._grown}:
            prefix, _, key = name.rpartition(".")
            theirs = stored.get(name)
            text = _say(None if theirs is None else (theirs.dtype, theirs.shape))
            owner = modules.get(prefix)
            if owner is None or text == _say(now.get(name)):
                continue
            if self._grown.get(name, text) != _say(self._first.get(name)):
                raise ConflictError(f"{name} did not grow: the run began with another one")
            if theirs is None and name not in self._registered:
                owner._buffers.pop(key, None)  # noqa: SLF001  there is no public way
            else:
                _place(owner, key, theirs, self._module)

    def _find_buffers(self) -> list[tuple[str, nn.Module, str]]:
        return [
            (_join(prefix, key), owner, key)
            for prefix, owner in self._module.named_modules()
            for key in sorted(owner._non_persistent_buffers_set)  # noqa: SLF001  there is no public way
            if key in owner._buffers  # noqa: SLF001
        ]


def _place(owner: nn.Module, key: str, stored: Any, module: nn.Module) -> None:
    live = owner._buffers.get(key)  # noqa: SLF001
    if stored is not None:
        if live is not None and (stored is live or locate(stored) == locate(live) is not None):
            return
        stored = stored.to((live if live is not None else next(module.parameters(), stored)).device)
    owner._buffers[key] = stored  # noqa: SLF001  a tensor or None


def _find_ties(module: nn.Module) -> list[list[str]]:
    places: dict[tuple[object, ...], list[str]] = {}
    params = module.named_parameters(remove_duplicate=False)
    for name, tensor in (*params, *module.named_buffers(remove_duplicate=False)):
        place = locate(tensor)
        if place is not None:
            places.setdefault(place, []).append(clean_name(name))
    return [names for names in places.values() if len(names) > 1]
