"""Every figure against float64 arithmetic that shares nothing with the code under test."""

import dataclasses
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.dtypes import DTYPES, get_dtype, numpy_dtype
from mvc.numbers.pieces import compare_pieces
from mvc.numbers.statistics import TensorStatistics
from support.cases import for_each

FLOATS = ["F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]
PLAIN = sorted(name for name, one in DTYPES.items() if one.numpy_name)
OFTEN = {"BF16", "F16", "F32", "F8_E4M3", "I64", "U8", "C64", "BOOL"}
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -6e-8, 1e-310, 65504.0, 1e38]


def mark_rare(names):
    """Leave the types that few models have to the nightly run: the whole matrix takes minutes."""
    return [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.nightly) for name in names
    ]


def compare(old, new, old_name, new_name=None, **more):
    sides = [np.ascontiguousarray(side).reshape(-1).view(np.uint8) for side in (old, new)]
    new_dtype = get_dtype(new_name or old_name)
    return compare_pieces(sides[0], get_dtype(old_name), sides[1], new_dtype, **more)


def close(figure, expected, tolerance=1e-11):
    assert figure == pytest.approx(expected, rel=tolerance, abs=1e-300, nan_ok=True)


@st.composite
def pairs(draw, name):
    """Two sides of one type: any bits, or values close to each other, with special ones among them."""
    size = draw(st.sampled_from([0, 1, 2, 7, 100]))
    width = get_dtype(name).block_bytes
    kind = numpy_dtype(get_dtype(name))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if draw(st.booleans()):
        bits = rng.integers(0, 2 if name == "BOOL" else 256, (2, size * width), np.uint8)
        old, new = (side.view(kind) for side in bits)
    else:
        values = rng.standard_normal(size) * draw(st.sampled_from([1e-8, 0.02, 50.0]))
        with np.errstate(all="ignore"):
            old = values.astype(kind)
            new = (values * (1 + rng.standard_normal(size) * 0.01)).astype(kind)
    if size and kind.kind not in "iub":
        for side in (old := old.copy(), new := new.copy()):
            for value in draw(st.lists(st.sampled_from(SPECIAL), max_size=3)):
                with np.errstate(all="ignore"):
                    side[draw(st.integers(0, size - 1))] = value
    if draw(st.booleans()):
        keep = rng.random(size) < draw(st.sampled_from([0.03, 0.5, 1.0]))
        new = np.where(keep, old, new)
    return old, new


@pytest.mark.parametrize("name", mark_rare(PLAIN))
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_figures_equal_plain_float64(name, data):
    old, new = data.draw(pairs(name))
    got = compare(old, new, name)
    wide = np.complex128 if old.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = old.astype(wide), new.astype(wide)
        finite = np.isfinite(a) & np.isfinite(b)
        a, b = a[finite], b[finite]
        difference = np.abs(b - a)
        width = old.dtype.itemsize
        bits = [np.frombuffer(side.tobytes(), np.uint8).reshape(-1, width) for side in (old, new)]
        assert got.elements == old.size
        assert got.changed == int((bits[0] != bits[1]).any(axis=1).sum())
        assert got.left_out == old.size - a.size
        if name not in ("I64", "U64"):  # there the difference is exact, and float64 is not
            close(got.sum_abs_difference, difference.sum())
            close(got.sum_sq_difference, (difference**2).sum())
            close(got.largest, difference.max(initial=0))
        close(got.sum_abs_old, np.abs(a).sum())
        close(got.sum_abs_new, np.abs(b).sum())
        close(got.sum_sq_old, (np.abs(a) ** 2).sum())
        close(got.sum_sq_new, (np.abs(b) ** 2).sum())
        scale = np.linalg.norm(a) * np.linalg.norm(b)
        if np.isfinite(scale):
            assert abs(got.dot - np.vdot(a, b).real) <= 1e-13 * scale + 1e-300
    if got.largest_index is not None and name not in ("I64", "U64"):
        at = got.largest_index
        assert np.abs(new[at].astype(wide) - old[at].astype(wide)) == pytest.approx(got.largest)
    assert sum(got.histogram) == (difference >= 2.0**-1022).sum() or name in ("I64", "U64")


@pytest.mark.parametrize("name", mark_rare(PLAIN))
@given(data=st.data())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_health_of_each_side(name, data):
    sides = data.draw(pairs(name))
    got = compare(*sides, name)
    wide = np.complex128 if sides[0].dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        for health, side in zip((got.old, got.new), sides, strict=True):
            values = side.astype(wide)
            finite = np.abs(values[np.isfinite(values)])
            assert health.elements == values.size
            assert health.nan == int(np.isnan(values).sum())
            assert health.inf == values.size - finite.size - health.nan
            assert health.zeros == int((values == 0).sum())
            close(health.largest, finite.max(initial=0))
            close(health.sum_sq, (finite**2).sum())
            if name.startswith("F8_E") and name != "F8_E8M0":
                limit = float(ml_dtypes.finfo(side.dtype).max)
                assert health.saturated == int((finite == limit).sum())
            else:
                assert health.saturated == 0


@pytest.mark.parametrize("name", mark_rare(FLOATS))
@given(data=st.data())
def test_ulps_count_the_values_between(name, data):
    """Distances as the number of nextafter steps, by the sorted list of all values or the bits."""
    old, new = data.draw(pairs(name))
    got = compare(old, new, name)
    places = []
    for side in (old, new):
        width = 8 * side.dtype.itemsize
        bits = [int(one) for one in side.view(f"u{side.dtype.itemsize}")]
        half = 1 << (width - 1)
        places.append([-(bit - half) if bit >= half else bit for bit in bits])
    with np.errstate(all="ignore"):
        finite = np.isfinite(old.astype(float)) & np.isfinite(new.astype(float))
    distances = sorted(abs(a - b) for a, b, use in zip(*places, finite, strict=True) if use)
    if not distances:
        assert got.ulp_50 is got.ulp_max is None
        return
    assert got.ulp_max == distances[-1]
    for figure, share in ((got.ulp_50, 0.5), (got.ulp_99, 0.99)):
        exact = distances[math.ceil(share * len(distances)) - 1]
        if exact < 64:
            assert figure == exact
        else:
            assert exact * 31 / 32 <= figure <= exact * (1 + 1 / 31)


@pytest.mark.parametrize("name", ["BF16", "F32", "F8_E4M3", "I16", "C64"])
@given(data=st.data(), cut=st.integers(0, 100))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pieces_join_to_the_whole(name, data, cut):
    old, new = data.draw(pairs(name))
    whole = compare(old, new, name)
    left = compare(old[:cut], new[:cut], name)
    right = compare(old[cut:], new[cut:], name, first_index=min(cut, old.size))
    joined = left + right
    for field in ("elements", "changed", "left_out", "largest", "largest_index", "ulps", "ulp_max"):
        assert getattr(joined, field) == getattr(whole, field), field
    assert joined.histogram == whole.histogram
    close(joined.sum_sq_difference, whole.sum_sq_difference)
    assert TensorStatistics.decode(joined.encode()) == joined


def test_many_blocks_with_the_largest_in_the_last():
    rng = np.random.default_rng(1)
    old = rng.standard_normal(200_000).astype(np.float32)
    new = old.copy()
    new[199_990] += 5
    got = compare(old, new, "F32", first_index=7)
    assert (got.largest_index, got.changed) == (199_997, 1)
    close(got.sum_sq_old, (old.astype(float) ** 2).sum())


@pytest.mark.parametrize("name", ["BF16", "F32"])
def test_far_into_a_large_tensor_counts_are_estimates_and_sums_are_not(name):
    rng = np.random.default_rng(2)
    wide = rng.standard_normal(200_000)
    old = wide.astype(numpy_dtype(get_dtype(name)))
    new = (wide * (1 + 0.01 * rng.standard_normal(wide.size))).astype(old.dtype)
    exact, far = compare(old, new, name), compare(old, new, name, first_index=2**20)
    assert sum(exact.ulps) == wide.size
    assert far.ulp_50 == pytest.approx(exact.ulp_50, rel=0.05)
    assert far.ulp_99 == pytest.approx(exact.ulp_99, rel=0.1)
    assert sum(far.histogram) == pytest.approx(sum(exact.histogram), rel=0.01)
    for field in ("ulp_max", "changed", "sum_sq_difference", "largest"):
        assert getattr(far, field) == getattr(exact, field)


@for_each(
    "types",
    [
        *(
            (name, name)
            for name, one in DTYPES.items()
            if one.block_bytes == one.block_elements == 1
        ),
        ("F8_E4M3", "F8_E5M2"),
        ("I8", "F8_E5M2FNUZ"),
    ],
)
def test_types_of_one_byte_are_the_same_counted_by_pairs_of_codes(types):
    rng = np.random.default_rng(8)
    old, new = rng.integers(0, 256, (2, 300_000), np.uint8)
    new = np.where(rng.random(old.size) < 0.5, old, new)
    old[:4096], new[:4096] = old[0], old[0]
    whole = compare(old, new, *types, first_index=5)
    cuts = range(0, old.size, 4096)
    parts = [
        compare(old[at : at + 4096], new[at : at + 4096], *types, first_index=5 + at) for at in cuts
    ]
    joined = sum(parts[1:], parts[0])
    for field in dataclasses.fields(whole):
        mine, other = getattr(whole, field.name), getattr(joined, field.name)
        if isinstance(mine, float):
            close(mine, other)
        elif field.name in ("old", "new"):
            for one in dataclasses.fields(mine):
                close(getattr(mine, one.name), getattr(other, one.name))
        else:
            assert mine == other, field.name


def test_one_distance_is_exact_however_large():
    got = compare(np.full(10, 2.5, np.float32), np.full(10, 2.51, np.float32), "F32")
    assert got.ulp_50 == got.ulp_99 == got.ulp_max > 40_000


def test_equal_nan_and_infinity_are_unchanged():
    old = np.array([np.nan, np.inf, -0.0, 1.0], np.float32)
    new = np.array([np.nan, np.inf, 0.0, 1.0], np.float32)
    got = compare(old, new, "F32")
    assert (got.changed, got.left_out, got.ulp_max) == (1, 2, 0)


def test_large_integers_differ_exactly():
    old, new = np.array([2**63, 2**62], np.uint64), np.array([2**63 + 1, 2**62], np.uint64)
    assert compare(old, new, "U64").largest == 1.0
    signed = np.array([-(2**63)]), np.array([2**63 - 1])
    assert compare(*signed, "I64").largest == 2.0**64


@pytest.mark.parametrize(
    ("old", "new", "is_cast"),
    [("F32", "BF16", True), ("F32", "F16", True), ("BF16", "F32", True), ("F32", "F8_E4M3", True)],
)
def test_a_cast_is_recognised(old, new, is_cast):
    values = np.random.default_rng(3).standard_normal(5000).astype(numpy_dtype(get_dtype(old)))
    cast = values.astype(numpy_dtype(get_dtype(new)))
    assert compare(values, cast, old, new).is_cast is is_cast
    truncated = (values.view(np.uint32) >> 16 if old == "F32" else values.view(np.uint16)) & 0xFFF0
    other = truncated.astype(np.uint16).view(ml_dtypes.bfloat16).astype(cast.dtype)
    assert compare(values, other, old, new).is_cast is False


def test_rows_that_are_zero_or_have_a_nan():
    old = np.ones((5, 4), np.float32)
    new = old.copy()
    new[1] = 0
    new[2, 3] = -0.0
    new[3:, 0] = np.nan
    got = compare(old, new, "F32", row_elements=4)
    rows = (got.zero_rows_old, got.zero_rows_new, got.nan_rows_old, got.nan_rows_new)
    assert rows == (0, 1, 0, 2)


def test_types_without_values_are_compared_by_their_blocks():
    dtype = get_dtype("Q8_K")
    old = np.zeros(3 * dtype.block_bytes, np.uint8)
    new = old.copy()
    new[dtype.block_bytes] = 1
    got = compare(old, new, "Q8_K")
    assert (got.elements, got.changed, got.is_numeric) == (3 * 256, 256, False)


@pytest.mark.parametrize("name", ["F4", "F6_E2M3", "F6_E3M2", "MXFP4", "NVFP4"])
def test_packed_types_have_figures(name):
    raw = np.random.default_rng(5).integers(0, 120, get_dtype(name).block_bytes * 300, np.uint8)
    other = raw.copy()
    other[-1] ^= 0x10
    got = compare(raw, other, name)
    assert got.is_numeric
    assert got.changed >= 1
    assert got.sum_abs_difference > 0
    assert got.left_out == 0
