"""Copies from CUDA devices: beside the training, fenced, and bit by bit."""

import pytest
import torch

from mvc.training import read_image
from mvc_hooks.snapshot.ring import MemoryPool, take_snapshot
from support.committing import Rig

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]


def _params(count=8, size=2**20):
    torch.manual_seed(3)
    return {f"w{index}": torch.randn(size, device="cuda") for index in range(count)}


def _fenced(params):
    return {one.untyped_storage().data_ptr(): one for one in params.values()}


@pytest.fixture
def pool():
    made = MemoryPool()
    yield made
    made.close()


def _assert_image(snapshot, kept):
    back = read_image(snapshot.files())
    assert all(torch.equal(back[name], one) for name, one in kept.items())


def test_the_copy_is_pinned(pool):
    take_snapshot(_params(1), 1, pool).fence.wait()
    snapshot = take_snapshot(_params(1), 1, pool)
    snapshot.fence.wait()
    assert snapshot.memory._is_pinned


def test_what_is_not_fenced_may_change_at_once(pool):
    params = _params()
    kept = {name: one.cpu() for name, one in params.items()}
    snapshot = take_snapshot(params, 1, pool)
    for one in params.values():
        one.add_(1)
    _assert_image(snapshot, kept)
    assert not snapshot.fence.is_torn


def test_what_is_fenced_may_change_behind_the_fence(pool):
    params = _params()
    for _ in range(5):
        kept = {name: one.cpu() for name, one in params.items()}
        snapshot = take_snapshot(params, 1, pool, _fenced(params))
        assert len(snapshot.fence.watched) == len(params)
        snapshot.fence.stand()
        for one in params.values():
            one.add_(1)
        _assert_image(snapshot, kept)
        assert not snapshot.fence.is_torn
        pool.give_back(snapshot.memory)


def test_a_change_before_the_fence_is_found(pool):
    params = _params()
    snapshot = take_snapshot(params, 1, pool, _fenced(params))
    params["w0"].add_(1)
    snapshot.fence.stand()
    assert snapshot.fence.is_torn


def test_odd_tensors(pool):
    base = torch.randn(64, 48, device="cuda")
    wave = torch.randn(33, dtype=torch.complex64, device="cuda")
    state = {
        "transposed": base.t(),
        "sliced": base[::3, 5:],
        "conjugated": wave.conj(),
        "half": base.bfloat16(),
        "flag": base > 0,
        "scalar": torch.tensor(2.5, device="cuda"),
        "empty": torch.zeros(0, device="cuda"),
        "sparse": torch.eye(4, device="cuda").to_sparse(),
        "rng": torch.cuda.get_rng_state(),
        "host": torch.randn(5),
    }
    back = read_image(take_snapshot(state, 1, pool, _fenced({"base": base})).files())
    for name, one in state.items():
        left, right = back[name].cpu(), one.cpu()
        assert torch.equal(left.to_dense(), right.to_dense()), name


def test_the_generator_is_as_it_was(pool):
    state = torch.cuda.get_rng_state()
    snapshot = take_snapshot({"rng": state}, 1, pool)
    first = torch.randn(100, device="cuda")
    torch.cuda.set_rng_state(read_image(snapshot.files())["rng"])
    assert torch.equal(torch.randn(100, device="cuda"), first)


def test_committed_while_the_training_goes_on(tmp_path):
    params, kept, reports = _params(), {}, []
    with Rig(tmp_path) as rig:
        for step in range(1, 6):
            kept[step] = {name: one.cpu() for name, one in params.items()}
            snapshot = take_snapshot(params, step, rig.pool, _fenced(params))
            rig.queue.submit(snapshot, "main", f"step {step}")
            snapshot.fence.stand()
            for one in params.values():
                one.mul_(1.01)
            reports += rig.queue.pump()
        reports += rig.queue.wait()
        assert [report.error for report in reports] == [None] * 5
        for report in reports:
            assert rig.repo.verify_state(kept[report.step], report.commit).is_exact
