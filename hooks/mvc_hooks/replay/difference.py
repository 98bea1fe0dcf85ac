"""The first difference between a replayed run and a commit, with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mvc_hooks.parts.tree import ABSENT, find_at, format_path, order_like
from mvc_hooks.run.live import EXTRAS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc import Repo
    from mvc_hooks.replay.stretch import Point
    from mvc_hooks.run.live import LiveRun


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where a replay begins to differ from the run.

    Attributes:
        step: the first committed step whose state differs.
        after_step: the last one whose state does not differ.
        commit: the commit of ``step``.
        name: the first tensor or value that differs, dotted.
        elements: how many elements of the tensor differ; 0 if it is not a tensor.
        size: how many elements it has.
        largest: largest difference of two elements; None if it is not a number.
        others: how many more tensors and values differ.
    """

    step: int
    after_step: int
    commit: str
    name: str
    elements: int
    size: int
    largest: float | None
    others: int

    def __str__(self) -> str:
        """Return one line."""
        text = f"step {self.step}: {self.name} differs"
        if self.elements:
            text += f" in {self.elements:,} of {self.size:,} elements"
        if self.largest is not None:
            text += f", by {self.largest:.3g} at most"
        if self.others:
            text += f"; {self.others} more differ"
        return text


def compare_run(
    repo: Repo, run: LiveRun, point: Point, exact_to: int
) -> tuple[int, FirstDifference | None]:
    """Compare the parts of a live run with those of a commit.

    Args:
        repo: the repository.
        run: the live run.
        point: the commit.
        exact_to: the last step that was exact.

    Returns:
        How many tensors were compared, and the first difference.
    """
    live = run.capture({})
    stored_outline = repo.outline_state(point.commit)
    names = [name for name in stored_outline if name not in EXTRAS]
    state = order_like({name: live[name] for name in names if name in live}, stored_outline)
    check = repo.verify_state(state, point.commit)
    # Counters, watch and environment are not compared: a replay does not commit.
    left_out = tuple(f'state["{name}"]' for name in EXTRAS)
    lines = [line for line in check.differences if not line.startswith(left_out)]
    if not lines:
        return check.tensors, None
    stored = repo.load_state(point.commit)
    different = list(_walk(state, {name: stored[name] for name in names}, ()))
    path, ours, theirs = different[0] if different else ((lines[0],), None, None)
    elements, size, largest = _measure(ours, theirs)
    return check.tensors, FirstDifference(
        step=point.step,
        after_step=exact_to,
        commit=point.commit,
        name=format_path(path),
        elements=elements,
        size=size,
        largest=largest,
        others=max(len(different), len(lines), 1) - 1,
    )


def _walk(live: Any, stored: Any, path: tuple[object, ...]) -> Iterator[tuple[Any, Any, Any]]:
    """Yield path, live and stored value of everything that differs, in the order of the state."""
    if isinstance(stored, dict) and isinstance(live, dict):
        for key in [*stored, *(key for key in live if key not in stored)]:
            yield from _walk(live.get(key, ABSENT), stored.get(key, ABSENT), (*path, key))
    elif isinstance(stored, (list, tuple)) and isinstance(live, (list, tuple)):
        for at in range(max(len(live), len(stored))):
            yield from _walk(find_at(live, (at,)), find_at(stored, (at,)), (*path, at))
    elif _read_bits(live) != _read_bits(stored):
        yield path, live, stored


def _read_bits(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        plain = plain if plain.layout is torch.strided else plain.to_dense()
        flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
        return str(value.dtype), tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return type(value).__name__, repr(value)


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        plain = (plain if plain.layout is torch.strided else plain.to_dense()).resolve_conj()
        is_odd = plain.dtype is torch.bfloat16 or "float8" in str(plain.dtype)
        return (plain.double() if is_odd else plain.resolve_neg()).numpy()
    return value if isinstance(value, np.ndarray) else None


def _measure(live: Any, stored: Any) -> tuple[int, int, float | None]:
    """Return how many elements of two tensors differ, of how many, and by how much at most."""
    ours, theirs = _as_array(live), _as_array(stored)
    if ours is None or theirs is None or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return 0, 0, None
    left, right = np.atleast_1d(ours).ravel(), np.atleast_1d(theirs).ravel()
    width = left.dtype.itemsize
    rows = [np.ascontiguousarray(one).view(np.uint8).reshape(-1, width) for one in (left, right)]
    is_different = (rows[0] != rows[1]).any(axis=1)
    count = int(is_different.sum())
    with np.errstate(all="ignore"):
        gaps = np.abs(left[is_different].astype(complex) - right[is_different].astype(complex))
    finite = gaps[np.isfinite(gaps)]
    return count, left.size, float(finite.max()) if finite.size else None
