"""The outputs of two models' modules for the same inputs: how close, and where they diverge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch

from mvc import UsageError

if TYPE_CHECKING:
    from mvc_lab.behaviour.turns import Returned

_PIECE = 1 << 20
_MOST_DEPTH = 32


@dataclass(frozen=True, slots=True)
class ModuleDifference:
    """The deviation of one module's outputs between the models.

    All outputs of all its calls count as one vector of float64. NaN at the same place, and the same
    infinity, are no difference.

    Attributes:
        name: its path in the model; empty for the model itself.
        kind: its class.
        calls: how often it ran, for all batches.
        elements: numbers compared.
        cosine: of the angle between both; 1 if both are zero, NaN if they do not compare.
        relative_l2: norm of the difference over the norm of the old side.
        largest_difference: between two numbers; NaN or infinite where only one side is.
        passed: whether it is within the thresholds.
        reason: why the two cannot be compared, or None.
    """

    name: str
    kind: str
    calls: int
    elements: int
    cosine: float
    relative_l2: float
    largest_difference: float
    passed: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """The modules of two models, in the order in which they returned first.

    Attributes:
        cosine: the least cosine that passes, or None.
        bound: the largest relative L2 difference that passes, or None.
        samples: rows of the inputs.
        first: of those that do not pass, the one that returned first what does not, or None.
        parted: the names of the modules that ran at the same time under different names, after which
            modules were not compared; or None.
        modules: every module that ran, the model itself last.
    """

    cosine: float | None
    bound: float | None
    samples: int
    first: ModuleDifference | None
    parted: tuple[str, str] | None
    modules: tuple[ModuleDifference, ...]

    @property
    def passed(self) -> bool:
        """Whether all modules are within the thresholds."""
        return self.parted is None and all(module.passed for module in self.modules)

    @property
    def worst_first(self) -> list[ModuleDifference]:
        """All modules, those furthest apart first."""
        gaps = ((module.relative_l2, module) for module in self.modules)
        pairs = [(math.inf if math.isnan(gap) else gap, module) for gap, module in gaps]
        return [module for _, module in sorted(pairs, key=lambda pair: -pair[0])]


class _Sums:
    """The sums of one module, over its calls."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.calls = self.elements = 0
        self.dot = self.sq_old = self.sq_new = self.sq_difference = self.largest = 0.0
        self.reason: str | None = None
        self.failed_at = math.inf  # the call of a batch, of all modules, that did not pass first

    def passes(self, cosine: float | None, bound: float | None) -> bool:
        """Return whether both thresholds hold that are given; NaN is within none."""
        is_near = cosine is None or self.cosine >= cosine
        return is_near and (bound is None or self.relative_l2 <= bound)

    def join(self, other: _Sums) -> None:
        """Take the sums of another call."""
        for name in ("calls", "elements", "dot", "sq_old", "sq_new", "sq_difference"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reason = self.reason or other.reason
        if math.isnan(other.largest) or other.largest > self.largest:
            self.largest = other.largest

    def add(self, old: Any, new: Any) -> None:
        """Take what one call returned."""
        self.calls += 1
        left, right = list(find_tensors(old)), list(find_tensors(new))
        before, after = ([tensor.shape for tensor in side] for side in (left, right))
        if before != after:
            shapes = (", ".join(str(list(shape)) for shape in side) for side in (before, after))
            self.reason = self.reason or "shape {} became {}".format(*shapes)
            return
        for pair in zip(left, right, strict=True):
            pieces = (torch.split(tensor.reshape(-1), _PIECE) for tensor in pair)
            for a, b in zip(*pieces, strict=True):
                self._add_piece(a, b)

    def _add_piece(self, old: torch.Tensor, new: torch.Tensor) -> None:
        is_same = old.dtype == new.dtype and old.device == new.device and torch.equal(old, new)
        old = _widen(old)
        self.elements += old.numel()
        square = float(old @ old)
        if is_same and math.isfinite(square):
            self.dot, self.sq_old = self.dot + square, self.sq_old + square
            self.sq_new += square
            return
        new = _widen(new)
        difference = new - old
        if not bool(difference.isfinite().all()):
            is_equal = (old == new) | (old.isnan() & new.isnan())
            difference = torch.where(is_equal, 0.0, difference)
            is_finite = old.isfinite() & new.isfinite()
            old, new = (torch.where(is_finite, side, 0.0) for side in (old, new))
        self.dot += float(old @ new)
        self.sq_old += float(old @ old)
        self.sq_new += float(new @ new)
        self.sq_difference += float(difference @ difference)
        ends = [abs(float(end)) for end in difference.aminmax()] if difference.numel() else [0.0]
        for largest in ends:  # NaN wins: nothing compares greater
            if math.isnan(largest) or largest > self.largest:
                self.largest = largest

    @property
    def _is_finite(self) -> bool:
        return self.reason is None and math.isfinite(self.largest)

    @property
    def cosine(self) -> float:
        if not self._is_finite:
            return math.nan
        norms = math.sqrt(self.sq_old) * math.sqrt(self.sq_new)
        if norms:
            return max(-1.0, min(1.0, self.dot / norms)) if self.sq_difference else 1.0
        return 0.0 if self.sq_difference else 1.0

    @property
    def relative_l2(self) -> float:
        if not self._is_finite:
            return math.nan
        if not self.sq_difference:
            return 0.0
        return math.sqrt(self.sq_difference / self.sq_old) if self.sq_old else math.inf


class ModuleSums:
    """Takes pairs of outputs as they come and judges them by the given thresholds."""

    def __init__(self, cosine: float | None, bound: float | None) -> None:
        self._limits = (cosine, bound)
        self._sums: dict[str, _Sums] = {}
        self._parted: tuple[str, str] | None = None
        self._calls = 0

    def add(self, old: Returned | None, new: Returned | None) -> None:
        """Take what the next module of each model returned, and at the end the models themselves."""
        if self._parted is not None and (old is None or new is None or old.name or new.name):
            return
        if old is None or new is None or old.name != new.name:
            self._parted = ("" if old is None else old.name, "" if new is None else new.name)
            return
        call = _Sums(old.kind)
        call.add(old.output, new.output)
        total = self._sums.setdefault(old.name, _Sums(old.kind))
        total.join(call)
        if not call.passes(*self._limits):
            total.failed_at = min(total.failed_at, self._calls)
        self._calls = self._calls + 1 if old.name else 0  # the model itself ends a batch

    def judge(self, samples: int) -> ModuleReport:
        """Return all modules, and which of them is the first that does not pass.

        Raises:
            UsageError: no module returned a number.
        """
        if not any(sums.elements or sums.reason for sums in self._sums.values()):
            raise UsageError("no module returns a tensor, so there is nothing to compare")
        # The model itself returns last in every batch.
        order = sorted(self._sums, key=lambda name: not name)
        modules: dict[str, ModuleDifference] = {}
        for name in order:
            sums = self._sums[name]
            modules[name] = ModuleDifference(
                name,
                sums.kind,
                sums.calls,
                sums.elements,
                sums.cosine,
                sums.relative_l2,
                math.nan if sums.reason else sums.largest,
                sums.passes(*self._limits),
                sums.reason,
            )
        failed = [name for name, module in modules.items() if not module.passed]
        first = min(failed, key=lambda name: self._sums[name].failed_at, default=None)
        return ModuleReport(
            *self._limits,
            samples,
            None if first is None else modules[first],
            self._parted,
            tuple(modules.values()),
        )


def find_tensors(output: object, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors in a module's output: nested sequences, mappings and dataclasses."""
    if isinstance(output, torch.Tensor):
        yield output.to_dense() if output.layout != torch.strided else output
    elif depth < _MOST_DEPTH:
        parts: Iterable[Any] = ()
        if isinstance(output, Mapping):
            parts = output.values()
        elif isinstance(output, (list, tuple)):
            parts = output
        elif is_dataclass(output) and not isinstance(output, type):
            parts = (getattr(output, field.name, None) for field in fields(output))
        for value in parts:
            yield from find_tensors(value, depth + 1)


def _widen(piece: torch.Tensor) -> torch.Tensor:
    """Return numbers as float64, on the CPU; complex ones as two each."""
    piece = piece.detach().cpu()
    if piece.is_complex():
        piece = torch.view_as_real(piece.resolve_conj()).reshape(-1)
    return piece.to(torch.float64)
