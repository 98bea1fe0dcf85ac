"""States as real training loops have them."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from support.states import assert_same, round_trip, store

pytestmark = pytest.mark.torch


class TinyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.BatchNorm1d(8)
        self.conv = nn.Conv2d(1, 3, 3, padding=1).to(memory_format=torch.channels_last)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(3, 3, dtype=torch.bool).tril())

    def forward(self, tokens):
        hidden = self.norm(self.embed(tokens))
        hidden = hidden + self.conv(hidden[None, None]).mean((0, 1))
        return self.head(hidden)


def train(model, optimizer):
    for _ in range(3):
        loss = model(torch.randint(0, 11, (6,))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


OPTIMIZERS = [
    lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    torch.optim.Adagrad,
    lambda parameters: torch.optim.RMSprop(parameters, centered=True),
    lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01), capturable=False),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_optimizer_continues_exactly(make):
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = make(model.parameters())
    train(model, optimizer)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
    }
    stored = store(state)
    assert_same(stored.load(), state)
    again = stored.load()
    train(model, optimizer)

    other = TinyLM()
    other_optimizer = make(other.parameters())
    other.load_state_dict(again["model"])
    other_optimizer.load_state_dict(again["optimizer"])
    torch.set_rng_state(again["rng"])
    train(other, other_optimizer)
    assert_same(
        {"model": other.state_dict(), "optimizer": other_optimizer.state_dict()},
        {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    )


def test_random_generators_continue_exactly():
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    generator = np.random.default_rng(5)
    generator.random(3)
    random.gauss(0, 1)
    np.random.standard_normal()
    others = [
        np.random.Generator(kind(3))
        for kind in (np.random.MT19937, np.random.Philox, np.random.SFC64)
    ]
    state = {
        "rng": {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "pcg": generator.bit_generator.state,
            "others": [other.bit_generator.state for other in others],
            "torch": torch.get_rng_state(),
        }
    }
    again = round_trip(state)
    assert_same(again, state)
    expected = [random.random(), np.random.rand(), generator.random(), torch.rand(1).item()]
    random.setstate(again["rng"]["python"])
    np.random.set_state(again["rng"]["numpy"])
    generator.bit_generator.state = again["rng"]["pcg"]
    torch.set_rng_state(again["rng"]["torch"])
    assert [random.random(), np.random.rand(), generator.random(), torch.rand(1).item()] == expected


def test_channels_last_weights_keep_their_strides():
    model = TinyLM()
    weight = nn.Conv2d(4, 5, 3).to(memory_format=torch.channels_last).weight
    again = round_trip({"model": model.state_dict(), "w": weight})
    assert again["w"].stride() == weight.stride()
    assert again["w"].is_contiguous(memory_format=torch.channels_last)
    assert again["model"]["conv.weight"].stride() == model.conv.weight.stride()


def test_parameters_and_buffers_keep_their_kind():
    state = {
        "trained": nn.Parameter(torch.ones(2)),
        "frozen": nn.Parameter(torch.ones(2), requires_grad=False),
        "counter": nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False),
        "leaf": torch.ones(2, requires_grad=True),
        "computed": torch.ones(2, requires_grad=True) * 2,
        "buffer": nn.Buffer(torch.ones(2)),
        "plain": torch.ones(2),
    }
    again = round_trip(state)
    assert_same(again, state)
    assert all(tensor.is_leaf for tensor in again.values())
    assert not again["trained"]._is_view()


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_come_back():
    dense = torch.tensor([[0, 1.0, 0, 2], [3, 0, 0, 0]])
    uncoalesced = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 3.0], (2, 4))
    state = {
        "coo": dense.to_sparse(),
        "uncoalesced": uncoalesced,
        "csr": dense.to_sparse_csr(),
        "csc": dense.to_sparse_csc(),
        "bsr": dense.to_sparse_bsr((1, 2)),
        "bsc": dense.to_sparse_bsc((1, 2)),
        "hybrid": torch.ones(2, 3, 4).to_sparse(1),
        "grad": dense.to_sparse().requires_grad_(),
        "empty": torch.sparse_coo_tensor(size=(3, 0)),
    }
    again = round_trip(state)
    assert_same(again, state)
    assert again["coo"].is_coalesced()
    assert not again["uncoalesced"].is_coalesced()
    assert torch.equal(again["uncoalesced"]._indices(), uncoalesced._indices())
    assert again["csr"].layout is torch.sparse_csr
    assert torch.equal(again["csr"].crow_indices(), state["csr"].crow_indices())


def test_lazy_conjugates_are_resolved():
    values = torch.tensor([[1 + 2j, 3 - 4j], [5j, 6]])
    negative = values.conj().imag
    assert negative.is_neg()
    state = {"conj": values.conj(), "conj_t": values.t().conj(), "neg": negative, "plain": values}
    stored = store(state, step=7)
    again = stored.load()
    for name, tensor in state.items():
        assert torch.equal(again[name], tensor.resolve_conj().resolve_neg())
    assert not again["conj"].is_conj()
    assert again["conj"].untyped_storage().data_ptr() != again["plain"].untyped_storage().data_ptr()


def test_nan_payloads_and_negative_zero_of_every_float():
    for dtype, width in [
        (torch.float16, torch.int16),
        (torch.bfloat16, torch.int16),
        (torch.float32, torch.int32),
        (torch.float64, torch.int64),
        (torch.float8_e5m2, torch.int8),
        (torch.float8_e4m3fn, torch.int8),
    ]:
        top = torch.iinfo(width)
        bits = torch.tensor([top.min, top.max, -1, 1, top.max - 1, 0], dtype=width)
        again = round_trip({"x": bits.view(dtype)})["x"]
        assert torch.equal(again.view(width), bits)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_the_default_device_does_not_matter():
    state = {
        "w": torch.arange(6.0).reshape(2, 3).t(),
        "s": torch.eye(3).to_sparse(),
        "c": torch.eye(2).to_sparse_csr(),
    }
    stored = store(state)
    with torch.device("meta"):
        again = stored.load()
        assert store(state).files == stored.files
    assert_same(again, state)
    assert again["w"].device.type == "cpu"


def test_training_modes_do_not_matter():
    state = {"w": torch.nn.Parameter(torch.ones(3)), "t": torch.ones(2, requires_grad=True)}
    with torch.no_grad():
        assert_same(round_trip(state), state)
    with torch.inference_mode():
        assert_same(round_trip(state), state)
        made = torch.ones(3)
    assert_same(round_trip({"x": made, "y": made[1:]}), {"x": made, "y": made[1:]})
