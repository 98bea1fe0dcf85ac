"""Loading into live arrays: filled in place, or nothing is touched."""

import numpy as np
import pytest
import torch

from mvc.errors import ConflictError, UnsupportedError, UsageError
from mvc.states.state import plan_state
from mvc.states.torch_arrays import fill_device
from support.cases import for_each
from support.states import assert_same, store


def test_a_model_is_filled_in_place():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    state = {"model": model.state_dict(), "step": 7, "lr": [0.1, torch.ones(2)]}
    stored = store(
        {**state, "model": {name: value.clone() for name, value in model.state_dict().items()}}
    )
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    live = other.state_dict()
    again = stored.load(into={"model": live})
    assert again["step"] == 7
    assert again["model"]["0.weight"] is live["0.weight"]
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    assert again["lr"][1].tolist() == [1, 1]


@pytest.mark.parametrize(
    "live",
    [
        torch.zeros(4, 3).t(),
        torch.zeros(6, 8)[::2, ::2],
        torch.nn.Parameter(torch.zeros(3, 4)),
        torch.zeros(3, 4, requires_grad=True),
    ],
)
def test_any_layout_is_filled(live):
    wanted = torch.arange(12.0).reshape(3, 4)
    stride = live.stride()
    again = store({"x": wanted}).load(into={"x": live})["x"]
    assert again is live
    assert live.stride() == stride
    assert torch.equal(live.detach(), wanted)


def test_arrays_are_filled_whatever_their_order():
    wanted = np.arange(12, dtype=">i4").reshape(3, 4)
    for live in (
        np.zeros((3, 4), ">i4"),
        np.zeros((4, 3), ">i4").T,
        np.zeros((3, 8), ">i4")[:, ::-2],
    ):
        again = store({"x": wanted}).load(into={"x": live})["x"]
        assert again is live
        assert (live == wanted).all()


def test_numpy_framework_fills_arrays_with_tensors():
    live = np.zeros((2, 2), np.float32)
    again = store({"x": torch.ones(2, 2)}).load(framework="numpy", into={"x": live})
    assert again["x"] is live
    assert live.tolist() == [[1, 1], [1, 1]]


def test_tied_live_tensors_are_read_once():
    weight = torch.randn(4)
    stored = store({"m": {"a": weight, "b": weight}})
    live = torch.zeros(4)
    plan = plan_state(stored.files["state.json"], stored.sizes, into={"m": {"a": live, "b": live}})
    assert len(plan.reads) == 1
    again = stored.load(into={"m": {"a": live, "b": live.detach()}})
    assert torch.equal(live, weight)
    assert again["m"]["a"] is live


def test_untied_live_tensors_are_both_filled():
    weight = torch.randn(4)
    one, two = torch.zeros(4), torch.zeros(4)
    store({"m": {"a": weight, "b": weight}}).load(into={"m": {"a": one, "b": two}})
    assert torch.equal(one, weight)
    assert torch.equal(two, weight)


def test_tied_live_tensors_and_untied_stored_ones_are_refused():
    live = torch.zeros(4)
    stored = store({"a": torch.ones(4), "b": torch.ones(4) * 2})
    with pytest.raises(ConflictError, match="shares its memory"):
        stored.load(into={"a": live, "b": live})
    assert not live.any()


def test_nested_containers_lend_their_arrays():
    state = {
        "o": {
            "state": {0: {"m": torch.ones(2)}, 1: {"m": torch.ones(2)}},
            "list": [torch.ones(1), (torch.ones(3),)],
        }
    }
    live = {"o": {"state": {0: {"m": torch.zeros(2)}}, "list": [torch.zeros(1), (torch.zeros(3),)]}}
    again = store(state).load(into=live)
    assert_same(again, state)
    assert again["o"]["state"][0]["m"] is live["o"]["state"][0]["m"]
    assert again["o"]["list"][1][0] is live["o"]["list"][1][0]


def test_live_scalars_do_not_count():
    state = {"step": 7, "buffer": torch.ones(2), "name": "x"}
    again = store(state).load(into={"step": 3, "buffer": None, "name": None})
    assert_same(again, state)


@for_each(
    ("live", "message"),
    [
        ({"m": {"a": torch.zeros(3)}}, r'state\["m"\]\["a"\] is float32 \[3\], the stored tensor is float32 \[2\]'),
        ({"m": {"a": torch.zeros(2).half()}}, r"float16 \[2\]"),
        ({"m": {"b": torch.zeros(2)}}, r'state\["m"\]\["b"\] is not in the stored state'),
        ({"n": 1}, r'state\["n"\] is not in the stored state'),
        ({"m": torch.zeros(2)}, r'state\["m"\] is of type Tensor, the stored value a mapping'),
        ({"m": {"a": {"x": 1}}}, r'state\["m"\]\["a"\] is of type dict, the stored value of type tensor'),
        ({"step": torch.zeros(())}, r'state\["step"\] is of type Tensor, the stored value of type int'),
        ({"list": [1, 2, 3]}, r'state\["list"\] has 3 items, the stored value 2'),
        ({"list": {"a": 1}}, r'state\["list"\] is of type dict, the stored value a sequence'),
        ({"m": {"a": torch.zeros(1).expand(2)}}, r'state\["m"\]\["a"\] cannot be filled in place'),
        ({"array": np.zeros(2, np.float32)}, r'state\["array"\] is float32 \[2\], the stored array is float64 \[2\]'),
        ({"array": torch.zeros(2, dtype=torch.float64)}, r'state\["array"\] is of type Tensor, the stored value of type ndarray'),
        ({"m": {"a": np.zeros(2, np.float32)}}, r'state\["m"\]\["a"\] is of type ndarray, the stored value of type tensor'),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_is_read(live, message):
    state = {
        "first": torch.ones(2),
        "m": {"a": torch.ones(2)},
        "step": 7,
        "list": [1, 2],
        "array": np.ones(2),
    }
    first = torch.zeros(2)
    with pytest.raises(ConflictError, match=message):
        store(state).load(into={"first": first, **live})
    assert not first.any()


def test_read_only_and_sparse_live_arrays_are_refused():
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    with pytest.raises(ConflictError, match="cannot be written to"):
        store({"x": np.ones(2)}).load(into={"x": frozen})
    with pytest.raises(UnsupportedError, match="meta"):
        store({"x": torch.ones(2)}).load(into={"x": torch.ones(2, device="meta")})
    with pytest.raises(UnsupportedError, match="sparse"):
        store({"x": torch.ones(2)}).load(into={"x": torch.ones(2).to_sparse()})


def test_a_device_tensor_is_filled_over_the_host():
    # The same code serves every device; on the CPU it can be looked at.
    wanted = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    live = torch.zeros(4, 3, dtype=torch.bfloat16).t()
    data = wanted.view(torch.uint8).numpy().tobytes()

    def read(buffer):
        buffer[:] = data

    fill_device(live, read)
    assert torch.equal(live, wanted)


def test_unknown_framework():
    with pytest.raises(UsageError, match="jax"):
        store({"x": 1}).load(framework="jax")
