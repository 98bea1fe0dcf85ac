"""Hooks in one process: what is attached to what, what errors make up for, what a wrong use is told."""

import math

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from mvc import ConflictError, Repo, UsageError
from mvc_hooks import Checkpointer
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.restoring import capture_parts, from_commit, restore_parts
from mvc_lab.compression import Bf16, Fp16, PowerSgd, SignSgd

HOOKS = [
    Fp16,
    lambda: Fp16(error_feedback=True),
    lambda: Bf16(error_feedback=True),
    lambda: PowerSgd(1, start_step=2),
    lambda: PowerSgd(3, start_step=2),
    SignSgd,
]

KEPT = []


@pytest.fixture(autouse=True)
def kept(group):
    # Closures of torch's PowerSGD hold the group. If one of them is dropped last, on a thread of the
    # group, that thread waits for its own end, and the process is aborted.
    KEPT.append(group)


def _wrap(model=None, cap=0.001):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 2))
    return DistributedDataParallel(model, bucket_cap_mb=cap)


def _train(ddp, steps, factor=1.0, begin=0):
    """Return the sum of the gradients that came out, of constant weights."""
    total = {}
    for step in range(begin, begin + steps):
        ddp.zero_grad()
        inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(step))
        (factor * ddp(inputs).square().mean()).backward()
        for name, param in ddp.module.named_parameters():
            total[name] = total.get(name, 0) + param.grad.clone()
    return total


def _errors(hook):
    return hook.capture()["errors"]


@pytest.mark.parametrize("make", HOOKS[1:])
def test_errors_are_all_that_is_missing(make):
    """What came out and what is still to come are together what plain sums are."""
    hook, ddp, plain = make(), _wrap(), _wrap()
    hook.attach(ddp)
    got, expected, errors = _train(ddp, 6), _train(plain, 6), _errors(hook)
    for name, total in expected.items():
        assert torch.allclose(got[name] + errors[name], total, atol=1e-4)
    assert any(not torch.allclose(got[name], total, rtol=1e-5) for name, total in expected.items())


@pytest.mark.parametrize("make", HOOKS)
def test_an_overflow_stays_in_its_step(make):
    hook, ddp = make(), _wrap()
    hook.attach(ddp)
    _train(ddp, 3)
    before = {name: one.clone() for name, one in _errors(hook).items()}
    assert not all(torch.isfinite(one).all() for one in _train(ddp, 1, math.inf).values())
    after = _errors(hook)
    assert all(torch.equal(one, after[name]) for name, one in before.items())
    assert all(torch.isfinite(one).all() for one in _train(ddp, 1).values())


def test_gradients_of_zero_are_zero():
    for make in HOOKS:
        hook, ddp = make(), _wrap()
        hook.attach(ddp)
        _train(ddp, 3, 0.0)
        assert not any(one.any() for one in _train(ddp, 1, 0.0).values())


@pytest.mark.parametrize("make", HOOKS)
@pytest.mark.parametrize("cap", [0.001, 25])
def test_a_resume_is_exact_in_any_buckets(make, cap, tmp_path):
    repo = Repo.init(tmp_path)
    hook, ddp = make(), _wrap()
    hook.attach(ddp)
    _train(ddp, 4)
    repo.commit_state(capture_parts(make_parts({"hook": hook})), message="x")
    whole = _train(ddp, 3, begin=4)
    other, fresh = make(), _wrap(cap=cap)
    other.attach(fresh)
    restore_parts(from_commit(repo, repo.resolve("HEAD")), make_parts({"hook": other}))
    parted = _train(fresh, 3, begin=4)
    assert all(torch.equal(one, parted[name]) for name, one in whole.items())
    state = other.capture()
    for key in ("errors", "factors"):
        for name, one in hook.capture().get(key, {}).items():
            assert torch.equal(one, state[key][name])
    assert state["sent_bytes"] == hook.capture()["sent_bytes"]


def test_other_settings_or_another_model_do_not_fit(tmp_path):
    repo = Repo.init(tmp_path)
    hook, ddp = PowerSgd(2, start_step=2), _wrap()
    hook.attach(ddp)
    _train(ddp, 4)
    repo.commit_state(capture_parts(make_parts({"hook": hook})), message="x")
    source = from_commit(repo, repo.resolve("HEAD"))

    def refuse(other, model=None):
        other.attach(_wrap(model))
        before = other.capture()
        with pytest.raises(ConflictError) as caught:
            restore_parts(source, make_parts({"hook": other}))
        assert other.capture() == before
        return caught.value.message

    assert "hook.rank is 3 here, 2 in the stored state" in refuse(PowerSgd(3, start_step=2))
    assert "hook.kind is SignSgd here, PowerSgd in the stored state" in refuse(SignSgd())
    smaller = nn.Sequential(nn.Linear(16, 24), nn.Linear(24, 16))
    assert "hook.errors.2." in refuse(PowerSgd(2, start_step=2), smaller)


def test_frozen_and_tied_parameters_and_other_shapes():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(40, 16)
            self.mix = nn.Conv1d(16, 24, 3)
            self.out = nn.Linear(16, 40, bias=False)
            self.out.weight = self.embed.weight
            self.still = nn.Linear(16, 16).requires_grad_(requires_grad=False)
            self.back = nn.Linear(24, 16)

        def forward(self, tokens):
            mixed = self.mix(self.embed(tokens).transpose(1, 2)).mean(2)
            return self.out(self.still(self.back(mixed)))

    for make in HOOKS:
        hook, ddp = make(), _wrap(Odd())
        hook.attach(ddp)
        for step in range(4):
            ddp(torch.arange(20).view(2, 10) + step).square().mean().backward()
        expected = {"back.bias", "back.weight", "embed.weight", "mix.bias", "mix.weight"}
        assert set(_errors(hook)) == (expected if hook.error_feedback else set())
        assert all(torch.isfinite(one.grad).all() for one in hook._params.values())


def test_the_first_factors_depend_on_names_alone():
    found = []
    for cap in (0.001, 25):
        hook, ddp = PowerSgd(2, start_step=2), _wrap(cap=cap)
        hook.attach(ddp)
        state = torch.get_rng_state()
        _train(ddp, 4)
        assert torch.equal(state, torch.get_rng_state())
        found.append(hook.capture()["factors"])
    assert all(torch.equal(one, found[1][name]) for name, one in found[0].items())


def test_ratios():
    hook, ddp = PowerSgd(1, start_step=2), _wrap(nn.Sequential(nn.Linear(16, 400)))
    assert hook.ratio is None
    hook.attach(ddp)
    _train(ddp, 2)
    assert hook.ratio == 1
    _train(ddp, 1)
    assert hook.ratio == hook.expected_ratio == (400 * 16 + 400) / (400 + 16 + 400)
    assert hook.gradient_bytes == 3 * 4 * (400 * 16 + 400)


# Wrong uses: one line each.


def _refused(call):
    with pytest.raises(UsageError) as caught:
        call()
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_model_that_is_not_wrapped():
    assert _refused(lambda: SignSgd().attach(nn.Linear(2, 2))) == (
        "SignSgd compresses the gradients of a DistributedDataParallel, not of a Linear"
    )


def test_a_hook_attached_twice():
    hook = SignSgd()
    hook.attach(_wrap())
    assert _refused(lambda: hook.attach(_wrap())) == "this SignSgd is already attached"


@pytest.mark.parametrize("way", ["ours", "torch", "built in"])
def test_a_model_that_has_another_hook(way):
    ddp = _wrap()
    if way == "ours":
        Fp16().attach(ddp)
    elif way == "torch":
        ddp.register_comm_hook(None, fp16_compress_hook)
    else:
        ddp._register_builtin_comm_hook(distributed.BuiltinCommHookType.FP16_COMPRESS)
    assert "already has a communication hook" in _refused(lambda: SignSgd().attach(ddp))


@pytest.mark.parametrize("steps", [1, 3])
def test_training_has_begun(steps):
    ddp = _wrap()
    _train(ddp, steps)
    assert "after training began" in _refused(lambda: SignSgd().attach(ddp))


@pytest.mark.parametrize("rank", [0, -1, 1.5, True, "4"])
def test_a_rank_that_is_none(rank):
    assert f"rank of PowerSgd is {rank!r}, not a whole number from 1 on" in _refused(
        lambda: PowerSgd(rank)
    )


def test_other_settings_that_make_no_sense():
    assert "start_step of PowerSgd is 1" in _refused(lambda: PowerSgd(1, start_step=1))
    assert "error_feedback of SignSgd is 1" in _refused(lambda: SignSgd(error_feedback=1))
    assert "extend of SignSgd is 'yes'" in _refused(lambda: SignSgd(extend="yes"))


def test_types_that_cannot_be_compressed():
    model = nn.Linear(2, 2, dtype=torch.complex64)
    assert "cannot compress the gradient of weight, which is torch.complex64" in _refused(
        lambda: Fp16().attach(_wrap(model))
    )
    scalar = nn.Linear(2, 2)
    scalar.gain = nn.Parameter(torch.ones(()))
    assert "gradient of gain, a scalar" in _refused(lambda: PowerSgd(1).attach(_wrap(scalar)))


def test_a_checkpointer_with_a_hook_that_nothing_uses(tmp_path):
    message = _refused(lambda: Checkpointer(tmp_path, model=nn.Linear(2, 2), compression=SignSgd()))
    assert message == "compression is a SignSgd that no DistributedDataParallel has"
    assert not list(tmp_path.iterdir())
