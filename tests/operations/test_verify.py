"""verify_state: a live state against a commit, to the bit."""

import struct
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError, NotFoundError, Repo, UnsupportedError
from support.bounds import on_disk
from support.state_strategies import states, torch_states

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def nan(payload):
    return struct.unpack("d", struct.pack("Q", 0x7FF8 << 48 | payload))[0]


def as_float32(bits):
    return np.array(bits, np.uint32).view(np.float32)[()]


def training_state():
    torch.manual_seed(0)
    tied = torch.randn(40, 60)
    return {
        "model": {"wte": tied, "head": tied, "bias": torch.ones(5, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"m": torch.randn(60, 40).t(), "step": torch.tensor(3.0)}}},
        "rng": np.arange(700, dtype=np.uint32),
        "blob": bytes(range(256)) * 8,
        "step": 3,
    }


def differences(repo, stored, live):
    repo.commit_state(stored, message="x")
    return repo.verify_state(live).differences


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    repo = Repo.init(tmp_path_factory.mktemp("verify"))
    repo.set_config("mvc.chunkbytes", "1024")
    repo.commit_state(training_state(), message="x", step=3)
    return repo


def test_the_same_state(committed):
    check = committed.verify_state(training_state(), "main@3")
    assert check.is_exact
    assert check.differences == ()
    assert (check.commit, check.tensors) == (committed.resolve("HEAD"), 7)
    assert check.size_bytes == 3 * 40 * 60 * 4 + 5 * 2 + 4 + 700 * 4 + 256 * 8


@on_disk
@given(state=states | torch_states)
def test_every_state_is_what_was_committed(repo, state):
    repo.commit_state(state, message="x")
    assert repo.verify_state(state).differences == ()


def raw_bytes(tensor):
    if isinstance(tensor, np.ndarray):
        return tensor.view(np.uint8).reshape(-1)
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),)).numpy()


@on_disk
@given(st.data())
def test_every_flipped_bit_is_found(committed, data):
    state = training_state()
    places = {
        ("model", "bias"): state["model"]["bias"],
        ("optimizer", "state.0.m"): state["optimizer"]["state"][0]["m"],
        ("optimizer", "state.0.step"): state["optimizer"]["state"][0]["step"],
        ("rng", "rng"): state["rng"],
    }
    (file, name), tensor = data.draw(st.sampled_from(sorted(places.items(), key=str)))
    raw = raw_bytes(tensor)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (line,) = committed.verify_state(state).differences
    assert line.startswith(f"tensor {name!r} of {file}.safetensors differs")


def test_a_tied_tensor_differs_under_all_its_names(committed):
    state = training_state()
    state["model"]["wte"][-1, -1] += 1
    assert committed.verify_state(state).differences == (
        "tensor 'head' of model.safetensors differs in 1 of 10 chunks",
        "tensor 'wte' of model.safetensors differs in 1 of 10 chunks",
    )


W = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("stored", "live", "lines"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, ['state["b"] is missing']),
        ({"a": 1}, {"a": 1, "b": W}, ['state["b"] is extra']),
        ({"a": W, "b": 1}, {"b": 1}, ['state["a"] is missing']),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ["state has its keys in another order"]),
        ({"m": {"v": W, "w": W.clone()}}, {"m": {"w": W.clone(), "v": W}},
         ['state["m"] has its keys in another order']),
        ({"a": {1: 2}}, {"a": {"1": 2}}, ['state["a"][1] is missing', 'state["a"]["1"] is extra']),
        ({"a": 0.0}, {"a": -0.0}, ['state["a"] is -0.0, the commit has 0.0']),
        ({"a": 1}, {"a": True}, ['state["a"] is True, the commit has 1']),
        ({"a": 1}, {"a": 1.0}, ['state["a"] is 1.0, the commit has 1']),
        ({"a": [1]}, {"a": (1,)}, ['state["a"] is (1,), the commit has [1]']),
        ({"a": [1, 2]}, {"a": [1]}, ['state["a"] has 1 items, the commit has 2']),
        ({"a": [W, 1]}, {"a": [W, 2]}, ['state["a"][1] is 2, the commit has 1']),
        ({"a": nan(1)}, {"a": nan(2)},
         ['state["a"] has the bits 7ff8000000000002, the commit has 7ff8000000000001']),
        ({"a": as_float32(0x7FC00001)}, {"a": as_float32(0x7FC00002)},
         ['state["a"] has the bits 0200c07f, the commit has 0100c07f']),
        ({"a": W}, {"a": W.double()}, ['state["a"] is float64 [2, 3], the commit has float32 [2, 3]']),
        ({"a": W}, {"a": W.reshape(3, 2)},
         ['state["a"] is float32 [3, 2], the commit has float32 [2, 3]']),
        ({"a": W}, {"a": W.numpy()}, ['state["a"] is <f4 [2, 3], the commit has float32 [2, 3]']),
        ({"a": W}, {"a": None}, ['state["a"] is None, the commit has float32 [2, 3]']),
        ({"a": W}, {"a": W.t().contiguous().t()},
         ['state["a"] has its dimensions in another order in memory']),
        ({"a": W}, {"a": torch.nn.Parameter(W, requires_grad=False)},
         ['state["a"] is a Parameter, in the commit it is not']),
        ({"a": W}, {"a": W.clone().requires_grad_()},
         ['state["a"] is made to require a gradient, in the commit it is not']),
        ({"a": W, "b": W}, {"a": W, "b": W.clone()},
         [f'state["{name}"] shares its memory with other tensors than in the commit'
          for name in "ab"]),
        ({"a": W, "b": W.clone()}, {"a": W, "b": W},
         [f'state["{name}"] shares its memory with other tensors than in the commit'
          for name in "ab"]),
        ({"a": deque([1], 3)}, {"a": deque([1], 4)},
         ['state["a"] has the maxlen 4, the commit has 3']),
        ({"a": defaultdict(int, x=1)}, {"a": defaultdict(list, x=1)},
         ['state["a"] has the factory list, the commit has int']),
        ({"a": {1: 2}}, {"a": Counter({1: 2})}, ['state["a"] is Counter({1: 2}), the commit has {1: 2}']),
        ({"a": {8, 0, 16}, "b": 1}, {"a": {16, 8, 0}, "b": 2}, ['state["b"] is 2, the commit has 1']),
        ({"a": "x" * 99}, {"a": "x" * 98 + "y"},
         [f"state[\"a\"] is '{'x' * 59}..., the commit has another that begins so"]),
        ({"a": torch.Size([1])}, {"a": (1,)}, ['state["a"] is (1,), the commit has torch.Size([1])']),
    ],
)  # fmt: skip
def test_every_difference_is_named(repo, stored, live, lines):
    assert list(differences(repo, stored, live)) == lines
    assert repo.verify_state(stored).is_exact


def test_metadata_of_a_state_dict(repo):
    states = [OrderedDict(w=1), OrderedDict(w=1), OrderedDict(w=1)]
    states[0]._metadata = OrderedDict({"": {"version": 1}})
    states[1]._metadata = OrderedDict({"": {"version": 2}})
    assert differences(repo, {"m": states[0]}, {"m": states[1]}) == (
        'state["m"]._metadata[""]["version"] is 2, the commit has 1',
    )
    assert repo.verify_state({"m": states[2]}).differences == ('state["m"]._metadata is missing',)


def test_sparse_tensors(repo):
    stored = {"s": torch.eye(3).to_sparse()}
    live = {"s": torch.eye(3).to_sparse()}
    live["s"]._values()[1] = 2
    (line,) = differences(repo, stored, live)
    assert line.startswith("tensor ")
    assert line.endswith(" of model.safetensors differs")
    (line,) = repo.verify_state({"s": torch.eye(3)}).differences
    assert line == 'state["s"] is of type tensor, the commit has sparse_coo'


def test_a_commit_that_lacks_a_tensor_file_is_no_match(repo):
    state = {"model": {"w": W}}
    repo.commit_state(state, message="x")
    repo.remove("model.safetensors")
    repo.commit("without the weights")
    with pytest.raises(FormatError, match="there is no tensor 'w'"):
        repo.verify_state(state)
    assert repo.verify_state(state, "HEAD~1").is_exact


def test_no_state(repo, root):
    with pytest.raises(NotFoundError):
        repo.verify_state({})
    (root / "a").write_text("x")
    repo.commit("a", paths="a")
    with pytest.raises(NotFoundError, match="no training state"):
        repo.verify_state({})
    repo.commit_state({"a": 1}, message="x")
    with pytest.raises(UnsupportedError, match=r'state\["a"\]\["f"\] is a function'):
        repo.verify_state({"a": {"f": print}})


def test_what_was_released_is_verified_by_its_ids(repo):
    for step in (1, 2):
        repo.commit_state({"a": torch.full((50,), step)}, message="x", step=step)
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
    repo.upkeep.gc(grace_s=0)
    assert repo.verify_state({"a": torch.full((50,), 1)}, "main@1").is_exact
    assert not repo.verify_state({"a": torch.full((50,), 2)}, "main@1").is_exact


def test_no_tensor_is_copied_as_a_whole(repo):
    repo.set_config("mvc.chunkbytes", str(2**20))
    wide = torch.arange(2**23, dtype=torch.int32).reshape(2**11, 2**12)
    state = {"plain": wide, "strided": {"t": wide.clone().t()[::2]}}
    repo.commit_state(state, message="x")
    tracemalloc.start()
    try:
        assert repo.verify_state(state).is_exact
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**22 + 2**20 * repo._context.store.threads  # the tensors have 32 and 16 MiB
