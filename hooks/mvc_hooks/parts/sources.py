"""Where a state comes back from: a commit of a repository, an image, or values in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from mvc import NotFoundError
from mvc.training import RunStore, compare_image, outline_image, read_image
from mvc_hooks.parts.tree import find_changes, format_path, map_leaves, outline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mvc import Repo

State: TypeAlias = "Mapping[str, Any]"


def _lacks_folders(name: str) -> StateSource:
    raise NotFoundError(f"there is no {name}")


@dataclass(frozen=True, slots=True, eq=False)
class StateSource:
    """A state that can be given back to a live run.

    Attributes:
        outline: returns its structure, with ``mvc.training.ArrayOutline`` in place of every array.
        load: returns the state, with the live tensors that it is given in it, filled in place. They
            are nested like the state, and may be less than it, never more.
        check: returns a line for every difference of a live state; none if it is the same bit for
            bit.
        is_own: whether it holds what this rank alone had.
        identify: as ``outline``, and each array has the identity of its bytes.
        folder: returns the state of a folder of the same commit.
    """

    outline: Callable[[], dict[str, Any]]
    load: Callable[[State], dict[str, Any]]
    check: Callable[[State], tuple[str, ...]]
    is_own: bool = False
    identify: Callable[[], dict[str, Any]] = dict
    folder: Callable[[str], StateSource] = _lacks_folders


def from_commit(repo: Repo, revision: str, folder: str | None = None) -> StateSource:
    """Return the state of a commit, or of a folder of it; every byte is hashed as it is read, or compared."""
    return StateSource(
        outline=partial(RunStore(repo).outline_state, revision, folder=folder),
        load=lambda into: repo.load_state(revision, into=into, folder=folder),
        check=lambda state: repo.verify_state(state, revision, folder=folder).differences,
        identify=partial(RunStore(repo).outline_state, revision, folder=folder, with_content=True),
        folder=partial(from_commit, repo, revision),
    )


def from_image(files: Mapping[str, memoryview]) -> StateSource:
    """Return the state of an image, which is name → bytes of its files."""
    return StateSource(
        outline=partial(outline_image, files),
        load=lambda into: read_image(files, into=into),
        check=lambda state: compare_image(state, files),
        is_own=True,
    )


def from_values(values: State) -> StateSource:
    """Return a state in memory. It stays the caller's: nothing live will share memory with it."""
    return StateSource(
        outline=partial(outline, values),
        load=partial(map_leaves, dict(values), _copy_leaf),
        check=lambda state: tuple(
            f"{format_path(path)} differs" for path, _, _ in find_changes(state, values)
        ),
    )


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
