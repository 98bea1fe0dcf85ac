"""Where a state comes back from: a commit of a repository, an image, or values in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from mvc import compare_image, outline_image, read_image
from mvc_hooks.parts.tree import find_changes, format_path, map_leaves, outline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc import Repo


class StateSource(Protocol):
    """A state that can be given back to a live run."""

    def outline(self) -> dict[str, Any]:
        """Return its structure, with ``mvc.ArrayOutline`` in place of every array."""
        ...

    def load(self, into: Mapping[str, object]) -> dict[str, Any]:
        """Return the state, with the live tensors of ``into`` in it, filled in place.

        ``into`` is nested like the state, and may hold less than it, never more.
        """
        ...

    def check(self, state: Mapping[str, object]) -> tuple[str, ...]:
        """Return a line for every difference of a live state; none if it is the same bit for bit."""
        ...


@dataclass(frozen=True, slots=True)
class CommitSource:
    """The state of a commit."""

    repo: Repo
    revision: str

    def outline(self) -> dict[str, Any]:
        """Return its structure."""
        return self.repo.outline_state(self.revision)

    def load(self, into: Mapping[str, object]) -> dict[str, Any]:
        """Return it; every byte is hashed as it is read."""
        return self.repo.load_state(self.revision, into=into)

    def check(self, state: Mapping[str, object]) -> tuple[str, ...]:
        """Hash a live state and compare it with the commit."""
        return self.repo.verify_state(state, self.revision).differences


@dataclass(frozen=True, slots=True, eq=False)
class ImageSource:
    """The state of an image: name → bytes of its files."""

    files: Mapping[str, memoryview]

    def outline(self) -> dict[str, Any]:
        """Return its structure."""
        return outline_image(self.files)

    def load(self, into: Mapping[str, object]) -> dict[str, Any]:
        """Return it."""
        return read_image(self.files, into=into)

    def check(self, state: Mapping[str, object]) -> tuple[str, ...]:
        """Compare a live state with the image, byte by byte."""
        return compare_image(state, self.files)


@dataclass(frozen=True, slots=True)
class ValuesSource:
    """A state in memory. It stays the caller's: nothing live will share memory with it."""

    state: Mapping[str, Any]

    def outline(self) -> dict[str, Any]:
        """Return its structure."""
        result: dict[str, Any] = outline(self.state)
        return result

    def load(self, into: Mapping[str, object]) -> dict[str, Any]:
        """Return a copy of it."""
        result: dict[str, Any] = map_leaves(dict(self.state), _copy_leaf, into)
        return result

    def check(self, state: Mapping[str, object]) -> tuple[str, ...]:
        """Compare a live state with it, bit by bit."""
        found = find_changes(state, self.state)
        return tuple(f"{format_path(path)} differs" for path, _, _ in found)


def _copy_leaf(stored: Any, live: Any) -> Any:
    if isinstance(stored, np.ndarray):
        return stored.copy()
    if not isinstance(stored, torch.Tensor):
        return stored
    if not isinstance(live, torch.Tensor):
        return stored.detach().clone()
    with torch.no_grad():
        live.detach().copy_(stored)
    return live
