"""Groups of tensors add up to the whole, and stand in the order in which people count."""

import numpy as np
import pytest

from mvc import compare
from mvc.comparison.rollup import by_kind, by_module, sum_up

RNG = np.random.default_rng(3)


@pytest.fixture
def diff():
    old = {
        f"layers.{layer}.{name}.weight": RNG.standard_normal((8, 8)).astype("f4")
        for layer in range(11)
        for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj")
    }
    old["norm.weight"] = np.ones(8, "f4")
    new = {name: value * 2 if "attn" in name else value for name, value in old.items()}
    new["lm_head.weight"] = old.pop("norm.weight")[:4] + 1
    return compare({"model": old}, {"model": new})


def test_modules_hold_each_other_in_natural_order(diff):
    groups = by_module(diff.changes)
    names = [group.name for group in groups]
    assert names[:4] == ["layers", "layers.0", "layers.0.self_attn", "layers.1"]
    assert names.index("layers.9") < names.index("layers.10")
    whole, first = groups[0], groups[1]
    assert (whole.tensors, whole.differing, whole.elements) == (33, 22, 33 * 64)
    assert (first.tensors, first.differing) == (3, 2)
    assert whole.statistics.elements == 22 * 64
    parts = [group.statistics for group in groups if group.name.endswith("self_attn")]
    total = sum(part.sum_abs_difference for part in parts)
    assert whole.statistics.sum_abs_difference == pytest.approx(total, rel=1e-12)


def test_kinds_cover_everything(diff):
    groups = {group.name: group for group in by_kind(diff.changes)}
    assert set(groups) == {"q_proj", "o_proj", "mlp.up", "head", "norm"}
    assert sum(group.elements for group in groups.values()) == sum_up(diff.changes).elements
    assert groups["mlp.up"].statistics is None
    assert groups["head"].differing == groups["norm"].differing == 1
