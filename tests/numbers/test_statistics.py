"""Statistics of several tensors as one, and quantiles of counts."""

import math
from functools import reduce
from operator import add

from hypothesis import given
from hypothesis import strategies as st

from mvc.numbers.statistics import TensorStatistics, join, ulp_of_bucket

_COUNTS = st.lists(st.integers(0, 2**70), max_size=9).map(tuple)
_SUMS = st.floats(0, 1e300)
_SOME = st.lists(
    st.builds(
        TensorStatistics,
        elements=st.integers(0, 2**70),
        sum_abs_difference=_SUMS,
        dot=st.floats(-1e300, 1e300),
        largest=st.floats(0, allow_nan=False),
        largest_index=st.none() | st.integers(0, 9),
        histogram=_COUNTS,
        ulps=st.none() | _COUNTS,
        ulp_max=st.none() | st.integers(0, 2**40),
        is_cast=st.none() | st.booleans(),
        is_numeric=st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@given(_SOME)
def test_several_are_joined_as_one_after_the_other(several):
    joined = join(several)
    assert joined == reduce(add, several)
    assert joined.sum_abs_difference == reduce(add, [one.sum_abs_difference for one in several])
    width = max(len(one.histogram) for one in several)
    padded = [(*one.histogram, *[0] * (width - len(one.histogram))) for one in several]
    assert joined.histogram == tuple(map(sum, zip(*padded, strict=True)))


@given(st.lists(st.integers(0, 5), max_size=200), st.integers(0, 2**40))
def test_quantiles_are_those_of_the_counts_written_out(counts, largest):
    statistics = TensorStatistics(ulps=tuple(counts), ulp_max=largest)
    written = [bucket for bucket, count in enumerate(counts) for _ in range(count)]
    for share, found in ((0.5, statistics.ulp_50), (0.99, statistics.ulp_99)):
        if written:
            bucket = written[math.ceil(share * len(written)) - 1]
            is_top = ulp_of_bucket(bucket + 1) > largest
            assert found == (largest if is_top else ulp_of_bucket(bucket))
