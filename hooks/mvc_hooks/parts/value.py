"""Plain values (counters, histories, arrays), and objects that keep their state themselves.

The latter are whatever has ``state_dict`` and ``load_state_dict``: schedulers, scalers, the user's own.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch

from mvc import ConflictError, UsageError
from mvc_hooks.parts.part import Part, RestoreOrder
from mvc_hooks.parts.rng import keep_rng
from mvc_hooks.parts.tree import (
    Difference,
    Steps,
    compare_arrays,
    compare_fixed_arrays,
    compare_keys,
    locate,
    outline,
    place_like,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


log = logging.getLogger("mvc_hooks")
_MOVING = {"last_epoch", "eta_min"}
"""Arguments of schedulers that change as a run goes on, the latter with ``lr_scale``."""
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)


class ValuePart(Part):
    """A plain value; after a restore ``value`` is the stored one.

    Containers, tensors and arrays are changed in place, and stay the same objects.
    """

    def __init__(self, name: str, value: object) -> None:
        self._name = name
        self.value: Any = value

    def capture(self) -> object:
        """Return it."""
        return self.value.detach() if isinstance(self.value, torch.Tensor) else self.value

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare arrays, except those that fill as a run goes on; None takes anything."""
        if live is None:
            return
        is_held = isinstance(live, (dict, list, tuple))
        compare = compare_fixed_arrays if is_held else compare_arrays
        yield from compare(live, stored, path)

    def targets(self, captured: Any, stored: Any) -> object:  # noqa: ARG002  what fits is picked
        """Return all of it: only this part knows its content."""
        return captured

    def restore(self, stored: Any) -> None:
        """Put the stored content into the live containers and arrays."""
        try:
            self.value = _fill(self.value, stored)
        except (ValueError, TypeError) as error:
            raise UsageError(f"{self._name} cannot be filled in place: {error}") from error


def _fill(live: Any, stored: Any) -> Any:
    """Return the live container with the stored content, or what is stored if none fits."""
    if live is stored:
        return live
    if isinstance(live, torch.Tensor) and isinstance(stored, torch.Tensor):
        if outline(live) != outline(stored) or live.layout is not torch.strided:
            return stored.to(live.device)
        if locate(live) is None or locate(live) != locate(stored):
            with torch.no_grad():
                live.copy_(stored)
        return live
    return _fill_container(live, stored) if type(live) is type(stored) else stored


def _fill_container(live: Any, stored: Any) -> Any:
    kind = type(live)
    if kind in _MAPPINGS:
        content = {key: _fill(live.get(key), item) for key, item in stored.items()}
        live.clear()
        live.update(content)
    elif kind in (list, deque):
        items = list(stored)
        for index, (mine, item) in enumerate(zip(live, items, strict=False)):
            items[index] = _fill(mine, item)
        live.clear()
        live.extend(items)
    elif kind is tuple and len(live) == len(stored):
        return tuple(map(_fill, live, stored))
    elif kind is set:
        live.clear()
        live.update(stored)
    elif kind is bytearray:
        live[:] = stored
    elif kind is np.ndarray and outline(live) == outline(stored) and live.flags.writeable:
        live[...] = stored
    else:
        return stored
    return live


@runtime_checkable
class Stateful(Protocol):
    """Anything that can return its state and take it back."""

    def state_dict(self) -> object:
        """Return the state."""

    def load_state_dict(self, state_dict: object) -> object:
        """Take a state back."""


class StatefulPart(Part):
    """An object that takes its state through ``load_state_dict``.

    Its tensors are not filled in place, because such a method may not expect its memory to hold the
    new values already. They are handed over on the device of the live ones, DTensors as new ones.
    """

    def __init__(
        self, name: str, value: Stateful, order: RestoreOrder = RestoreOrder.OTHER
    ) -> None:
        """Take an object, the name that messages give it, and when to restore it."""
        self._name = name
        self._value = value
        self.order = order
        # Keys of schedulers and scalers are fixed, so other keys mean another kind of object.
        self._is_strict = order is RestoreOrder.SCHEDULER
        self._has_told = False

    def capture(self) -> object:
        """Return ``state_dict()``; if it draws random numbers, the generators are put back."""
        with keep_rng():
            return self._value.state_dict()

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare keys if they are fixed, and arrays except those that fill as a run goes on."""
        if self._is_strict:
            differences = list(compare_keys(live, stored, path))
            if (
                len({difference.live is None for difference in differences}) > 1
            ):  # each side has keys of its own
                kind = type(self._value).__name__
                differences = [Difference(path, f"of class {kind}", "of another class")]
            yield from differences
        for difference in compare_fixed_arrays(live, stored, path):
            yield replace(difference, may_fit=not self._is_strict)

    def restore(self, stored: Any) -> None:
        """Hand over the state."""
        if self._is_strict and not self._has_told:
            self._tell_edits(stored)
        try:
            self._value.load_state_dict(place_like(stored, self.capture()))
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            kind = type(self._value).__name__
            raise ConflictError(
                f"{self._name} ({kind}) does not accept its state: {error}"
            ) from error

    def _tell_edits(self, stored: Mapping[str, Any]) -> None:
        """Tell, once, which arguments of torch's schedulers and scalers were edited in the script."""
        kind, live, self._has_told = type(self._value), self._value.state_dict(), True
        if not kind.__module__.startswith("torch.") or not isinstance(live, dict):
            return
        for name in inspect.signature(kind).parameters:
            if name in live.keys() & stored.keys() - _MOVING and live[name] != stored[name]:
                log.warning(
                    "%s.%s is %r in the script, and %r in the commit: what is stored counts; to change "
                    "it, set it after the restore",
                    *(self._name, name, live[name], stored[name]),
                )
