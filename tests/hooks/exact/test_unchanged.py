"""A checkpointer changes nothing of the run that it keeps, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from mvc import MvcError
from mvc_hooks import Checkpointer, Ring
from support.scenarios.basics import loss_of, make_net, windows
from support.training_runs import digest, look, seed_all

pytestmark = pytest.mark.torch

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks",
    "_post_accumulate_grad_hooks",
)  # fmt: skip


def _count_hooks(model, optimizer):
    owners = [*model.modules(), *model.parameters(), optimizer]
    return {
        (number, name): len(getattr(one, name) or ())
        for number, one in enumerate(owners)
        for name in _HOOKS
        if hasattr(one, name)
    }


def _look_around(model, optimizer):
    """Return everything of a run and its process that is nobody's to change."""
    return {
        "model": digest(look(model)),
        "versions": [tensor._version for tensor in model.parameters()],
        "places": [tensor.data_ptr() for tensor in model.parameters()],
        "gradients": [None if p.grad is None else digest(p.grad) for p in model.parameters()],
        "leaves": [p.is_leaf and p.requires_grad for p in model.parameters()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "optimizer": digest(look(optimizer)),
        "state": len(optimizer.state),
        "group keys": [sorted(group) for group in optimizer.param_groups],
        "random": digest([random.getstate(), np.random.get_state(), torch.get_rng_state()]),
        "trace": (sys.gettrace(), sys.getprofile(), sys.excepthook, threading.excepthook),
        "grad mode": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": torch.get_default_dtype(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    }


def _children():
    return sorted(os.listdir("/proc/self/task")), _processes()


def _processes():
    found = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/children") as file:
            found += file.read().split()
    return sorted(found)


def _train_step(model, optimizer, index):
    optimizer.zero_grad()
    loss = loss_of(model, windows(index))
    loss.backward()
    optimizer.step()
    return loss


@pytest.fixture
def live():
    seed_all(5)
    model = make_net()
    model[0].weight.requires_grad_(requires_grad=False)
    model[1].eval()
    return model, torch.optim.Adam(model.parameters(), 0.01)


def test_nothing_changes_at_a_fresh_optimizer(tmp_path, live):
    model, optimizer = live
    before = _look_around(model, optimizer)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, every=1, ring=Ring(1)) as ckpt:
        assert _look_around(model, optimizer) == before
        ckpt.step(loss=1.0)
        ckpt.commit("before any optimizer step")
        ckpt.wait()
        assert _look_around(model, optimizer) == before
    assert not optimizer.state
    assert _look_around(model, optimizer) == before


def test_nothing_changes_in_the_midst_of_a_training(tmp_path, live):
    model, optimizer = live
    for index in range(3):
        _train_step(model, optimizer, index)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    hooks, before = _count_hooks(model, optimizer), _look_around(model, optimizer)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, every=1) as ckpt:
        ckpt.step(loss=torch.tensor(1.0), grad_norm=2.0)
        assert _look_around(model, optimizer) == before
        ckpt.wait()
    assert _look_around(model, optimizer) == before
    assert _count_hooks(model, optimizer) == hooks
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_a_restore_leaves_every_tensor_where_it_is(tmp_path, live):
    model, optimizer = live
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, every=1) as ckpt:
        _train_step(model, optimizer, 0)
        ckpt.step()
    places = [p.data_ptr() for p in model.parameters()]
    moments = [s["exp_avg"].data_ptr() for s in optimizer.state.values()]
    steps = [int(s["step"]) for s in optimizer.state.values()]
    with Checkpointer(tmp_path, model=model, optimizer=optimizer) as ckpt:
        assert ckpt.step_count == 1
    assert [p.data_ptr() for p in model.parameters()] == places
    assert [s["exp_avg"].data_ptr() for s in optimizer.state.values()] == moments
    assert [int(s["step"]) for s in optimizer.state.values()] == steps


def test_closing_leaves_no_process_descriptor_thread_or_memory(tmp_path, live):
    model, optimizer = live
    _train_step(model, optimizer, 0)

    def keep(name):
        with Checkpointer(
            tmp_path / name, model=model, optimizer=optimizer, every=1, ring=Ring(1, 2)
        ) as ckpt:
            for index in range(3):
                ckpt.step(loss=_train_step(model, optimizer, index))
        return weakref.ref(ckpt)

    keep("warm")
    gc.collect()
    before = _children(), sorted(os.listdir("/proc/self/fd")), threading.enumerate()
    gone = [keep("a"), keep("b")]
    gc.collect()
    assert (_children(), sorted(os.listdir("/proc/self/fd")), threading.enumerate()) == before
    assert [one() for one in gone] == [None, None]
    with open("/proc/self/maps") as file:
        assert "mvc" not in "".join(line for line in file if "memfd" in line)


def test_a_loss_with_a_graph_is_let_go(tmp_path):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    graphs = []
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, every=2) as ckpt:
        for _ in ckpt.steps(6):
            hidden = model(torch.ones(2, 4))
            graphs.append(weakref.ref(hidden))
            loss = hidden.square().sum()  # whose graph holds what it is the square of
            norm = loss * 2
            del hidden
            ckpt.check(loss=loss, grad_norm=norm)
            ckpt.step(loss=loss, grad_norm=norm)
            del loss, norm
        gc.collect()
        assert [one() for one in graphs] == [None] * 6


def test_hooks_of_the_user_stay(tmp_path, live):
    model, optimizer = live
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append("forward"))
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    model[4].weight.register_post_accumulate_grad_hook(lambda _: calls.append("gradient"))
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, every=1) as ckpt:
        _train_step(model, optimizer, 0)
        ckpt.step()
    _train_step(model, optimizer, 1)
    assert calls == ["forward", "gradient", "step"] * 2


def test_a_refused_checkpointer_leaves_nothing(tmp_path, live):
    model, optimizer = live
    gc.collect()  # an earlier test's garbage may hold files open
    hooks, before = _count_hooks(model, optimizer), _look_around(model, optimizer)
    children, handles = _processes(), set(os.listdir("/proc/self/fd"))
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, every=1) as ckpt:
        ckpt.step()
    for wrong in (
        {"every": 0}, {"resume": False}, {"thing": object()}, {"more": {"a": 1}},
        {"detectors": [1]}, {"ladder": []}, {"branch": "no branch"}, {"optimizer": model},
    ):  # fmt: skip
        with pytest.raises(MvcError):
            Checkpointer(tmp_path, **{"model": model, "optimizer": optimizer, **wrong})
    gc.collect()
    assert _count_hooks(model, optimizer) == hooks
    assert _look_around(model, optimizer) == before
    assert _processes() == children
    assert set(os.listdir("/proc/self/fd")) <= handles
