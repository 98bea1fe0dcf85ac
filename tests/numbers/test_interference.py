"""How task vectors get into each other's way, against a computation on whole arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mvc.numbers.interference import measure

_SIDES = st.integers(2, 4).flatmap(
    lambda count: arrays(np.float64, (count, 30), elements=st.integers(-3, 3).map(float))
)


@given(deltas=_SIDES, cut=st.integers(0, 30))
def test_parts_add_up_to_the_whole(deltas, cut):
    found = measure([one[:cut] for one in deltas]) + measure([one[cut:] for one in deltas])
    assert found == measure(list(deltas))
    several = (deltas != 0).sum(axis=0) > 1
    apart = (deltas > 0).any(axis=0) & (deltas < 0).any(axis=0)
    assert (found.elements, found.shared, found.opposed) == (30, several.sum(), apart.sum())
    assert found.changed == tuple(np.count_nonzero(deltas, axis=1))
    pairs = [
        deltas[a] @ deltas[b] / np.sqrt((deltas[a] @ deltas[a]) * (deltas[b] @ deltas[b]))
        for a in range(len(deltas))
        for b in range(a)
        if deltas[a].any() and deltas[b].any()
    ]
    assert found.cosine == (pytest.approx(np.mean(pairs)) if pairs else None)


def test_nothing_and_nan():
    nothing = measure([np.zeros(0, np.float32), np.zeros(0, np.float32)])
    assert (nothing.share_shared, nothing.share_opposed, nothing.cosine) == (0, 0, None)
    lost = measure([np.array([np.nan, 1.0]), np.array([1.0, -1.0])])
    assert (lost.changed, lost.shared, lost.opposed) == ((2, 2), 2, 1)
