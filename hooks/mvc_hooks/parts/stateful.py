"""Anything else with ``state_dict`` and ``load_state_dict``: schedulers, scalers, the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mvc import ConflictError
from mvc_hooks.parts.part import Part, RestoreOrder
from mvc_hooks.parts.rng import keep_rng
from mvc_hooks.parts.tree import Difference, compare_fixed_arrays, compare_keys, place_like

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc_hooks.parts.tree import Steps


@runtime_checkable
class Stateful(Protocol):
    """Anything that can return its state and take it back."""

    def state_dict(self) -> object:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: object) -> object:
        """Take a state back."""
        ...


class StatefulPart(Part):
    """An object that takes its state through ``load_state_dict``.

    Its tensors are not filled in place, because such a method may not expect its memory to hold the
    new values already. They are handed over on the device of the live ones.
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

    def capture(self) -> object:
        """Return ``state_dict()``; if it draws random numbers, the generators are put back."""
        with keep_rng():
            return self._value.state_dict()

    def compare(self, live: object, stored: object, path: Steps) -> Iterator[Difference]:
        """Compare keys if they are fixed, and arrays except those that fill as a run goes on."""
        if self._is_strict:
            yield from compare_keys(live, stored, path)
        yield from compare_fixed_arrays(live, stored, path)

    def restore(self, stored: object) -> None:
        """Hand over the state."""
        try:
            self._value.load_state_dict(place_like(stored, self.capture()))
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            kind = type(self._value).__name__
            raise ConflictError(
                f"{self._name} ({kind}) does not take its state: {error}"
            ) from error
