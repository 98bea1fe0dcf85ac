"""What commits can be sorted, drawn and searched by: metrics, the step, the health of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.workspace.annotations import read_annotations
from mvc.workspace.health import overall, read_health

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo

_HEALTH = "health."
_FIGURES = {"nan": "nan", "inf": "inf", "max": "largest", "norm": "norm", "saturated": "saturated"}


def find_value(info: CommitInfo, name: str) -> float | None:
    """Return a number that a commit records, or None.

    Args:
        info: the commit.
        name: a metric, ``step``, or ``health.nan``, ``.inf``, ``.max``, ``.norm``, ``.saturated``;
            a metric of that name goes first.
    """
    facts = read_annotations(info)
    value = (facts.metrics or {}).get(name)
    if value is not None:
        return value
    if name == "step":
        return facts.step
    figure = _FIGURES.get(name.removeprefix(_HEALTH)) if name.startswith(_HEALTH) else None
    if figure is None:
        return None
    health = overall(read_health(info.trailers))
    found: float | None = None if health is None else getattr(health, figure)
    return found
