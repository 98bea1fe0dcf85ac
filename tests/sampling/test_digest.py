"""The digest of a multiset of samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError
from mvc.sampling import SampleDigest

indices = st.lists(st.integers(0, 2**62), max_size=40)


def test_it_is_the_same_forever():
    assert SampleDigest.of("a", [0, 1, 2]).hex == (
        "415767cfaad18ea813bf99ad36a6aac5ac4c8a9da5a92065b0c134ff3d1f0d1d"
    )
    assert SampleDigest.of_keys("a", ["k"]).hex == (
        "f1843f47b034adcef11761173273eda47e1f8e8f9f4fbefa6020652bc490a0ce"
    )


@given(indices, indices)
def test_parts_add_up_in_any_order(one, other):
    both = SampleDigest.of("a", np.array([*other, *one], np.int64))
    assert (
        SampleDigest.of("a", np.array(one, np.int64))
        + SampleDigest.of("a", np.array(other, np.int64))
        == both
    )
    assert both - SampleDigest.of("a", np.array(one, np.int64)) == SampleDigest.of(
        "a", np.array(other, np.int64)
    )
    assert SampleDigest.parse(both.count, both.hex) == both


def test_source_and_number_of_times_count():
    found = [
        SampleDigest.of("a", [1]), SampleDigest.of("b", [1]), SampleDigest.of("a", [1, 1]),
        SampleDigest.of("a", [2]), SampleDigest.of_keys("a", ["1"]), SampleDigest(),
    ]  # fmt: skip
    assert len({one.hex for one in found}) == len(found)
    assert SampleDigest.of("a", range(3, 50_000, 7)) == SampleDigest.of(
        "a", np.arange(3, 50_000, 7)
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (-1, "0" * 64),
        (True, "0" * 64),
        (2**63, "0" * 64),
        (1, "0" * 63),
        (1, "G" * 64),
        (1, None),
        ("1", "0" * 64),
    ],
)
def test_what_is_no_digest_is_refused(count, text):
    with pytest.raises(FormatError):
        SampleDigest.parse(count, text)
