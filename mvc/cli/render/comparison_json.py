"""How two models differ in numbers, as JSON (docs/json.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.cli.output import pick
from mvc.cli.render.comparison_rows import choose
from mvc.comparison.kinds import find_kind, find_layer
from mvc.comparison.pairs import unravel
from mvc.comparison.rollup import by_kind, by_module
from mvc.numbers.statistics import HISTOGRAM_LOWEST
from mvc.tensor_names import natural_key

if TYPE_CHECKING:
    from mvc.cli.render.comparison_rows import View
    from mvc.comparison.pairs import TensorChange
    from mvc.comparison.rollup import TensorGroup
    from mvc.numbers.spectral import Spectrum
    from mvc.numbers.statistics import TensorStatistics
    from mvc.operations.compare import ModelDiff
    from mvc.operations.token_rows import TokenChanges

_FIGURES = """
    elements changed left_out share_changed sigma relative_l2 cosine ulp_50 ulp_99 ulp_max
    norm_old norm_new scale scale_residual is_cast is_numeric
    zero_rows_old zero_rows_new nan_rows_old nan_rows_new
"""
_HEALTH = "nan inf zeros saturated largest"


def comparison_fields(diff: ModelDiff, view: View | None = None) -> dict[str, object]:
    """Return a comparison for ``--json``; ``view`` chooses among tensors, and their order."""
    changes = sorted(diff.changes, key=lambda change: natural_key(change.name))
    chosen = changes if view is None else choose(changes, view, view.sort or "name")
    return {
        "old": pick(diff.old, "label commit"),
        "new": pick(diff.new, "label commit"),
        "verdicts": [pick(verdict, "kind level text tensors") for verdict in diff.verdicts],
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
        **pick(statistics, _FIGURES),
        "max": statistics.largest,
        "old": pick(statistics.old, _HEALTH),
        "new": pick(statistics.new, _HEALTH),
        "histogram": [[exponent, count] for exponent, count in counts if count],
    }
