"""Any nested state comes back with its structure, types and bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.state_strategies import arrays, states, tensors, torch_states
from support.states import assert_same, round_trip, store

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


@given(states, st.integers(1, 50))
def test_every_state_comes_back(state, step):
    stored = store(state, step)
    assert_same(stored.load(), state)
    assert_same(stored.load(framework="numpy"), state)
    assert store(state).files == stored.files


@given(torch_states, st.integers(1, 50))
def test_every_tensor_comes_back(state, step):
    stored = store(state, step)
    assert_same(stored.load(), state)


@given(tensors)
def test_dense_strides_come_back(tensor):
    again = round_trip({"x": tensor})["x"]
    source = tensor.detach()
    is_dense = source.numel() > 0 and source.untyped_storage().nbytes() == (
        source.numel() * source.element_size()
    )
    if is_dense:
        assert again.stride() == source.stride()
    elif source.numel() > 0:
        assert again.is_contiguous()
    assert again.untyped_storage().nbytes() == again.numel() * again.element_size()


@given(arrays)
def test_array_order_comes_back(array):
    again = round_trip({"x": array})["x"]
    assert again.flags.c_contiguous or again.flags.f_contiguous or array.ndim > 2
    if array.flags.f_contiguous:
        assert again.flags.f_contiguous
    assert again.flags.writeable


def test_one_changed_value_changes_one_line():
    state = {
        f"key{number}": {"a": number, "b": [1.5, number], "c": "x" * 80} for number in range(50)
    }
    before = store(state).files["state.json"].splitlines()
    state["key7"]["b"][0] = 2.5
    after = store(state).files["state.json"].splitlines()
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
