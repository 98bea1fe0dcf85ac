"""Gradients are state while they accumulate, and leftovers after the step."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard

from mvc import ConflictError
from mvc_hooks.parts.gradients import GradsPart, _Watch
from mvc_hooks.parts.make import GRADIENTS, make_parts
from mvc_hooks.parts.names import ParameterNames
from mvc_hooks.parts.restoring import capture_parts, restore_parts
from support.sharded import as_rank, shard_one

pytestmark = pytest.mark.torch


def _build(seed=0, *, to_none=True, sparse=False):
    torch.manual_seed(seed)
    model = nn.ModuleDict({"a": nn.Embedding(5, 3, sparse=sparse), "b": nn.Linear(3, 2)})
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0 if sparse else 0.9)
    objects = {"model": model, "optimizer": optimizer}
    parts = make_parts(objects)
    parts[GRADIENTS] = GradsPart([optimizer], ParameterNames(objects))

    def accumulate():
        model["b"](model["a"](torch.randint(5, (4,)))).sum().backward()

    def step():
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)

    return SimpleNamespace(
        model=model, optimizer=optimizer, parts=parts, accumulate=accumulate, step=step
    )


def _watched(step, optimizers, objects):
    """Return a run whose parts have their gradients with them."""
    parts = make_parts(objects)
    parts[GRADIENTS] = GradsPart(optimizers, ParameterNames(objects))
    return SimpleNamespace(parts=objects, live=parts, train=step)


@pytest.fixture
def check(lab):
    """Return the check of a resume that begins after the first step, or a later one."""

    def check_both(build):
        for before in (1, 4):
            lab.check_resume(build, before=before, after=3)

    return check_both


def _bits(run):
    return [p.tolist() for p in run.model.parameters()]


@pytest.mark.parametrize("sparse", [False, True])
def test_accumulation_that_is_stopped_half_way(lab, sparse):
    old = _build(sparse=sparse)
    old.accumulate()
    old.step()
    old.accumulate()
    source = lab.commit(old.parts)
    stored = source.load({})[GRADIENTS]
    assert list(stored["accumulated"]) == ["model.a.weight", "model.b.weight", "model.b.bias"]
    old.accumulate()
    old.step()
    expected = _bits(old)
    for new in (_build(7, sparse=sparse), old):
        restore_parts(source, new.parts)
        assert source.check(capture_parts(new.parts)) == ()
        new.accumulate()
        new.step()
        assert _bits(new) == expected


def test_after_the_step_they_are_not_stored(lab):
    run = _build()
    run.accumulate()
    assert capture_parts(run.parts)[GRADIENTS]["accumulated"]
    run.step()
    run.accumulate()  # only now it is known that the run clears them
    run.parts["optimizer"]._optimizer.step()
    stored = capture_parts(run.parts)[GRADIENTS]
    assert stored["accumulated"] == {}
    assert stored["zeroed"] == ["model.a.weight", "model.b.weight", "model.b.bias"]


def test_none_and_zero_are_kept_apart(lab):
    """A parameter with a gradient of zero is stepped by its momentum, one with none is not."""
    old = _build(to_none=False)
    old.accumulate()
    old.step()
    source = lab.commit(old.parts)
    new = _build(3)
    restore_parts(source, new.parts)
    assert [p.grad is None for p in new.model.parameters()] == [False] * 3
    old.step()
    new.step()
    assert _bits(new) == _bits(old)
    source = lab.commit(_build().parts)
    new.accumulate()
    restore_parts(source, new.parts)
    assert [p.grad for p in new.model.parameters()] == [None] * 3


def test_gradients_that_are_there_are_filled_in_place(lab):
    run = _build()
    run.accumulate()
    source = lab.commit(run.parts)
    run.accumulate()
    places = [p.grad.data_ptr() for p in run.model.parameters()]
    restore_parts(source, run.parts)
    assert [p.grad.data_ptr() for p in run.model.parameters()] == places


def test_parameters_that_thaw_are_watched(lab):
    run = _build()
    run.model["a"].weight.requires_grad_(False)
    frozen = GradsPart([run.parts["optimizer"]._optimizer], {})
    run.model["a"].weight.requires_grad_(True)
    run.accumulate()
    assert len(frozen.capture()["accumulated"]) == 3


def test_a_step_does_not_go_through_all_parameters(monkeypatch):
    run = _build()
    for _ in range(2):
        run.accumulate()
        run.step()
    monkeypatch.setattr(_Watch, "params", property(lambda _: pytest.fail("went through them")))
    run.accumulate()
    run.step()


def test_a_parameter_that_is_frozen_here_and_was_not(lab):
    old = _build(to_none=False)
    old.accumulate()
    old.step()
    source = lab.commit(old.parts)
    torch.manual_seed(4)
    model = nn.ModuleDict({"a": nn.Embedding(5, 3), "b": nn.Linear(3, 2)})
    model["a"].weight.requires_grad_(False)
    objects = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)}
    parts = make_parts(objects)
    parts[GRADIENTS] = GradsPart([objects["optimizer"]], ParameterNames(objects))
    restore_parts(source, parts)
    assert model["a"].weight.requires_grad
    assert model["a"].weight.grad is not None


def test_an_optimizer_without_hooks_counts_as_never_stepped():
    model = nn.Linear(2, 2)
    plain = SimpleNamespace(param_groups=[{"params": list(model.parameters())}])
    part = GradsPart([plain], {})
    model(torch.rand(1, 2)).sum().backward()
    assert list(part.capture()["accumulated"]) == ["optimizer_0.0", "optimizer_0.1"]


def test_gradients_of_parameters_that_are_not_here_are_named(lab):
    old = _build()
    old.accumulate()
    source = lab.commit(old.parts)
    new = _build()
    new.parts[GRADIENTS] = GradsPart([], {})
    with pytest.raises(ConflictError, match=r"gradients\.accumulated\.model\.a\.weight"):
        restore_parts(source, new.parts)


def _decay_in_place(params):
    for param in params:
        if param.grad is not None:
            param.grad *= 0.5


def _decay(params):
    for param in params:
        param.grad = None if param.grad is None else param.grad * 0.5


KEEPERS = {
    "in place": _decay_in_place,
    "anew": _decay,
    "never": lambda params: None,
    "one of them": lambda params: _decay_in_place(params[:1]) or _clear(params[1:]),
}


def _clear(params):
    for param in params:
        param.grad = None


@pytest.mark.parametrize("kind", KEEPERS)
def test_gradients_that_live_on_after_the_step(check, kind):
    def build():
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        def step():
            KEEPERS[kind](list(model.parameters()))
            model(torch.rand(4, 3)).square().sum().backward()
            optimizer.step()

        return _watched(step, [optimizer], {"model": model, "optimizer": optimizer})

    check(build)


@pytest.mark.parametrize("to_none", [True, False])
def test_a_loop_that_clears_is_known_after_its_second_step(to_none):
    run = _build(to_none=to_none)
    sizes = []
    for _ in range(3):
        run.optimizer.zero_grad(set_to_none=to_none)
        run.accumulate()
        run.accumulate()
        run.optimizer.step()
        sizes.append(len(capture_parts(run.parts)[GRADIENTS]["accumulated"]))
    assert sizes == [3, 0, 0]


def test_a_loop_that_stops_clearing_is_told(caplog):
    run = _build()
    for _ in range(3):
        run.accumulate()
        run.step()
    assert capture_parts(run.parts)[GRADIENTS]["accumulated"] == {}
    for number in range(4):
        run.accumulate()
        run.optimizer.step()
        held = capture_parts(run.parts)[GRADIENTS]["accumulated"]
        assert (len(held), len(caplog.messages)) == ((3, 1) if number else (0, 0))
    assert "lack them" in caplog.messages[0]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("stops", [False, True])
def test_optimizers_that_share_parameters(check, turned, stops):
    """They step in turn; also if the run is committed between their steps."""

    def build():
        model = nn.ModuleDict({name: nn.Linear(3, 3) for name in "abc"})
        a, b, c = ([*model[name].parameters()] for name in "abc")
        optimizers = {
            "one": torch.optim.SGD([{"params": a}, {"params": b, "lr": 0.2}], 0.1, momentum=0.9),
            "two": torch.optim.Adam([{"params": b[:1]}, {"params": c}], 0.1),
        }
        order = list(optimizers.values())[:: -1 if turned else 1]
        turn = {"count": 0}

        def loss():
            return model["c"](model["b"](model["a"](torch.rand(4, 3)))).square().sum()

        def step():
            turn["count"] += 1
            if not stops or turn["count"] % 2:
                model.zero_grad()
                loss().backward()
                order[0].step()
            if not stops or not turn["count"] % 2:
                order[1].step()

        objects = {"model": model, "optimizer": optimizers, "turn": turn}
        return _watched(step, list(optimizers.values()), objects)

    check(build)


def test_the_gradients_of_a_group_that_is_added_late(lab):
    old = _build()
    parameter = nn.Parameter(torch.ones(3))
    old.model.late = parameter
    old.optimizer.add_param_group({"params": [parameter]})
    (parameter * 2).sum().backward()
    stored = capture_parts(old.parts)[GRADIENTS]["accumulated"]
    assert stored["model.late"].tolist() == [2.0] * 3


def test_another_number_of_optimizers_is_named(lab):
    source = lab.commit(_build().parts)  # nobody knows yet what becomes of gradients
    new = _build()
    more = torch.optim.SGD(new.model["b"].parameters(), 0.1)
    new.parts[GRADIENTS] = GradsPart([new.optimizer, more], ParameterNames({"model": new.model}))
    with pytest.raises(ConflictError, match=r"gradients\.habits is of 2 optimizers here, of 1"):
        restore_parts(source, new.parts)
    restore_parts(source, new.parts, allow=["gradients.habits"])
    assert capture_parts(new.parts)[GRADIENTS]["habits"] == ["new", "new"]


def test_an_empty_parameter_that_is_sharded_does_not_stop_the_training():
    with as_rank(1, (2,), ("dp",)) as mesh:
        whole = (torch.zeros(0, 4), torch.ones(6, 4))
        params = [nn.Parameter(shard_one(one, mesh, [Shard(0)])) for one in whole]
        optimizer = torch.optim.SGD(params, 0.1)
        part = GradsPart([optimizer], ParameterNames({"optimizer": optimizer}))
        params[1].grad = torch.ones_like(params[1])
        optimizer.step()
        part.remove()
