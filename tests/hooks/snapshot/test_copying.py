"""A snapshot is the state at its moment, bit by bit, whatever its tensors look like in memory."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc import UnsupportedError
from mvc.training import layout_state, read_image
from mvc_hooks.snapshot import copying
from mvc_hooks.snapshot.copying import Fence, copy_layout
from mvc_hooks.snapshot.memory import SharedMemory
from mvc_hooks.snapshot.ring import MemoryPool, take_snapshot
from support.committing import clone_state
from support.states import assert_same

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning"),
]

_DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8),
    *(torch.int64, torch.complex64, torch.float8_e4m3fn),
]


_FIXED = ("expanded", "rows", "sparse", "parameter")  # those do not take fill_


@pytest.fixture
def pool():
    made = MemoryPool()
    yield made
    made.close()


def _random(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = max(1, int(np.prod(shape))) * dtype.itemsize
    raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    if dtype is torch.bool:
        raw &= 1
    flat = raw.view(dtype)
    return flat[: int(np.prod(shape))].reshape(shape).clone()


def _odd_tensors():
    big = _random((1024, 700), torch.float32, 3)
    tied = _random((50,), torch.float32, 4)
    wave = _random((9, 5), torch.complex64, 5)
    return {
        "transposed": _random((17, 31), torch.float32).t(),
        "large transposed": big.t(),
        "large": big,
        "sliced": _random((40, 40), torch.bfloat16)[3:30:2, 1::3],
        "expanded": _random((1, 6), torch.float32).expand(5, 6),
        "channels last": _random((2, 3, 4, 5), torch.float32).to(memory_format=torch.channels_last),
        "offset": _random((100,), torch.float16)[7:],
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 7),
        "bool": _random((33,), torch.bool),
        "conjugated": wave.conj(),
        "negated": wave.conj().imag,
        "tied": [tied, tied, tied[10:20]],
        "parameter": torch.nn.Parameter(_random((3,), torch.float32)),
        "sparse": torch.eye(5).to_sparse(),
        "rows": torch.eye(6).to_sparse_csr(),
        "array": np.arange(12.0).reshape(3, 4).T,
        "big end": np.arange(5, dtype=">i4"),
        "read-only": np.frombuffer(b"0123456789", np.uint8),
        "bytes": b"x" * 2**21,
        "rng": torch.get_rng_state(),
        "plain": [1, 2.5, "text", None, (True, -0.0)],
    }


def test_odd_tensors(pool):
    state = _odd_tensors()
    snapshot = take_snapshot(state, 1, pool)
    back = read_image(snapshot.files())
    for name, value in state.items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(back[name], value)
        else:
            assert_same(back[name], value, name)
    assert back["tied"][0].data_ptr() == back["tied"][1].data_ptr()


def test_what_changes_later_is_not_in_it(pool):
    plain = {
        name: one
        for name, one in _odd_tensors().items()
        if isinstance(one, torch.Tensor) and name not in _FIXED
    }
    kept = clone_state(plain)
    snapshot = take_snapshot(plain, 1, pool)
    for one in plain.values():
        one.zero_() if one.dtype is torch.bool else one.fill_(7)
    back = read_image(snapshot.files())
    for name, one in kept.items():
        assert_same(back[name], one, name)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(_DTYPES),
            st.lists(st.integers(0, 9), max_size=3),
            st.booleans(),
            st.integers(0, 3),
        ),
        max_size=6,
    )
)
@settings(max_examples=30)
def test_any_tensors(kinds):
    state = {}
    for index, (dtype, shape, transposed, cut) in enumerate(kinds):
        tensor = _random(tuple(shape), dtype, index)
        tensor = tensor.movedim(0, -1) if transposed and tensor.ndim > 1 else tensor
        state[f"t{index}"] = tensor[cut:] if tensor.ndim else tensor
    pool = MemoryPool()
    back = read_image(take_snapshot(state, 1, pool).files())
    assert_same(back, state)
    pool.close()


def test_nothing_else_is_touched(pool):
    """Memory behind the image stays as it was; a wrong offset would show here."""
    state = {"a": _random((300_000,), torch.float32), "b": _random((7,), torch.uint8)}
    layout = layout_state(state)
    memory = SharedMemory(layout.size_bytes + 100)
    memory.bytes.fill_(0xA5)
    copy_layout(layout, memory)
    assert memory.bytes[layout.size_bytes :].eq(0xA5).all()
    memory.close()


def test_a_refused_state_takes_no_memory(pool, monkeypatch):
    taken = []
    monkeypatch.setattr(pool, "take", lambda *_: taken.append(1))
    with pytest.raises(UnsupportedError, match="model"):
        take_snapshot({"model": {"f": lambda: None}}, 1, pool)
    assert taken == []


def test_a_copy_that_fails_gives_its_memory_back(pool, monkeypatch):
    def fail(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mvc_hooks.snapshot.copying.move_runs", fail)
        with pytest.raises(KeyboardInterrupt):
            take_snapshot({"large": torch.zeros(2**19)}, 1, pool)
    assert len(pool._free) == 1


# The fence, with events that the test makes come.


class _Event:
    def __init__(self):
        self.came = False

    def query(self):
        return self.came

    def synchronize(self):
        self.came = True


def test_a_host_fence_is_done_at_once():
    fence = Fence()
    fence.stand()
    fence.wait()
    assert fence.is_done()
    assert not fence.is_torn


@pytest.mark.parametrize(
    ("happens", "is_torn"),
    [
        (["change", "come", "ask"], True),  # nobody can tell which came first
        (["change", "wait"], True),
        (["come", "ask", "change", "ask", "stand", "wait"], False),
        (["change", "wait", "come", "ask", "stand"], True),
    ],
)
def test_what_changed_before_the_copies_ended_is_torn_for_good(happens, is_torn):
    tensor, event = torch.zeros(3), _Event()
    fence = Fence([(0, event)], [(tensor, tensor._version)])
    for what in happens:
        if what == "change":
            tensor.add_(1)
            assert fence.is_done() == event.came
        elif what == "come":
            event.came = True
        elif what == "ask":
            assert fence.is_done()
        else:
            getattr(fence, what)()
    assert fence.is_torn == is_torn
    assert fence.watched == []


def _move(sizes):
    gap, total = 3, sum(sizes) + 3 * len(sizes)
    source = torch.randint(0, 255, (total,), dtype=torch.uint8)
    target, wanted = torch.full((total,), 255, dtype=torch.uint8), None
    wanted, runs, start = target.clone(), [], 0
    for size in sizes:
        runs.append((target.data_ptr() + start, source.data_ptr() + start, size))
        wanted[start : start + size] = source[start : start + size]
        start += size + gap
    copying.move_runs(runs)
    assert torch.equal(target, wanted)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_every_byte_is_moved_by_several_threads(monkeypatch, threads):
    monkeypatch.setattr(copying, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(copying, "_WORTH_BYTES", 5000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    before = set(threading.enumerate())
    for sizes in ([], [0], [1], [999, 1000, 1001], [5000], [123_457, 0, 1, 77_000], [1] * 50):
        _move(sizes)
    assert set(threading.enumerate()) <= before  # one of another test may end meanwhile


def test_large_runs_are_moved_whole():
    _move([2**26, 2**25 + 1, 7])
