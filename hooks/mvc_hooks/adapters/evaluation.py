"""The loaders of evaluation, which a library iterates itself."""

from __future__ import annotations

from typing import Any

from mvc_hooks.parts.reach import find_loaders
from mvc_hooks.parts.watch import LoaderWatch, has_own_workers


class EvaluationLoaders:
    """Loaders that a library iterates beside training, in the order in which it takes them.

    Only persistent workers matter: they draw a seed from the process's generator at their first
    pass, and no more at later ones.
    """

    epoch = 0

    def __init__(self) -> None:
        self._watches: list[LoaderWatch] = []
        self._restored: list[dict[str, Any]] = []

    def note_begin(self) -> bool:
        """Count no passes."""
        return False

    def note_drawn(self, path: str, indices: object) -> None:
        """Record nothing: no state learns from these samples."""

    def watch(self, loader: Any) -> None:
        """Watch a loader, which takes up its restored state."""
        for one in find_loaders(loader).values():
            if has_own_workers(one) and "_get_iterator" not in vars(one):
                self._watches.append(LoaderWatch(one, self))
                if self._restored:
                    self._watches[-1].restore(self._restored.pop(0))

    def _forget_dead(self) -> None:
        """Leave out loaders that the library has replaced."""
        self._watches = [watch for watch in self._watches if watch.is_persistent]

    def capture(self) -> list[dict[str, Any]]:
        """Return the states of those that began, up to the last such."""
        self._forget_dead()
        states = [watch.capture(is_between=True) for watch in self._watches] + self._restored
        while states and not states[-1]:
            states.pop()
        return states

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Begin again where the states say, or at the start where there is none."""
        self._forget_dead()
        for index, watch in enumerate(self._watches):
            watch.restore(states[index] if index < len(states) else {})
        self._restored = states[len(self._watches) :]

    def remove(self) -> None:
        """Stop watching."""
        for watch in self._watches:
            watch.remove()
