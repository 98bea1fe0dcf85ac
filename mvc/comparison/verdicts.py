"""What a comparison means, in words: a few sentences, the most telling first, each with its evidence.

Thresholds are meant to stay silent on a healthy fine-tune. How large a change is follows what is seen
between public models: σ is about 0.006 between near twins and 0.06 from a base to its instruct model,
and ΔW/W (the relative L2 distance) of 1.5, 5 and 12 % parts light, moderate, strong and heavy tuning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.comparison import alarms, traits
from mvc.comparison.case import Case, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mvc.comparison.changes import TensorChange
    from mvc.numbers.spectral import Spectrum

__all__ = ["LEVELS", "Verdict", "judge"]

_LOOKS: tuple[Callable[[Case], Iterator[Verdict]], ...] = (
    *(alarms.see_not_finite, alarms.see_norms, alarms.see_dead_rows, alarms.see_saturation),
    *(
        traits.see_identity,
        traits.see_casts,
        traits.see_low_rank,
        traits.see_scaling,
        traits.see_pruned,
    ),
    *(traits.see_rearranged, traits.see_vocabulary, traits.see_frozen, traits.see_size),
    *(traits.see_names, traits.see_bytes_only),
)
LEVELS = ("bad", "warning", "good", "note")


def judge(
    changes: Sequence[TensorChange],
    spectra: Mapping[str, Spectrum] | None = None,
    rearranged: Mapping[str, str] | None = None,
) -> tuple[Verdict, ...]:
    """Return what the changes of a model mean, what is bad first.

    Args:
        changes: every tensor of both sides.
        spectra: spectra of differences by tensor name, where they were asked for.
        rearranged: how elements moved within a tensor, by name: "rows permuted" and the like.
    """
    case = Case(changes, spectra or {}, rearranged or {})
    found = [verdict for look in _LOOKS for verdict in look(case)]
    return tuple(sorted(found, key=lambda verdict: LEVELS.index(verdict.level)))
