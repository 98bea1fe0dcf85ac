"""The rows that show how two models differ: which are wanted, in which order, and what they say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from mvc.cli.output import pick, printable
from mvc.cli.parameters import CommandUsageError, parse_number
from mvc.cli.render.text import shape_text
from mvc.comparison.kinds import find_kind, find_layer
from mvc.comparison.pairs import unravel
from mvc.comparison.rollup import by_kind, by_module
from mvc.numbers.statistics import HISTOGRAM_LOWEST
from mvc.tensor_names import natural_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mvc.comparison.pairs import TensorChange
    from mvc.comparison.rollup import TensorGroup
    from mvc.numbers.spectral import Spectrum
    from mvc.numbers.statistics import TensorStatistics
    from mvc.operations.compare import ModelDiff
    from mvc.operations.token_rows import TokenChanges
    from mvc.workspace.tensors import ModelTensor


_Listed = TypeVar("_Listed", "Row", "TensorChange")

_FIGURES = """
    elements changed left_out share_changed sigma relative_l2 cosine ulp_50 ulp_99 ulp_max
    norm_old norm_new scale scale_residual is_cast is_numeric
    zero_rows_old zero_rows_new nan_rows_old nan_rows_new
"""
_HEALTH = "nan inf zeros saturated largest"


@dataclass(frozen=True, slots=True)
class View:
    """Which rows of a comparison are wanted, and in which order.

    Attributes:
        by: what a row stands for: ``tensor``, ``module`` or ``kind``; None leaves it to the output.
        sort: a key of ``SORT_KEYS``; None leaves it to the output.
        above: only what has a larger sigma.
        everything: list also what a screen has no room for, and tensors that are the same.
    """

    by: str | None = None
    sort: str | None = None
    above: float | None = None
    everything: bool = False


def parse_view(by: str | None, sort: str | None, above: str | None, *, everything: bool) -> View:
    """Return what options ask for; CommandUsageError for a value that is not one of theirs."""
    for option, value, known in (("--by", by, [*ROWS]), ("--sort", sort, [*SORT_KEYS])):
        if value is not None and value not in known:
            names = f"{', '.join(known[:-1])} or {known[-1]}"
            raise CommandUsageError(f"{option} {value!r} is not {names}")
    least = None if above is None else parse_number(above)
    if above is not None and (least is None or not 0 <= least < math.inf):
        raise CommandUsageError(f"--above {above!r} is not a number such as 1e-3")
    return View(by, sort, least, everything)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: of a tensor, of a group, or a heading."""

    name: str
    statistics: TensorStatistics | None = None
    tensors: str = ""
    note: str = ""
    state: str = ""
    spectrum: Spectrum | None = None
    trend: str = ""
    is_heading: bool = False

    @property
    def is_sick(self) -> bool:
        """Whether NaN or infinite elements came in."""
        found = self.statistics
        return found is not None and found.new.nan + found.new.inf > found.old.nan + found.old.inf


def _norm_change(statistics: TensorStatistics) -> float:
    old, new = statistics.norm_old, statistics.norm_new
    return abs(math.log(new / old)) if old > 0 and new > 0 else 0.0 if old == new else math.inf


SORT_KEYS: dict[str, Callable[[TensorStatistics], float | None]] = {
    "sigma": lambda one: one.sigma,
    "l2": lambda one: one.relative_l2,
    "cosine": lambda one: None if one.cosine is None else -one.cosine,
    "max": lambda one: one.largest,
    "changed": lambda one: one.share_changed,
    "ulp": lambda one: one.ulp_99,
    "norm": _norm_change,
    "name": lambda _: None,
}
"""What rows can be sorted by: the most changed come first, those without the figure last."""


def choose(rows: Iterable[_Listed], view: View, sort: str) -> list[_Listed]:
    """Return the rows that are wanted, the most changed first, or in natural order of names."""
    least = view.above
    if least is not None:
        rows = [row for row in rows if row.statistics and (row.statistics.sigma or 0.0) > least]

    def place(row: _Listed) -> tuple[float, object]:
        value = None if row.statistics is None else SORT_KEYS[sort](row.statistics)
        return math.inf if value is None or math.isnan(value) else -value, natural_key(row.name)

    return sorted(rows, key=place)


def tensor_rows(diff: ModelDiff, *, everything: bool = False) -> list[Row]:
    """Return a row for each tensor that differs, or for each at all."""
    changes = diff.changes if everything else diff.differing
    return [
        Row(
            change.name,
            change.statistics,
            note=_note(change),
            state="reshaped" if change.status == "modified" else change.status,
            spectrum=change.spectrum,
        )
        for change in changes
    ]


def _note(change: TensorChange) -> str:
    """Return what else there is to say of a tensor: where figures are missing or would mislead."""
    old, new = change.pair.old, change.pair.new
    if old is None or new is None:
        return f"{change.status} {_shape(change.pair.shown)}"
    words = [f"renamed from {printable(old.name)}"] if old.name != new.name else []
    if old.view.dtype != new.view.dtype or old.view.shape != new.view.shape:
        words.append(f"{_shape(old)} -> {_shape(new)}")
    elif change.status == "unchanged":
        words.append("the same")
    return ", ".join([*words, *_sick_words(change.statistics)])


def _shape(tensor: ModelTensor) -> str:
    return shape_text(tensor.view.dtype, tensor.view.shape)


def _sick_words(statistics: TensorStatistics | None) -> list[str]:
    if statistics is None:
        return []
    old, new = statistics.old, statistics.new
    pairs = (("NaN", old.nan, new.nan), ("inf", old.inf, new.inf))
    words = [f"{name} {before:,} -> {after:,}" for name, before, after in pairs if before or after]
    return words if statistics.is_numeric else [*words, "compared by bytes only"]


def group_rows(groups: Sequence[TensorGroup], trends: Mapping[str, str] | None = None) -> list[Row]:
    """Return a row for each group in which something differs; ``trends`` are bars by name."""
    return [
        Row(
            group.name,
            group.statistics,
            f"{group.differing:,}/{group.tensors:,}",
            ", ".join(_sick_words(group.statistics)),
            trend=(trends or {}).get(group.name, ""),
        )
        for group in groups
        if group.differing
    ]


ROWS: dict[str, Callable[[ModelDiff, View], list[Row]]] = {
    "tensor": lambda diff, view: tensor_rows(diff, everything=view.everything),
    "module": lambda diff, _: group_rows(by_module(diff.changes)),
    "kind": lambda diff, _: group_rows(by_kind(diff.changes)),
}
"""What rows can stand for, and how they are made."""


def comparison_fields(diff: ModelDiff, view: View | None = None) -> dict[str, object]:
    """Return a comparison for ``--json``; ``view`` chooses among tensors, and their order."""
    changes = sorted(diff.changes, key=lambda change: natural_key(change.name))
    chosen = changes if view is None else choose(changes, view, view.sort or "name")
    return {
        **pick(diff, "old(label commit) new(label commit) verdicts(kind level text tensors)"),
        "tokens": None if diff.tokens is None else _token_fields(diff.tokens),
        "total": _group_fields(diff.total),
        "kinds": [_group_fields(group) for group in by_kind(changes)],
        "modules": [_group_fields(group) for group in by_module(changes)],
        "tensors": [_tensor_fields(change) for change in chosen],
    }


def _token_fields(tokens: TokenChanges) -> dict[str, object]:
    statistics = {
        name: None if one is None else _statistics_fields(one)
        for name, one in tokens.statistics.items()
    }
    return {**pick(tokens, "common added removed moved faults"), "statistics": statistics}


def _group_fields(group: TensorGroup) -> dict[str, object]:
    statistics = group.statistics
    fields = None if statistics is None else _statistics_fields(statistics)
    return {**pick(group, "name tensors elements differing"), "statistics": fields}


def _tensor_fields(change: TensorChange) -> dict[str, object]:
    shown, old, shape = change.pair.shown, change.pair.old, change.compared_shape
    before = {}
    if old is not None and shown is not old:
        pairs = {
            "old_path": (old.path, shown.path),
            "old_name": (old.name, shown.name),
            "old_dtype": (old.view.dtype, shown.view.dtype),
            "old_shape": (old.view.shape, shown.view.shape),
        }
        before = {key: was for key, (was, now) in pairs.items() if was != now}
    statistics = None
    if change.statistics is not None and shape is not None:
        index = change.statistics.largest_index
        place = None if index is None else unravel(index, shape)
        statistics = {**_statistics_fields(change.statistics), "max_index": place}
    return {
        **pick(change, "name status"),
        **pick(shown, "path size_bytes"),
        **pick(shown.view, "dtype shape"),
        **before,
        "kind": find_kind(change.name, shown.view.shape),
        "layer": find_layer(change.name),
        "compared_shape": shape,
        "statistics": statistics,
        "spectrum": None if change.spectrum is None else _spectrum_fields(change.spectrum),
    }


def _spectrum_fields(spectrum: Spectrum) -> dict[str, object]:
    ranks = {f"rank_{percent}": spectrum.find_rank(percent / 100) for percent in (90, 99)}
    return {"sigma_1": spectrum.largest, **pick(spectrum, "stable_rank full_rank values"), **ranks}


def _statistics_fields(statistics: TensorStatistics) -> dict[str, object]:
    counts = enumerate(statistics.histogram, HISTOGRAM_LOWEST)
    return {
        **pick(statistics, f"{_FIGURES} max=largest old({_HEALTH}) new({_HEALTH})"),
        "histogram": [[exponent, count] for exponent, count in counts if count],
    }
