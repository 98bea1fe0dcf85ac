"""Verdicts on the kind of change: a cast, a factor, a low rank, a part of the model, its size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mvc.comparison.case import (
    ComparisonVerdict,
    count,
    dtypes_of,
    enumerate_words,
    group,
    is_matrix,
    is_part,
    is_quantised,
    names_of,
    tell,
)
from mvc.comparison.kinds import find_frozen_modules, kind_of, name_part
from mvc.numbers.statistics import TensorStatistics

if TYPE_CHECKING:
    from mvc.comparison.case import Case

LORA_ENERGY = 0.95
"""Share of a difference's energy that a LoRA of its rank has; the rest may be rounding."""
_SCALED_SHARE = 0.9  # of the change's energy that is one factor
_PRUNED_SHARE = 0.05  # of elements that became zero
_SIZES = ((0.015, "light"), (0.05, "moderate"), (0.12, "strong"), (math.inf, "heavy"))  # ΔW/W below
_WORTH_TELLING = 0.01  # share of elements that is frozen here and there
_TWINS, _UNRELATED = 0.01, 0.5  # σ below; cosine below


def see_identity(case: Case) -> Iterator[ComparisonVerdict]:
    """Nothing differs."""
    statuses = {change.status for change in case.changes}
    tensors = count(len(case.changes), "tensor")
    if not statuses:
        yield ComparisonVerdict("empty", "nothing to compare: neither side has a tensor")
    elif statuses <= {"unchanged", "renamed"}:
        names = " except for names" if "renamed" in statuses else ""
        text = f"identical{names}: every bit of {tensors} is the same"
        yield ComparisonVerdict("identical", text, "good")


def see_casts(case: Case) -> Iterator[ComparisonVerdict]:
    """Tensors that have another dtype: rounded and nothing else, or more."""
    said = {
        "cast": "cast from {} to {}, the old values exactly rounded: ",
        "quantised": "converted from {} to {} as quantisation does, ΔW/W {:.2g} %: ",
        "retyped": "converted from {} to {}, with values that rounding does not explain: ",
    }
    found = [(change, two) for change, two in case.measured if len(set(dtypes_of(change))) > 1]
    kinds = [
        (one, ("cast" if two.is_cast else "quantised" if is_quantised(one, two) else "retyped"))
        for one, two in found
    ]
    figures = dict(found)
    for kind, alike in sorted(group(kinds), key=lambda one: [*said].index(one[0])):
        for (old, new), some in group((change, dtypes_of(change)) for change in alike):
            total = sum((figures[change] for change in some), TensorStatistics())
            text = said[kind].format(old, new, 100 * (total.relative_l2 or 0))
            if len(some) == len(case.changes):
                yield ComparisonVerdict(kind, f"{text}every tensor", tensors=names_of(some))
            else:
                yield tell(kind, text, some)


def see_scaling(case: Case) -> Iterator[ComparisonVerdict]:
    """Tensors multiplied by a number; of vectors training alone makes such as nearly are, as norms."""
    scaled = [
        (change, two.scale)
        for change, two in case.weights
        if two.elements > 1 and two.scale is not None and _is_scaled(two)
    ]
    if len(scaled) < len(case.having("modified")):
        scaled = [(one, scale) for one, scale in scaled if is_matrix(one)]
    if not scaled:
        return
    low, high = (pick(scale for _, scale in scaled) for pick in (min, max))
    is_one = high - low <= 0.01 * max(abs(high - 1), abs(low - 1))
    factor = f"{low:.4g}" if is_one else f"{low:.4g} to {high:.4g}"
    text = f"scaled: new ≈ {factor} × old in "
    if len(scaled) == len(case.having("modified")):
        where = f"every tensor that changed ({len(scaled):,})"
        yield ComparisonVerdict("scaled", text + where, tensors=names_of(one for one, _ in scaled))
    else:
        yield tell("scaled", text, [one for one, _ in scaled])


def _is_scaled(two: TensorStatistics) -> bool:
    """Return whether the last term rules in ‖new - old‖² = ‖new - c·old‖² + (c - 1)²‖old‖².

    A random change of n elements has all but a share x of its energy there with a chance of about
    x^((n - 1) / 2): so of few elements more is asked, to keep that below 1e-8.
    """
    if not two.sum_sq_difference or not two.sum_sq_old:
        return False
    share = (two.dot - two.sum_sq_old) ** 2 / two.sum_sq_old / two.sum_sq_difference
    return 1 - share < min(1 - _SCALED_SHARE, 10 ** (-16 / (two.elements - 1)))


def see_pruned(case: Case) -> Iterator[ComparisonVerdict]:
    """Elements that became zero while the others did not change."""
    pruned = {
        change: two.new.zeros - two.old.zeros
        for change, two in case.weights
        if two.norm_new
        and two.changed == two.new.zeros - two.old.zeros > _PRUNED_SHARE * two.elements
    }
    if pruned:
        share = sum(pruned.values()) / sum(change.pair.shown.elements for change in pruned)
        text = f"pruned: {100 * share:.0f} % of the elements became zero, the others are as before, in "
        yield tell("pruned", text, pruned)


def see_rearranged(case: Case) -> Iterator[ComparisonVerdict]:
    """Tensors whose elements moved, with none changed."""
    found = [
        (change, case.rearranged[change.name])
        for change in case.having("modified")
        if change.name in case.rearranged
    ]
    for how, some in group(found):
        yield tell("rearranged", f"{how}, no value changed: ", some)


def see_low_rank(case: Case) -> Iterator[ComparisonVerdict]:
    """Whether a LoRA could hold the whole update."""
    known = {name: spectrum for name, spectrum in case.spectra.items() if spectrum.energy}
    ranks = {name: one.find_rank(LORA_ENERGY) for name, one in known.items()}
    low = {name: rank for name, rank in ranks.items() if rank and rank * 4 <= known[name].full_rank}
    share, differences = f"{100 * LORA_ENERGY:.0f} % of the energy", count(len(known), "difference")
    if known and len(low) == len(known):
        rank = max(low.values())
        size = 2 ** math.ceil(math.log2(rank))
        text = f"low-rank update, LoRA-extractable at r = {size}: {share} of {differences} is in "
        yield ComparisonVerdict(
            "low-rank", f"{text}{count(rank, 'direction')} each", tensors=tuple(low)
        )
    elif known:
        high = tuple(name for name in known if name not in low)
        text = f"not low-rank: in {len(high):,} of {differences} a few directions have less than {share}"
        yield ComparisonVerdict("full-rank", text, tensors=high)


def see_vocabulary(case: Case) -> Iterator[ComparisonVerdict]:
    """Embeddings and heads with more rows, or fewer."""
    resized = []
    for change in case.having("modified"):
        shapes = [side.view.shape for side in change.pair.sides]
        is_table = kind_of(change) in {"embedding", "head"} and all(shapes)
        if is_table and shapes[0] != shapes[1] and shapes[0][1:] == shapes[1][1:]:
            resized.append((change, (shapes[0][0], shapes[1][0])))
    for (before, after), some in group(resized):
        changed = any(change.statistics is None or change.statistics.changed for change in some)
        verb = "grew" if after > before else "shrank"
        text = f"the vocabulary {verb} from {before:,} to {after:,} rows: "
        rest = f"; the common rows are {'changed' if changed else 'equal'}"
        yield tell("vocabulary", text, some, rest)


def see_frozen(case: Case) -> Iterator[ComparisonVerdict]:
    """Which part changed, and which is frozen."""
    frozen, changed = (
        [change for change in case.having(status) if is_part(change)]
        for status in ("unchanged", "modified")
    )
    if not frozen or not changed:
        return
    size, whole = (
        sum(change.pair.shown.elements for change in some) for some in (frozen, frozen + changed)
    )
    rest = f"{count(len(frozen), 'tensor')} with {100 * size / max(whole, 1):.0f} % of the elements"
    part = name_part(frozen, changed)
    if part is not None:
        yield tell("frozen", f"only {part} changed: ", changed, f"; frozen: {rest}")
        return
    modules = find_frozen_modules(frozen, changed)
    if not modules and size < _WORTH_TELLING * whole:
        return
    within = f", including all of {enumerate_words(modules)}" if modules else ""
    yield ComparisonVerdict("frozen", f"frozen: {rest}{within}", tensors=names_of(frozen))


def see_size(case: Case) -> Iterator[ComparisonVerdict]:
    """How far the weights that changed have moved, all together."""
    weights = [
        (is_matrix(change), two)
        for change, two in case.weights
        if two.sum_sq_difference and change.name not in case.rearranged
    ]
    if not weights:
        return
    has_matrix = any(
        is_matrix for is_matrix, _ in weights
    )  # beside which norms and biases would weigh too much
    total, *others = (two for is_matrix, two in weights if is_matrix == has_matrix)
    for two in others:
        total += two
    sigma, distance, cosine = total.sigma, total.relative_l2, total.cosine
    if sigma is None or distance is None or cosine is None:
        return
    word = next(word for limit, word in _SIZES if distance < limit)
    text = f"a {word} change"
    if abs(cosine) < _UNRELATED < distance:
        text = "unrelated values"
    twins = ", typical of near twins" if sigma < _TWINS else ""
    figures = f"ΔW/W {100 * distance:.3g} %, σ {sigma:.2g}{twins}"
    yield ComparisonVerdict("size", f"{text} in {count(len(weights), 'tensor')}: {figures}")


def see_names(case: Case) -> Iterator[ComparisonVerdict]:
    """Tensors that are new, gone, renamed or of a shape that does not fit."""
    adapters = [change for change in case.having("added") if kind_of(change) == "lora_A"]
    if adapters:
        ranks = sorted({min(change.pair.shown.view.shape, default=0) for change in adapters})
        text = f"a LoRA adapter was added (r = {enumerate_words([str(rank) for rank in ranks])}): "
        yield tell("adapter", text, adapters)
    for status in ("renamed", "added", "removed"):
        some = [
            change
            for change in case.having(status)
            if not adapters or "lora" not in kind_of(change)
        ]
        if some:
            yield tell(status, f"{count(len(some), 'tensor')} {status}: ", some)
    unfit = [change for change in case.having("modified") if change.statistics is None]
    unfit = [change for change in unfit if change.name not in case.rearranged]
    if unfit:
        yield tell("reshaped", "shape changed, cannot be compared: ", unfit)


def see_bytes_only(case: Case) -> Iterator[ComparisonVerdict]:
    """Types whose values are not known."""
    some = [
        change
        for change in case.having("modified")
        if change.statistics and not change.statistics.is_numeric
    ]
    if some:
        types = enumerate_words(sorted({name for change in some for name in dtypes_of(change)}))
        yield tell("bytes-only", f"only the bytes of {types} were compared: ", some)
