import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import UsageError
from mvc.sampling.permutation import permute, unpermute
from support.cases import for_each

SIZES = [1, 2, 3, 5, 31, 255, 256, 257, 258, 272, 289, 1000, 1009, 1024, 1025, 65537, 100_003]


@for_each("n", SIZES)
def test_it_is_a_bijection_with_its_inverse(n):
    everything = np.arange(n)
    for key in (b"one", 2):
        found = permute(everything, n, key)
        assert np.array_equal(np.sort(found), everything)
        assert np.array_equal(unpermute(found, n, key), everything)


@given(st.integers(1, 2**62), st.integers(0, 2**70), st.data())
def test_any_size_has_its_inverse(n, key, data):
    values = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=50)), np.int64)
    found = permute(values, n, key)
    assert np.all((found >= 0) & (found < n))
    assert np.array_equal(unpermute(found, n, key), values)
    assert len(np.unique(found)) == len(np.unique(values))


def test_each_value_is_computed_alone():
    values = np.random.default_rng(0).integers(0, 10**9, 40_000)
    found = permute(values, 10**9, b"key")
    assert np.array_equal(found[::1000], permute(values[::1000], 10**9, b"key"))
    assert (
        permute(values.reshape(200, 200), 10**9, b"key").tolist()
        == found.reshape(200, 200).tolist()
    )


GOLDEN = {
    (5, b"key"): [2, 1, 3, 4, 0],
    (256, b"key"): [45, 64, 136, 0, 157],
    (257, b"key"): [33, 74, 37, 154, 94],
    (1000, 7): [245, 269, 250, 225, 992],
    (10**9, b"key"): [976048600, 546049645, 119268480, 969206772, 116864584],
    (2**40 + 15, 0): [58197563267, 392934660526, 985483786961, 485164032368, 471730674910],
    (2**62, b""): [
        3233118824275338026,
        4126268195438677872,
        3277781471647855706,
        4283808435596114926,
        1288142394963815867,
    ],
}


@pytest.mark.parametrize(("n", "key"), GOLDEN)
def test_the_order_is_the_same_for_ever(n, key):
    assert permute(np.arange(5) * (n // 5), n, key).tolist() == GOLDEN[n, key]


@pytest.mark.parametrize("n", [0, -1, 2**62 + 1, 1.5, True])
def test_a_size_that_it_does_not_take_is_refused(n):
    with pytest.raises(UsageError, match="1 to 2\\^62"):
        permute(np.zeros(1, np.int64), n, b"key")


@pytest.mark.parametrize("value", [-1, 1000])
def test_a_value_outside_is_refused(value):
    with pytest.raises(UsageError, match=f"position {value} is outside"):
        permute(np.array([3, value]), 1000, b"key")
