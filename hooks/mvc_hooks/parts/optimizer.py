"""An optimizer: its state filled in place, and present exactly for the parameters that had one.

``Optimizer.load_state_dict`` is not used to restore: it casts every state tensor to the type of its
parameter (32-bit moments of bfloat16 parameters lose half of their bits), and it copies all of
them. Here the state of a parameter comes back with its stored type, and only if it was stored: a
parameter that had no state yet has none afterwards, because *absent* means that the optimizer will
initialise it, and that is not always zero.

The device is that of the parameter, except for tensors that were kept on the host beside a parameter
on a device (``step`` of most optimizers); ``details`` says which. It also says which parameter has
which index, by name, because an optimizer matches state to parameters by position alone.

Hooks registered for ``state_dict`` and ``load_state_dict`` are called as by torch. An optimizer
that overrides those methods has its own called as well, and then gets the exact bits of what
is in ``state``.

Some optimizers step through another one, whose state they leave out of their own (sharpness-aware
minimisation does); ``details`` has it. They also say which state is the memory of its parameter,
kept to be put back: it is so again after a restore.
"""

from __future__ import annotations

import itertools
import logging
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from mvc import ConflictError
from mvc_hooks.parts.names import ParameterNames
from mvc_hooks.parts.optimizer_state import (
    COUNTER,
    compare_entry,
    compare_groups,
    find_inner,
    index_parameters,
    is_standard,
    list_settings,
    make_blanks,
    take_entry,
    take_value,
)
from mvc_hooks.parts.part import Part, RestoreOrder
from mvc_hooks.parts.tree import (
    ABSENT,
    Difference,
    compare_arrays,
    compare_keys,
    find_at,
    is_sharded,
    locate,
    map_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mvc_hooks.parts.tree import Steps

log = logging.getLogger("mvc_hooks")
_FIRST: WeakKeyDictionary[Optimizer, list[dict[str, Any]]] = WeakKeyDictionary()
"""The settings of each group that optimizers had when they were first seen."""


class OptimizerPart(Part):
    """A torch optimizer."""

    order = RestoreOrder.OPTIMIZER

    def __init__(
        self, name: str, optimizer: Optimizer, names: Mapping[int, str] | None = None
    ) -> None:
        self._name = name
        self._optimizer = self.optimizer = optimizer
        self.companion: OptimizerDetails = OptimizerDetails(name, optimizer, names or {})
        self.placed: Mapping[tuple[object, object], Sequence[object]] = {}
        """How stored state lies that is not sharded as its parameter, by index and name."""
        kind = type(optimizer)
        self._is_custom = (
            kind.state_dict is not Optimizer.state_dict
            or kind.load_state_dict is not Optimizer.load_state_dict
        )

    def list_sharded(self) -> Iterator[tuple[tuple[object, object], Any, Any]]:
        """Yield (index, name), DTensor and parameter of the state of every parameter that is a DTensor."""
        for index, param in index_parameters(self._optimizer).items():
            entry = self._optimizer.state.get(param) if is_sharded(param) else None
            for name, value in entry.items() if isinstance(entry, dict) else ():
                if is_sharded(value):
                    yield (index, name), value, param

    def capture(self) -> dict[str, Any]:
        """Return ``state_dict()``, which makes nothing and steps nothing."""
        return self._optimizer.state_dict()

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare groups strictly; state may be there or not, but never of another form.

        What an optimizer loads in its own way may fit nevertheless, and groups that were added.
        """
        for difference in self._compare(live, stored, path):
            is_group = difference.path == (*path, "param_groups")
            yield replace(difference, may_fit=self._is_custom or is_group)

    def _compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        if not is_standard(live) or not is_standard(stored):
            yield from compare_arrays(live, stored, path)
            return
        yield from compare_groups(live["param_groups"], stored["param_groups"], path)
        for key, theirs in stored["state"].items():
            ours = live["state"].get(key, ABSENT)
            yield from compare_entry(ours, theirs, (*path, "state", key))
        yield from compare_keys(live, stored, path)

    def targets(self, captured: Any, stored: Any) -> object:
        """Return the tensors of state and groups that share their memory with nothing else.

        And new DTensors for state that is not here, if it is stored with the shape of its parameter.
        """
        if not is_standard(captured) or not is_standard(stored):
            return super().targets(captured, stored)
        state: dict[Any, dict[Any, torch.Tensor]] = {}
        if self._is_custom:
            self._add_shards(state, stored["state"])
            return {"state": state}
        seen = {locate(param) for param in index_parameters(self._optimizer).values()}
        for key, entry in captured["state"].items():
            for name, value in entry.items() if isinstance(entry, dict) else ():
                if isinstance(value, torch.Tensor) and locate(value) not in seen - {None}:
                    seen.add(locate(value))
                    state.setdefault(key, {})[name] = value
        self._add_shards(state, stored["state"])
        groups = [
            {name: value for name, value in group.items() if isinstance(value, torch.Tensor)}
            for group in captured["param_groups"]
        ]
        return {"state": state, "param_groups": groups}

    def _add_shards(self, state: dict[Any, dict[Any, Any]], stored: Mapping[Any, Any]) -> None:
        """Add a new DTensor for every other stored tensor that is one because its parameter is."""
        params = self.companion.foresee_parameters()
        for key, entry in stored.items():
            for name, value in entry.items() if isinstance(entry, dict) else ():
                if name in (*state.get(key, ()), COUNTER) or not is_sharded(params.get(key)):
                    continue
                blank = make_blanks(params[key], value, self.placed.get((key, name)))
                if blank is not ABSENT:
                    state.setdefault(key, {})[name] = blank

    def restore(self, stored: Any) -> None:
        """Make state and groups what is stored."""
        if is_standard(stored):
            self.companion.fit_groups(stored["param_groups"])
        self.companion.restore_inner()
        if self._is_custom:
            try:
                self._optimizer.load_state_dict(map_tensors(stored, torch.clone))
            except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConflictError(f"{self._name} does not accept its state: {error}") from error
            params = index_parameters(self._optimizer)
            if is_standard(stored) and stored["state"].keys() <= params.keys():
                self._take(stored)
            return
        state: dict[str, Any] = dict(stored)
        for hook in list(self._optimizer._optimizer_load_state_dict_pre_hooks.values()):  # noqa: SLF001  torch has no public way to call them
            changed = hook(self._optimizer, state)
            state = state if changed is None else changed
        self._take(state)
        for done in list(self._optimizer._optimizer_load_state_dict_post_hooks.values()):  # noqa: SLF001
            done(self._optimizer)

    def hold(self, state: Any) -> Callable[[], None]:
        """Return a function that takes it back, with the groups that it has."""
        back, live, groups = super().hold(state), self._optimizer, [*self._optimizer.param_groups]
        gradients = [(param, param.grad) for param in index_parameters(live).values()]

        def take_back() -> None:
            live.param_groups[:] = groups
            for param, gradient in gradients:
                param.grad = gradient
            back()

        return take_back

    def _take(self, stored: dict[str, Any]) -> None:
        groups = self._optimizer.param_groups
        for group, values in zip(groups, stored["param_groups"], strict=True):
            before = dict(group)
            group.clear()
            for setting, value in values.items():
                is_own = setting == "params"
                group[setting] = (
                    before[setting] if is_own else take_value(before.get(setting), value)
                )
        params = index_parameters(self._optimizer)
        hosted = set(self.companion.hosted)
        entries: dict[Any, Any] = {}
        live = self._optimizer.state
        for key, entry in stored["state"].items():
            param = params.get(key)
            if param is None:
                entries[key] = entry
                continue
            mine = live.get(param, {})
            on_host = {name for index, name in hosted if index == key}
            if not self.companion.was_on_device:
                on_host |= self._find_hosted(param)
            entries[param] = take_entry(mine, entry, param, on_host)
            tied = (name for index, name in self.companion.tied if index == key)
            entries[param] |= dict.fromkeys(tied, param.detach())
        live.clear()
        live.update(entries)

    def _find_hosted(self, param: torch.Tensor) -> set[str]:
        """Return what torch's own optimizers keep on the host by default."""
        for group in self._optimizer.param_groups:
            if any(param is other for other in group["params"]):
                is_device = group.get("fused") or group.get("capturable")
                return set() if is_device else {"step"}
        return set()


class OptimizerDetails(Part):
    """Which parameter an index means, and what of the state is on the host.

    ``hosted`` are (index, key) of state tensors that were on the host beside a parameter on a
    device, as last restored; they say all if there were parameters on a device. ``tied`` are those
    that were in the memory of their parameter.
    """

    # Before the optimizer, which needs to know what was on the host.
    order = RestoreOrder.SCHEDULER

    def __init__(self, name: str, optimizer: Optimizer, names: Mapping[int, str]) -> None:
        self._name = name
        self._optimizer = optimizer
        # As the script makes it, before anything is restored, also if a notebook comes here again.
        self._settings = _FIRST.setdefault(optimizer, list_settings(optimizer))
        self._stored_settings: Any = self._settings
        self._made: Any = [type(optimizer).__name__, sorted(getattr(optimizer, "defaults", ()))]
        self._has_told = False
        self._names = names
        self._first = self._groups = len(self._settings)
        self._stored_names: list[list[str | None]] = []
        self._compared_names: list[list[str | None]] = []
        self.hosted: list[tuple[object, str]] = []
        self.tied: list[tuple[object, str]] = []
        self.was_on_device = False
        inner = find_inner(optimizer).items()
        self._inner = {
            key: OptimizerPart(f"{name}.{key}", wrapped, names) for key, wrapped in inner
        }
        self._stored_inner: Any = {} if self._inner else None

    def capture(self) -> dict[str, object]:
        """Return the names by group (None if unknown), and what is on the host.

        If groups were added since the optimizer was made, ``groups`` says how many there were.
        ``settings`` are those that the script gave it when the run began, ``made`` is its class then,
        and the names of all settings.
        """
        groups = self._optimizer.param_groups
        known = index_parameters(self._optimizer)
        if isinstance(self._names, ParameterNames) and any(
            id(p) not in self._names for p in known.values()
        ):
            self._names.look()
        state = self._optimizer.state
        held = [
            (index, name, value, param)
            for index, param in known.items()
            if isinstance(state.get(param), dict)
            for name, value in state[param].items()
            if isinstance(value, torch.Tensor)
        ]
        tied = [[i, name] for i, name, tensor, p in held if locate(tensor) == locate(p) is not None]
        inner = {key: part.capture() for key, part in self._inner.items()}
        has_inner = self._stored_inner is not None or any(
            entry.get("state") for entry in inner.values()
        )
        return {
            "parameters": [[self._names.get(id(p)) for p in group["params"]] for group in groups],
            "on_device": any(param.device.type != "cpu" for param in known.values()),
            "on_host": [
                [index, name]
                for index, name, value, param in held
                if param.device.type != "cpu" and value.device.type == "cpu"
            ],
            **({"tied": tied} if tied else {}),
            **({"inner": inner} if has_inner else {}),
            **({"groups": self._groups} if self._groups != len(groups) else {}),
            **({"settings": self._stored_settings} if self._stored_settings is not None else {}),
            **({"made": self._made} if self._made is not None else {}),
        }

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare the class, and the order of the parameters, where both sides know their names.

        Another class with the same settings is the same one under a new name, or the next best.
        """
        mine, other = find_at(live, ("made",)), find_at(stored, ("made",))
        if other is not ABSENT and all(map(operator.ne, mine, other)):
            yield Difference(path, f"of class {mine[0]}", f"of class {other[0]}")
        ours, theirs = find_at(live, ("parameters",)), find_at(stored, ("parameters",))
        self._compared_names = theirs if isinstance(theirs, list) else []
        for group, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
            for index, (here, there) in enumerate(zip(mine, other, strict=False)):
                if here is not None and there is not None and here != there:
                    place = (*path, "parameters", group, index)
                    yield Difference(place, f"parameter {here!r}", f"parameter {there!r}")

    def restore(self, stored: Any) -> None:
        """Remember what was where."""
        pairs: list[Any] = find_at(stored, ("on_host",))
        self.hosted = [(index, name) for index, name in pairs]
        self.was_on_device = bool(find_at(stored, ("on_device",)))
        made = stored.get("made")
        if not self._has_told and made and made[0] != self._made[0]:
            log.warning(
                "%s is of class %s in the script, and was of class %s when the run began: it goes on with "
                "the stored settings and state",
                *(self._name, self._made[0], made[0]),
            )
        self._made = made
        self.tied = [(index, name) for index, name in stored.get("tied", ())]
        self._stored_inner = stored.get("inner")
        self._take_settings(stored.get("settings"))
        self._stored_names = stored["parameters"]
        self._groups = stored.get("groups", len(self._stored_names))

    def _take_settings(self, stored: Any) -> None:
        """Tell, once, which settings were edited in the script since the run began."""
        for index, (mine, other) in enumerate(zip(self._settings, stored or (), strict=False)):
            for key in mine.keys() & other.keys():
                if not self._has_told and repr(mine[key]) != repr(other[key]):
                    log.warning(
                        "%s.param_groups.%d.%s is %r in the script, and was %r when the run began: what "
                        "is stored counts; to change it, set it after the restore",
                        *(self._name, index, key, mine[key], other[key]),
                    )
        self._has_told, self._stored_settings = True, stored

    def restore_inner(self) -> None:
        """Give the inner optimizers what they had; a commit has nothing of them before they have a state."""
        if self._stored_inner == {}:  # nothing was restored here
            return
        for key, part in self._inner.items():
            state = (self._stored_inner or {}).get(key)
            part.restore({**part.capture(), "state": {}} if state is None else state)

    def fit_groups(self, stored: list[dict[str, Any]]) -> None:
        """Remove groups that were added since, or add those that were; the run must do the same.

        It does if the optimizer had the same number of groups when it was made.
        """
        groups = self._optimizer.param_groups
        if len(groups) == len(stored):
            return
        if self._groups != self._first:
            raise ConflictError(
                f"the optimizer began with {self._groups} groups, not {self._first}"
            )
        for group in groups[len(stored) :]:
            for param in group["params"]:
                self._optimizer.state.pop(param, None)
                param.grad = None
        del groups[len(stored) :]
        known = self._find_all()
        for group, names in list(zip(stored, self._stored_names, strict=True))[len(groups) :]:
            for name in names:
                if name not in known:
                    raise ConflictError(
                        f"a group added during the run has parameter {name!r}, which is in no model"
                    )
            self._optimizer.add_param_group({**group, "params": [known[name] for name in names]})

    def foresee_parameters(self) -> dict[int, torch.Tensor]:
        """Return the parameters by index, also of groups that a restore of what was compared adds."""
        params = index_parameters(self._optimizer)
        groups = self._optimizer.param_groups
        added = self._compared_names[len(groups) :]
        known = self._find_all() if added else {}
        first = sum(len(group["params"]) for group in groups)
        more = enumerate(itertools.chain.from_iterable(added), first)
        return params | {index: known[name] for index, name in more if name in known}

    def _find_all(self) -> Mapping[Any, torch.Tensor]:
        return self._names.by_name() if isinstance(self._names, ParameterNames) else {}
