import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.numbers import spectral
from mvc.numbers.spectral import WIDTH, Spectrum, find_spectrum


def spectrum_of(matrix, seed=0):
    reads = []

    def read(first, count):
        reads.append(count)
        return matrix[first : first + count]

    found = find_spectrum(read, *matrix.shape, seed)
    assert sum(reads) <= 2 * len(matrix)  # two passes
    return found


def low_rank(rows, columns, rank, rng):
    return rng.standard_normal((rows, rank)) @ rng.standard_normal((rank, columns))


@given(rows=st.integers(1, 90), columns=st.integers(1, WIDTH), seed=st.integers(0, 99))
def test_small_matrices_are_exact(rows, columns, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-6, 6)
    found = spectrum_of(matrix)
    exact = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(found.values, exact, rtol=1e-6, atol=2e-7 * exact[0])
    assert found.energy == pytest.approx((exact**2).sum(), rel=1e-12)
    for share in (0.9, 0.99):
        shares = np.cumsum(exact**2) / (exact**2).sum()
        near = abs(shares - share).min() < 1e-6  # either side is right
        assert near or found.find_rank(share) == int(np.argmax(shares >= share)) + 1


@pytest.mark.parametrize("shape", [(500, 300), (300, 500), (1200, 100)])
def test_a_low_rank_update_under_noise(monkeypatch, shape):
    monkeypatch.setattr(spectral, "_BLOCK_ELEMENTS", 10_000)  # several blocks
    rng = np.random.default_rng(4)
    matrix = low_rank(*shape, 16, rng) + 0.01 * rng.standard_normal(shape)
    exact = np.linalg.svd(matrix, compute_uv=False)
    found = spectrum_of(matrix)
    np.testing.assert_allclose(found.values[:16], exact[:16], rtol=1e-6)
    assert found.largest == pytest.approx(exact[0], rel=1e-9)
    assert found.stable_rank == pytest.approx((exact**2).sum() / exact[0] ** 2)
    shares = np.cumsum(exact**2) / (exact**2).sum()
    assert found.find_rank(0.99) == int(np.argmax(shares >= 0.99)) + 1 <= 16


def test_a_flat_spectrum_is_beyond_the_sketch():
    matrix = np.random.default_rng(5).standard_normal((400, 400))
    found = spectrum_of(matrix)
    exact = np.linalg.svd(matrix, compute_uv=False)
    assert found.find_rank(0.9) is None
    assert exact[0] * 0.9 < found.largest <= exact[0] * (1 + 1e-9)


def test_results_repeat_to_the_bit_and_follow_the_seed():
    matrix = np.random.default_rng(6).standard_normal((300, 200))
    assert spectrum_of(matrix) == spectrum_of(matrix)
    assert spectrum_of(matrix, 1) != spectrum_of(matrix)


def test_nothing_and_what_is_not_finite():
    assert spectrum_of(np.zeros((5, 4))) == Spectrum(0.0, (), 4)
    assert spectrum_of(np.zeros((0, 4))) == Spectrum(0.0, (), 0)
    assert Spectrum(0.0, (), 4).find_rank(0.9) == 0
    matrix = np.diag([3.0, np.nan, np.inf, 2.0])
    assert spectrum_of(matrix).values[:2] == pytest.approx((3.0, 2.0))
    one = np.outer(np.ones(100), np.ones(70)) * 1e-170  # squares are subnormal
    assert spectrum_of(one).energy >= 0
