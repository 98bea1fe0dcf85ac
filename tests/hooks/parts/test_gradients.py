"""Gradients are state while they accumulate, and leftovers after the step."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mvc import ConflictError
from mvc_hooks.parts.gradients import GradsPart
from mvc_hooks.parts.make import GRADIENTS, make_parts, name_all_parameters
from mvc_hooks.parts.restoring import capture_parts, restore_parts

pytestmark = pytest.mark.torch


def _build(seed=0, *, to_none=True, sparse=False):
    torch.manual_seed(seed)
    model = nn.ModuleDict({"a": nn.Embedding(5, 3, sparse=sparse), "b": nn.Linear(3, 2)})
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0 if sparse else 0.9)
    objects = {"model": model, "optimizer": optimizer}
    parts = make_parts(objects)
    parts[GRADIENTS] = GradsPart([optimizer], name_all_parameters(objects))

    def accumulate():
        model["b"](model["a"](torch.randint(5, (4,)))).sum().backward()

    def step():
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)

    return SimpleNamespace(model=model, parts=parts, accumulate=accumulate, step=step)


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
    parts[GRADIENTS] = GradsPart([objects["optimizer"]], name_all_parameters(objects))
    restore_parts(source, parts)
    assert model["a"].weight.requires_grad
    assert model["a"].weight.grad is not None


def test_an_optimizer_without_hooks_counts_as_never_stepped():
    model = nn.Linear(2, 2)
    plain = SimpleNamespace(param_groups=[{"params": list(model.parameters())}])
    part = GradsPart([plain], {})
    model(torch.rand(1, 2)).sum().backward()
    assert list(part.capture()["accumulated"]) == ["optimizer_0.0", "optimizer_0.1"]


def test_removing_takes_all_hooks_off():
    run = _build()
    run.parts[GRADIENTS].remove()
    optimizer = run.parts["optimizer"]._optimizer
    assert not optimizer._optimizer_step_post_hooks
    assert not any(p._post_accumulate_grad_hooks for p in run.model.parameters())


def test_gradients_of_parameters_that_are_not_here_are_named(lab):
    old = _build()
    old.accumulate()
    source = lab.commit(old.parts)
    new = _build()
    new.parts[GRADIENTS] = GradsPart([], {})
    with pytest.raises(ConflictError, match=r"gradients\.accumulated\.model\.a\.weight"):
        restore_parts(source, new.parts)
