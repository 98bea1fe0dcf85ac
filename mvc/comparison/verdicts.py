"""What a comparison means, in words: a few sentences, the most telling first, each with its evidence.

Thresholds are meant to stay silent on a healthy fine-tune. How large a change is follows what is seen
between public models: σ is about 0.006 between near twins and 0.06 from a base to its instruct model,
and ΔW/W (the relative L2 distance) of 1.5, 5 and 12 % parts light, moderate, strong and heavy tuning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mvc.comparison import traits
from mvc.comparison.case import Case, ComparisonVerdict, count, is_matrix, is_weight, tell
from mvc.dtypes import get_dtype

if TYPE_CHECKING:
    from mvc.comparison.pairs import TensorChange
    from mvc.numbers.health import Health
    from mvc.numbers.spectral import Spectrum


NORM_FACTOR = 10.0
"""A norm that grew or fell by more than this is remarkable; of vectors that fell, by its square."""
_USUAL_MATRIX, _USUAL_VECTOR = 0.01, 1.0  # root mean square that healthy training reaches from zero
SATURATED_SHARE = 1e-3


# What is probably wrong with the new model; a healthy fine-tune raises none of these alarms.
def see_not_finite(case: Case) -> Iterator[ComparisonVerdict]:
    """More NaN or Inf than before."""
    came = [(change, two) for change, two in case.measured if _bad(two.new) > _bad(two.old)]
    came.sort(key=lambda one: -_bad(one[1].new))
    if came:
        rows = sum(two.nan_rows_new for _, two in came)
        where = f" (NaN in {count(rows, 'row')})" if rows else ""
        elements = count(sum(_bad(two.new) for _, two in came), "element")
        text = f"new NaN or Inf: {elements}{where} of "
        yield tell("not-finite", text, [one for one, _ in came], level="bad")
    gone = [change for change, two in case.measured if _bad(two.old) and not _bad(two.new)]
    if gone:
        yield tell("finite-again", "NaN or Inf no longer in ", gone)


def see_dead_rows(case: Case) -> Iterator[ComparisonVerdict]:
    """Rows that became all zero."""
    dead = {
        change: two.zero_rows_new - two.zero_rows_old
        for change, two in case.measured
        if two.zero_rows_new > two.zero_rows_old and is_weight(change)
    }
    if dead:
        rows = count(sum(dead.values()), "row")
        yield tell("dead-rows", f"dead rows: {rows} became all zero in ", dead, level="bad")


def see_norms(case: Case) -> Iterator[ComparisonVerdict]:
    """Norms that exploded or vanished, the worst first.

    What began at or near zero, as biases, LoRA's B and layer scales do, grows many times in healthy
    training: it exploded once it is that many times larger than weights of its kind usually are.
    """
    old = _find_rms([two.old for _, two in case.weights])
    ratios = [
        (two.norm_new / two.norm_old, change, two)
        for change, two in case.weights
        if two.norm_old and two.left_out < two.elements
    ]
    ratios.sort(key=lambda ratio: -ratio[0])
    grown = [
        (ratio, one)
        for ratio, one, two in ratios
        if ratio > NORM_FACTOR < _find_rms([two.new]) / max(old, _usual_of(one))
    ]
    fallen = [
        (ratio, one)
        for ratio, one, _ in reversed(ratios)
        if ratio * NORM_FACTOR ** (1 if is_matrix(one) else 2) < 1
    ]
    for kind, some in (("exploded", grown), ("vanished", fallen)):
        if some:
            text = f"{kind} norm: {some[0][0]:.3g} times the old one in "
            yield tell(f"{kind}-norm", text, [one for _, one in some], level="bad")


def see_saturation(case: Case) -> Iterator[ComparisonVerdict]:
    """Small float types whose elements are clipped, and were not; MX scales clip some by design."""
    some = [
        change
        for change, two in case.measured
        if get_dtype(change.pair.shown.view.dtype).block_elements == 1
        and two.new.saturated > max(SATURATED_SHARE * two.new.elements, 2 * two.old.saturated)
    ]
    if some:
        text = f"saturated: more than {100 * SATURATED_SHARE:.1f} % of elements are at the largest value of their type in "
        yield tell("saturated", text, some, level="warning")


def _find_rms(some: Sequence[Health]) -> float:
    finite = sum(health.elements - _bad(health) for health in some)
    return math.sqrt(sum(health.sum_sq for health in some) / max(finite, 1))


def _usual_of(change: TensorChange) -> float:
    return _USUAL_MATRIX if is_matrix(change) else _USUAL_VECTOR


def _bad(health: Health) -> int:
    return health.nan + health.inf


_LOOKS: tuple[Callable[[Case], Iterator[ComparisonVerdict]], ...] = (
    *(see_not_finite, see_norms, see_dead_rows, see_saturation),
    *(traits.see_identity, traits.see_casts, traits.see_low_rank, traits.see_scaling),
    *(traits.see_pruned, traits.see_rearranged, traits.see_vocabulary, traits.see_frozen),
    *(traits.see_size, traits.see_names, traits.see_bytes_only),
)
LEVELS = ("bad", "warning", "good", "note")


def judge(
    changes: Sequence[TensorChange],
    spectra: Mapping[str, Spectrum] | None = None,
    rearranged: Mapping[str, str] | None = None,
) -> tuple[ComparisonVerdict, ...]:
    """Return what the changes of a model mean, what is bad first.

    ``spectra`` are those of differences, where they were asked for, and ``rearranged`` is how elements moved
    within a tensor: "rows permuted" and the like.
    """
    case = Case(changes, spectra or {}, rearranged or {})
    found = [verdict for look in _LOOKS for verdict in look(case)]
    return tuple(sorted(found, key=lambda verdict: LEVELS.index(verdict.level)))
