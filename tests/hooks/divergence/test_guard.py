"""A dropped step changes no bit, and a guard that drops nothing changes none either."""

import copy

import pytest
import torch
from torch import nn

from mvc import UsageError
from mvc_hooks.divergence.guard import StepGuard
from support.cases import for_each

_OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
}


def _make(name="adamw"):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, _OPTIMIZERS[name](model.parameters())


def _backward(model, step, scaler=None):
    batch = torch.linspace(-1, 1, 24).reshape(4, 6) * (step + 1)
    loss = model(batch).square().mean()
    (loss if scaler is None else scaler.scale(loss)).backward()
    return loss


def _train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        _backward(model, step)
        optimizer.step()


def _bits(model, optimizer):
    state = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    return torch.utils._pytree.tree_flatten(state)


def _equal(left, right):
    pairs = zip(left[0], right[0], strict=True)
    return left[1] == right[1] and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs
    )


@for_each("name", _OPTIMIZERS)
@for_each("before", [0, 3])
def test_dropped_step_changes_no_bit_and_the_next_one_counts(name, before):
    model, optimizer = _make(name)
    other, plain = _make(name)
    guard = StepGuard([optimizer])
    _train(model, optimizer, before)
    _train(other, plain, before)
    guard.drop_next()
    assert guard._armed
    seen = _bits(model, optimizer)
    _train(model, optimizer, 1, first=77)
    assert _equal(_bits(model, optimizer), seen)
    assert not guard._armed
    _train(model, optimizer, 3, first=before)
    _train(other, plain, 3, first=before)
    assert _equal(_bits(model, optimizer), _bits(other, plain))


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_idle_guard_changes_no_bit(name):
    model, optimizer = _make(name)
    other, plain = _make(name)
    guard = StepGuard([optimizer])
    _train(model, optimizer, 5)
    guard.remove()
    _train(other, plain, 5)
    assert _equal(_bits(model, optimizer), _bits(other, plain))


def test_nan_gradients_do_not_get_through():
    model, optimizer = _make()
    guard = StepGuard([optimizer])
    _train(model, optimizer, 2)
    seen = _bits(model, optimizer)
    _backward(model, 1)
    for parameter in model.parameters():
        parameter.grad.fill_(float("nan"))
    guard.drop_next()
    optimizer.step()
    assert _equal(_bits(model, optimizer), seen)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["sgd", "adamw", "adam-fused"])
def test_with_a_scaler(name):
    model, optimizer = _make(name)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    guard = StepGuard([optimizer])

    def step(number):
        optimizer.zero_grad()
        _backward(model, number, scaler)
        scaler.step(optimizer)
        scaler.update()

    step(0)
    seen = _bits(model, optimizer)
    guard.drop_next()
    step(1)
    assert _equal(_bits(model, optimizer), seen)
    step(2)
    assert not _equal(_bits(model, optimizer), seen)


def test_a_step_that_the_scaler_skips_leaves_the_guard_armed():
    model, optimizer = _make()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    guard = StepGuard([optimizer])
    _backward(model, 0, scaler)
    next(iter(model.parameters())).grad.fill_(float("inf"))
    guard.drop_next()
    scaler.step(optimizer)
    scaler.update()
    assert guard._armed
    guard.cancel()
    seen = _bits(model, optimizer)
    _train(model, optimizer, 1)
    assert not _equal(_bits(model, optimizer), seen)


@pytest.mark.parametrize("by_name", [False, True])
def test_gradients_made_inside_the_step(by_name):
    model, optimizer = _make("sgd")
    guard = StepGuard([optimizer])

    def closure():
        optimizer.zero_grad()
        return _backward(model, 1)

    def step():
        return optimizer.step(closure=closure) if by_name else optimizer.step(closure)

    step()
    seen = _bits(model, optimizer)
    guard.drop_next()
    loss = step()
    assert loss.item() > 0
    assert _equal(_bits(model, optimizer), seen)
    step()
    assert not _equal(_bits(model, optimizer), seen)


def test_lbfgs_moves_no_parameter():
    model, _ = _make()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    guard = StepGuard([optimizer])

    def closure():
        optimizer.zero_grad()
        return _backward(model, 1)

    optimizer.step(closure)
    seen = copy.deepcopy(model.state_dict())
    guard.drop_next()
    optimizer.step(closure)
    assert all(torch.equal(value, seen[name]) for name, value in model.state_dict().items())


def test_each_of_several_optimizers_drops_one_step():
    (left, first), (right, second) = _make(), _make("sgd")
    guard = StepGuard([first, second])
    seen = _bits(left, first), _bits(right, second)
    guard.drop_next()
    _train(left, first, 1)
    assert guard._armed
    _train(right, second, 1)
    assert not guard._armed
    assert _equal(_bits(left, first), seen[0])
    assert _equal(_bits(right, second), seen[1])


def test_removed_guard_is_gone():
    model, optimizer = _make()
    guard = StepGuard([optimizer])
    guard.drop_next()
    guard.remove()
    guard.remove()
    seen = _bits(model, optimizer)
    _train(model, optimizer, 1)
    assert not _equal(_bits(model, optimizer), seen)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    with pytest.raises(UsageError, match="removed"):
        guard.drop_next()


def test_wrappers_and_other_things():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model, optimizer = _make()
    guard = StepGuard([Wrapper(optimizer)])
    guard.drop_next()
    seen = _bits(model, optimizer)
    _train(model, optimizer, 1)
    assert _equal(_bits(model, optimizer), seen)
    for bad in (None, 3, "adam", model, Wrapper(None)):
        with pytest.raises(UsageError, match="not an optimizer"):
            StepGuard([optimizer, bad])
