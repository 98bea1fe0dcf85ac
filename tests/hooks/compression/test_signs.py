"""Signs are packed into bits and come back, with the mean of what they stand for."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc_lab.compression.kinds import pack_signs, unpack_signs

_NUMBERS = st.floats(-1e3, 1e3, width=32)


@given(st.lists(st.lists(_NUMBERS, max_size=19), min_size=1, max_size=5))
def test_signs_and_scales_come_back(tensors):
    sizes, values = [len(one) for one in tensors], torch.tensor([x for one in tensors for x in one])
    packed = pack_signs(values, sizes)
    assert packed.dtype == torch.uint8
    assert len(packed) == -(-len(values) // 8) + 4 * len(sizes)
    found = torch.split(unpack_signs(packed, sizes), sizes)
    for one, back in zip(tensors, found, strict=True):
        scale = torch.tensor(one).abs().mean(dtype=torch.float32) if one else 0.0
        expected = [scale if x >= 0 else -scale for x in one]
        assert torch.equal(back, torch.tensor(expected))


@given(st.permutations(range(4)))
def test_a_tensor_comes_back_alike_wherever_it_lies(order):
    torch.manual_seed(0)
    tensors = [torch.randn(size) for size in (3, 8, 17, 1)]
    sizes = [len(tensors[at]) for at in order]
    packed = pack_signs(torch.cat([tensors[at] for at in order]), sizes)
    found = torch.split(unpack_signs(packed, sizes), sizes)
    for at, one in zip(order, found, strict=True):
        assert torch.equal(
            one, unpack_signs(pack_signs(tensors[at], [len(tensors[at])]), [len(one)])
        )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so_in_its_tensor_alone(value):
    values = torch.tensor([1.0, value, 2.0, -2.0])
    found = unpack_signs(pack_signs(values, [2, 2]), [2, 2])
    assert not torch.isfinite(found[:2]).any()
    assert found[2:].tolist() == [2.0, -2.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype):
    values = torch.tensor([0.5, -1.5], dtype=dtype)
    assert unpack_signs(pack_signs(values, [2]), [2]).tolist() == [1.0, -1.0]
