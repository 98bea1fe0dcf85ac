"""Optimizers: exactly the state that each had, whatever kind it is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mvc import ConflictError
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.restoring import capture_parts, restore_parts
from mvc_hooks.run.live import LiveRun
from support.scenarios.basics import make_small_net
from support.scenarios.optimizers import Lookahead

pytestmark = pytest.mark.torch


def test_a_momentum_buffer_of_none_stays_none(lab):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parts = make_parts({"model": model, "optimizer": optimizer})
    model(torch.rand(1, 2)).sum().backward()
    optimizer.step()
    optimizer.state[model.weight]["momentum_buffer"] = None
    source = lab.commit(parts)
    optimizer.state.clear()
    restore_parts(source, parts)
    assert optimizer.state[model.weight] == {"momentum_buffer": None}


def test_an_optimizer_over_other_parameters_is_refused(lab):
    model = make_small_net()
    make = lambda *params, **more: torch.optim.SGD(params, 0.1, **more)  # noqa: E731
    source = lab.store(model=model, optimizer=make(model[0].weight, model[0].bias))
    with pytest.raises(ConflictError, match="1 groups"):
        grouped = torch.optim.SGD([{"params": [p]} for p in model[0].parameters()], 0.1)
        restore_parts(source, make_parts({"model": model, "optimizer": grouped}))
    with pytest.raises(ConflictError, match="1 parameters here, 2 parameters"):
        restore_parts(source, make_parts({"model": model, "optimizer": make(model[0].weight)}))
    swapped = make(model[0].bias, model[0].weight)
    with pytest.raises(ConflictError, match=r"'model\.0\.bias' here, parameter 'model\.0\.weight'"):
        restore_parts(source, make_parts({"model": model, "optimizer": swapped}))


@pytest.mark.parametrize("is_list", [False, True])
def test_another_class_of_optimizer_is_refused_in_one_line_and_allowed_as_a_whole(lab, is_list):
    def run(make, *, is_list=is_list):
        model = nn.Linear(2, 2)
        optimizer = make(model.parameters(), 0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": [optimizer] if is_list else optimizer}

    name = "optimizer.0" if is_list else "optimizer"
    source = lab.store(**run(torch.optim.SGD))
    parts = make_parts(run(torch.optim.Adam))
    said = f"the run does not fit the stored state: {name} is of class Adam here, of class SGD in the stored state"
    with pytest.raises(ConflictError) as refused:
        restore_parts(source, parts)
    assert (refused.value.message, f'allow=["{name}"]' in refused.value.hint) == (said, True)
    before = str(capture_parts(parts)["optimizer"])
    restore_parts(source, parts, allow=[name])
    assert str(capture_parts(parts)["optimizer"]) == before
    again = make_parts(run(torch.optim.Adam))
    restore_parts(lab.commit(parts), again)
    assert str(capture_parts(again)["optimizer"]) == before


def test_a_class_with_the_same_settings_takes_the_state_and_says_so(lab, caplog):
    class Renamed(torch.optim.SGD):
        pass

    def make(kind):
        model = make_small_net()
        return {"model": model, "optimizer": kind(model.parameters(), 0.1)}

    restore_parts(lab.store(**make(torch.optim.SGD)), make_parts(make(Renamed)))
    assert "optimizer is of class Renamed in the script, and was of class SGD" in caplog.text


def test_another_kind_of_optimizer_state_is_refused(lab):
    def run(**more):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1, **more)
        model(torch.rand(1, 2)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    source = lab.store(**run())
    live = run()
    live["optimizer"].state[live["model"].weight]["exp_avg"] = torch.zeros(2, 2, dtype=torch.half)
    with pytest.raises(ConflictError, match=r"optimizer\.state\.0\.exp_avg is float16"):
        restore_parts(source, make_parts(live))


def test_optimizer_hooks_are_called(lab):
    def run():
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        optimizer.extra = 0

        def note(one, state):
            return {**state, "extra": one.extra}

        def take(one, state):
            state = dict(state)
            one.extra = state.pop("extra")
            return state

        optimizer.register_state_dict_post_hook(note)
        optimizer.register_load_state_dict_pre_hook(take)
        return {"model": model, "optimizer": optimizer}

    old, new = run(), run()
    old["optimizer"].extra = 7
    old["model"](torch.rand(1, 2)).sum().backward()
    old["optimizer"].step()
    restore_parts(lab.store(**old), make_parts(new))
    assert new["optimizer"].extra == 7
    assert new["optimizer"].state_dict()["state"].keys() == {0, 1}


def test_an_optimizer_with_its_own_state_dict_still_gets_exact_bits(lab):
    class Own(torch.optim.SGD):
        rounds = 0

        def state_dict(self):
            return {**super().state_dict(), "rounds": self.rounds}

        def load_state_dict(self, state):
            state = dict(state)
            self.rounds = state.pop("rounds")
            super().load_state_dict(state)  # casts to the type of the parameter

    def run():
        model = nn.Linear(2, 2).bfloat16()
        return {"model": model, "optimizer": Own(model.parameters(), 0.1)}

    old, new = run(), run()
    old["optimizer"].rounds = 2
    old["optimizer"].state[old["model"].weight]["master"] = torch.rand(2, 2)
    restore_parts(lab.store(**old), make_parts(new))
    master = new["optimizer"].state[new["model"].weight]["master"]
    assert torch.equal(master, old["optimizer"].state[old["model"].weight]["master"])
    assert new["optimizer"].rounds == 2


# Wrapped optimizers, and groups that are added.


def test_gradients_of_a_wrapped_optimizer_are_kept(lab):
    model = nn.Linear(2, 2)
    run = LiveRun(
        {"model": model, "optimizer": Lookahead(torch.optim.SGD(model.parameters(), 0.1))}
    )
    model(torch.rand(1, 2)).sum().backward()
    assert run.parts["gradients"].capture()["accumulated"].keys() == {"model.weight", "model.bias"}
    run.remove()


def _thawing(at):
    """Return a build whose second layer is trained from its step ``at`` on, in a group of its own."""

    def build():
        model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 1))
        model[1].requires_grad_(requires_grad=False)
        optimizer = torch.optim.Adam(model[0].parameters(), 0.01)
        count = {"steps": 0}

        def train():
            if count["steps"] == at:
                model[1].requires_grad_(requires_grad=True)
                optimizer.add_param_group({"params": list(model[1].parameters()), "lr": 0.1})
            count["steps"] += 1
            optimizer.zero_grad()
            model(torch.rand(4, 6)).square().mean().backward()
            optimizer.step()

        parts = {"model": model, "optimizer": optimizer, "count": count}
        return SimpleNamespace(parts=parts, train=train, live=LiveRun(parts).parts)

    return build


@pytest.mark.parametrize("at", [3, 5, 1])
def test_a_group_that_is_added_goes_and_comes_with_the_state(lab, at):
    """The commit is of step 3, the rollback begins at step 7."""
    found = lab.check_resume(_thawing(at))
    assert len(found.source.load({})["optimizer"]["param_groups"]) == (2 if at < 3 else 1)


def test_groups_that_the_script_adds_are_refused(lab):
    old = _thawing(1)()
    old.train()
    single = lab.commit(old.live)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 1))
    groups = [{"params": list(layer.parameters())} for layer in model]
    parts = {"model": model, "optimizer": torch.optim.Adam(groups, 0.01), "count": {"steps": 7}}
    with pytest.raises(ConflictError, match=r"2 groups here, 1 groups.*began with 1 groups, not 2"):
        restore_parts(single, LiveRun(parts).parts)
    assert len(parts["optimizer"].param_groups) == 2
    assert parts["count"] == {"steps": 7}


def test_a_group_whose_parameters_have_no_name_is_refused(lab):
    def run():
        model, other = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
        parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}
        return make_parts(parts), parts["optimizer"], other

    live, optimizer, other = run()
    optimizer.add_param_group({"params": [other]})
    with pytest.raises(ConflictError, match="added during the run has parameter None"):
        restore_parts(lab.commit(live), run()[0])
