"""Digests tell bits apart: flips, swaps, order, length, of every dtype, on the host and as words."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc_lab.consistency import digest as digests
from mvc_lab.consistency.digest import TensorDigests, digest_on_host, digest_words, fold, view_bytes
from support.cases import for_each

pytestmark = pytest.mark.torch

DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
WAYS = [digest_on_host, lambda tensor: int(digest_words(tensor))]


def make(dtype, numel, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = numel * torch.empty(0, dtype=dtype).element_size()
    data = torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)
    return (data & 1).view(torch.bool) if dtype is torch.bool else data.view(dtype)


def flipped(tensor, bit):
    other = tensor.clone()
    view_bytes(other)[bit // 8] ^= 1 << bit % 8
    return other


@for_each("way", WAYS)
@for_each("dtype", DTYPES)
def test_a_flip_of_any_bit_changes_it(way, dtype):
    tensor = make(dtype, 5)
    seen = {way(flipped(tensor, bit)) for bit in range(tensor.nbytes * 8)}
    assert len(seen) == tensor.nbytes * 8
    assert way(tensor) not in seen
    assert way(tensor.clone()) == way(tensor)


@pytest.mark.parametrize("way", WAYS)
@given(
    seed=st.integers(0, 99), numel=st.integers(2, 40), picks=st.sets(st.integers(0, 39), min_size=2)
)
@settings(max_examples=60)
def test_signs_that_flip_in_several_places_change_it(way, seed, numel, picks):
    tensor = make(torch.float64, numel, seed)
    other = tensor.clone()
    for at in {one % numel for one in picks}:
        view_bytes(other)[at * 8 + 7] ^= 128
    assert way(tensor) != way(other)


@pytest.mark.parametrize("way", WAYS)
@given(seed=st.integers(0, 99), first=st.integers(0, 30), second=st.integers(0, 30))
@settings(max_examples=60)
def test_order_counts(way, seed, first, second):
    tensor = make(torch.int64, 31, seed)
    other = tensor.clone()
    other[first], other[second] = tensor[second], tensor[first]
    assert (way(tensor) == way(other)) == (first == second)


@pytest.mark.parametrize("way", WAYS)
def test_a_value_and_its_negative_that_change_places(way):
    tensor = torch.tensor([1.0, -1.0, 3.0, 2.0], dtype=torch.float64)
    assert way(tensor) != way(tensor[[1, 0, 2, 3]])


@pytest.mark.parametrize("way", WAYS)
def test_a_transposed_matrix_is_another_one(way):
    matrix = make(torch.float32, 36).view(6, 6)
    assert way(matrix) != way(matrix.t())
    assert way(matrix.t()) == way(matrix.t().contiguous())


@pytest.mark.parametrize("way", WAYS)
def test_signs_of_zero_and_bits_of_nan_count(way):
    zeros = torch.zeros(3)
    assert way(zeros) != way(-zeros)
    nan = torch.full((2,), float("nan"))
    assert way(nan) != way(flipped(nan, 3))


@pytest.mark.parametrize("way", WAYS)
def test_zeros_of_another_length_are_another_tensor(way):
    assert len({way(torch.zeros(size, dtype=torch.uint8)) for size in range(30)}) == 30


@pytest.mark.parametrize("change", [0, 7, 8, 63, 64, 65, 4095, 4096, 9999])
def test_rows_of_words_have_an_order(monkeypatch, change):
    monkeypatch.setattr(digests, "_ROW", 8)
    monkeypatch.setattr(digests, "_ROWS_AT_ONCE", 3)
    tensor = make(torch.int64, 10_000)
    other = tensor.clone()
    other[change] += 1
    assert int(digest_words(tensor)) != int(digest_words(other))
    assert int(digest_words(tensor)) != int(
        digest_words(torch.cat([tensor[8:16], tensor[:8], tensor[16:]]))
    )


def test_slices_at_odd_places_have_the_digest_of_their_bytes():
    tensor = make(torch.bfloat16, 50)
    for first in range(6):
        part = tensor[first : first + 21]
        assert int(digest_words(part)) == int(digest_words(part.clone()))


def test_digests_keep_their_order_and_nothing_has_one_of_its_own():
    some = TensorDigests([torch.zeros(2), None, torch.ones(2)])
    first, nothing, last = some.read()
    assert (len(first), nothing, len(last)) == (16, b"", 16)
    assert (some.is_late, some.digested_bytes) == (False, 16)
    assert fold([first, last]) != fold([last, first])
    assert fold([b"ab", b"c"]) != fold([b"a", b"bc"])


def test_what_a_device_digests_is_read_later():
    late = TensorDigests([])
    words = torch.stack([digest_words(torch.arange(100.0))])
    late._host, late._late = [None], [([0], words, None)]
    assert late.is_late
    assert late.read() == [int(words[0]).to_bytes(8, "little", signed=True)]
    assert not late.is_late
