"""Metrics of torchmetrics in a model: what they have summed up is in no state dict.

A collection may update one metric for a group of them; the others get its state when they are
asked for it. They are asked here, or those that a resume creates would begin with old states.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn


def capture_metrics(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Return name of metric → its states and how often it was updated, if it was."""
    for child in module.modules():
        share = getattr(child, "_compute_groups_create_state_ref", None)
        if share is not None:
            share()
    return {
        name: {
            "states": {
                key: list(value) if isinstance(value, list) else value
                for key, value in metric.metric_state.items()
            },
            "updates": metric.update_count,
        }
        for name, metric in _find_metrics(module)
        if metric.update_count
    }


def restore_metrics(module: nn.Module, stored: Mapping[str, Mapping[str, Any]]) -> None:
    """Set all metrics to what they were."""
    for name, metric in _find_metrics(module):
        if name not in stored:
            if metric.update_count:
                metric.reset()
            continue
        for key, value in stored[name]["states"].items():
            is_list = isinstance(value, list)
            placed = [tensor.to(metric.device) for tensor in (value if is_list else [value])]
            setattr(metric, key, placed if is_list else placed[0])
        metric._update_count, metric._computed = stored[name]["updates"], None  # noqa: SLF001  no public way


def _find_metrics(module: nn.Module) -> Iterator[tuple[str, Any]]:
    library = sys.modules.get("torchmetrics")
    if library is not None:
        for name, child in module.named_modules():
            if isinstance(child, library.Metric):
                yield name, child
