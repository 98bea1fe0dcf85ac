"""Arrays that share memory share it again, and only those."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import UnsupportedError
from mvc.states import alias
from mvc.states.alias import find_shared
from mvc.states.memory import Region
from mvc.states.state import plan_state
from support.states import assert_same, round_trip, store


def base_of(array):
    return array.__array_interface__["data"][0]


def shared_table(stored):
    return json.loads(stored.files["state.json"]).get("shared", [])


def test_a_tie_is_one_storage_and_both_names():
    weight = torch.randn(5, 4)
    stored = store({"model": {"a": weight, "b": weight.detach()}, "ema": [weight]})
    assert {s.tensors[0].name for s in stored.layouts["model.safetensors"].segments} == {"a", "b"}
    assert len(shared_table(stored)) == 1
    again = stored.load()
    a, b, c = again["model"]["a"], again["model"]["b"], again["ema"][0]
    assert a.data_ptr() == b.data_ptr() == c.data_ptr()
    assert a.untyped_storage().nbytes() == weight.nbytes
    a.zero_()
    assert not b.any()
    assert not c.any()


def test_a_tie_is_read_once():
    weight = torch.randn(5, 4)
    stored = store({"m": {"a": weight, "b": weight}})
    plan = plan_state(stored.files["state.json"], stored.sizes)
    assert [(read.file, read.tensor) for read in plan.reads] == [("m.safetensors", "a")]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_flat_buffer_and_its_views(kind):
    flat = torch.randn(100)
    views = {
        "flat": flat,
        "w": flat[:60].view(6, 10),
        "t": flat[:60].view(6, 10).t(),
        "b": flat[60:70],
        "rest": flat[71:],
    }
    if kind == "numpy":
        views = {name: view.numpy() for name, view in views.items()}
    again = round_trip({"model": views})["model"]
    assert_same(again, views)
    for name, view in views.items():
        if kind == "torch":
            assert again[name].stride() == view.stride()
            assert (
                again[name].data_ptr() - again["flat"].data_ptr()
                == view.data_ptr() - flat.data_ptr()
            )
        else:
            assert again[name].strides == view.strides
            assert base_of(again[name]) - base_of(again["flat"]) == base_of(view) - base_of(
                views["flat"]
            )
    again["flat"][:] = 3
    assert all((view == 3).all() for view in again.values())
    stored = store({"model": views})
    assert len(stored.layouts["model.safetensors"].segments) == 5


def test_numpy_framework_restores_aliases_of_tensors():
    flat = torch.randn(10)
    again = round_trip({"a": flat, "b": flat[4:], "c": flat.view(2, 5).t()}, framework="numpy")
    assert np.shares_memory(again["a"], again["b"])
    assert again["c"].shape == (5, 2)
    again["a"][:] = 9
    assert (again["b"] == 9).all()
    assert (again["c"] == 9).all()


def test_only_permuted_views():
    weight = torch.randn(4, 6, 5)
    views = {
        "a": weight.permute(2, 0, 1),
        "b": weight.permute(1, 2, 0),
        "part": weight.permute(2, 0, 1)[1:3],
    }
    again = round_trip({"model": views})["model"]
    assert_same(again, views)
    assert all(again[name].stride() == view.stride() for name, view in views.items())
    again["a"].fill_(2)
    assert (again["b"] == 2).all()
    assert (again["part"] == 2).all()


def test_overlap_without_a_covering_view_adds_the_union():
    flat = torch.randn(100)
    views = {"left": flat[10:60], "right": flat[40:90]}
    stored = store({"m": views})
    names = [s.tensors[0].name for s in stored.layouts["m.safetensors"].segments]
    assert names == ["left", "left.storage", "right"]
    again = stored.load()["m"]
    assert_same(again, views)
    assert again["left"].untyped_storage().nbytes() == 80 * 4
    again["left"][30:] = 5
    assert (again["right"][:20] == 5).all()
    assert (again["right"][20:] == views["right"][20:]).all()


def test_overlapping_columns():
    matrix = np.arange(50.0).reshape(5, 10)
    views = {"a": matrix[:, 1:5], "b": matrix[:, 4:8], "c": matrix[::-1, 3]}
    again = round_trip(views)
    assert_same(again, views)
    again["a"][:, 3] = -1
    assert (again["b"][:, 0] == -1).all()
    again["c"][0] = 7
    assert again["a"][4, 2] == 7


def test_disjoint_views_are_independent():
    flat = torch.randn(100)
    matrix = torch.randn(10, 12)
    state = {
        "a": flat[:50],
        "b": flat[50:],
        "q": matrix[:, :4],
        "k": matrix[:, 4:8],
        "v": matrix[:, 8:],
        "even": flat.new_ones(20)[::2],
    }
    stored = store(state)
    assert shared_table(stored) == []
    again = stored.load()
    assert_same(again, state)
    assert all(tensor.is_contiguous() for tensor in again.values())
    assert again["a"].untyped_storage().nbytes() == 200


def test_tied_slices_are_tied_again():
    matrix = torch.randn(10, 12)
    again = round_trip({"a": matrix[:, :4], "b": matrix[:, :4]})
    assert again["a"].data_ptr() == again["b"].data_ptr()
    assert torch.equal(again["a"], matrix[:, :4])


def test_views_of_other_dtypes():
    raw = torch.arange(16, dtype=torch.float32)
    state = {
        "f": raw,
        "i": raw.view(torch.int32),
        "h": raw[3:5].view(torch.bfloat16),
        "u": raw.view(torch.uint8)[5:7],
    }
    again = round_trip(state)
    assert_same(again, state)
    again["f"].zero_()
    assert not again["i"].any()
    assert not again["h"].any()
    assert not again["u"].any()


def test_views_that_need_a_later_start_stay_aligned():
    raw = torch.arange(64, dtype=torch.uint8)
    state = {
        "bytes": raw[1:40],
        "floats": raw[4:24].view(torch.float32),
        "wide": raw[8:48].view(torch.float64),
    }
    stored = store(state)
    assert shared_table(stored)[0]["skew"] == 1
    again = stored.load()
    assert_same(again, state)
    again["bytes"].zero_()
    assert not again["floats"].any()
    assert_same(stored.load(framework="numpy")["bytes"], state["bytes"].numpy())


def test_tensor_and_array_of_one_memory():
    array = np.arange(12.0).reshape(3, 4)
    tensor = torch.from_numpy(array)
    again = round_trip({"array": array, "tensor": tensor[1]})
    assert_same(again, {"array": array, "tensor": tensor[1]})
    again["array"][:] = 4
    assert (again["tensor"] == 4).all()


def test_parameters_keep_kind_and_tie():
    parameter = torch.nn.Parameter(torch.ones(4))
    again = round_trip(
        {
            "p": parameter,
            "d": parameter.data,
            "frozen": torch.nn.Parameter(parameter.data[:2], requires_grad=False),
        }
    )
    assert type(again["p"]) is torch.nn.Parameter
    assert type(again["d"]) is torch.Tensor
    assert again["p"].requires_grad
    assert not again["d"].requires_grad
    assert again["p"].data_ptr() == again["d"].data_ptr() == again["frozen"].data_ptr()


def test_empty_views_share_nothing():
    flat = torch.randn(10)
    stored = store({"a": flat, "b": flat[3:3], "c": flat[:0]})
    assert shared_table(stored) == []


def test_same_array_in_text_and_bytes():
    words = np.array(["alpha", "beta"])
    again = round_trip({"a": words, "b": words[1:]})
    again["a"][1] = "gamma"
    assert again["b"][0] == "gamma"


def test_contradicting_alignments_are_refused():
    raw = np.zeros(64, np.uint8)
    one = torch.frombuffer(raw.data, dtype=torch.int64, count=4, offset=0)
    two = torch.frombuffer(raw.data, dtype=torch.int64, count=4, offset=3)
    with pytest.raises(UnsupportedError, match="different alignments"):
        store({"a": one, "b": two})


@st.composite
def region_lists(draw):
    regions = []
    for _ in range(draw(st.integers(0, 7))):
        shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
        strides = tuple(draw(st.integers(-8, 8)) for _ in shape)
        regions.append(
            Region(
                "cpu",
                draw(st.integers(100, 140)),
                shape,
                strides,
                "x",
                draw(st.sampled_from([1, 2, 4])),
            )
        )
    return regions


def bytes_of(region):
    cells = np.zeros(region.shape, np.int64)
    for axis, stride in enumerate(region.strides):
        index = [1] * len(region.shape)
        index[axis] = -1
        cells = cells + np.arange(region.shape[axis]).reshape(index) * stride
    return {
        int(cell) + region.address + byte
        for cell in cells.ravel()
        for byte in range(region.size_bytes)
    }


@given(region_lists())
def test_groups_are_the_connected_overlaps(regions):
    touched = [bytes_of(region) for region in regions]
    groups = [{index} for index in range(len(regions))]
    for a in range(len(regions)):
        for b in range(a):
            if touched[a] & touched[b]:
                one, two = (next(group for group in groups if index in group) for index in (a, b))
                if one is not two:
                    one |= two
                    groups.remove(two)
    expected = sorted(tuple(sorted(group)) for group in groups if len(group) > 1)
    found = find_shared(regions)
    assert [group.members for group in found] == expected
    for group in found:
        cells = set().union(*(touched[index] for index in group.members))
        assert (min(cells), max(cells) + 1) == (group.low, group.high)
        if not group.is_tie:
            for index in group.covering:
                assert len(touched[index]) == group.high - group.low


def test_many_interleaved_columns_take_bounded_work(monkeypatch):
    compared, overlap = [], alias._overlap
    monkeypatch.setattr(alias, "_overlap", lambda *two: compared.append(1) or overlap(*two))
    regions = [
        Region("cpu", 4000 + 4 * column, (5,), (4 * 1500,), "f", 4) for column in range(1500)
    ]
    find_shared(regions)
    assert len(compared) == alias._MAX_PAIRS < 1500 * 1499 / 2
