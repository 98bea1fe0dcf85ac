"""Models: filled in place, with ties, modes and what a state dict leaves out."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from mvc import ConflictError, UnsupportedError, UsageError
from mvc_hooks.parts.make import make_part, make_parts
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.restoring import capture_parts, restore_parts
from support.scenarios.basics import WIDTH, make_net, make_small_net, sgd, simple


def test_a_compiled_model_and_a_bare_one_have_the_same_names(lab):
    first = lab.make(lambda: SimpleNamespace(parts={"model": make_net()}), 0)
    source = lab.commit(first.live)

    def compiled():
        net = make_net()
        net[0] = torch.compile(net[0], backend="eager")
        return SimpleNamespace(parts={"model": torch.compile(net, backend="eager")})

    second = lab.make(compiled, 1)
    assert any("_orig_mod" in name for name in second.parts["model"]._orig_mod.state_dict())
    restore_parts(source, second.live)
    assert source.check(capture_parts(second.live)) == ()
    assert torch.equal(second.parts["model"]._orig_mod[0].weight, first.parts["model"][0].weight)


pytestmark = pytest.mark.torch


def _copy(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def _same(model, values):
    return all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("ways", [(True, False), (False, True), (True, True)])
def test_modules_that_compute_activations_again_have_the_same_names(lab, ways):
    def make(is_wrapped):
        model = nn.Sequential(
            nn.Linear(6, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Linear(4, 1)
        )
        model[1].register_buffer("cache", torch.randn(2), persistent=False)
        model[1].eval()
        model[1][0].bias.requires_grad_(False)
        if is_wrapped:
            model[1] = checkpoint_wrapper(model[1])
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(torch.randn(3, 6)).sum().backward()
        optimizer.step()
        return SimpleNamespace(parts={"model": model, "optimizer": optimizer})

    first, second = (lab.make(lambda way=way: make(way), seed) for seed, way in enumerate(ways))
    second.parts["model"].train()
    restore_parts(lab.commit(first.live), second.live)
    state, other = (capture_parts(run.live) for run in (first, second))
    assert list(state["model"]) == list(other["model"])
    assert not any("_checkpoint_wrapped_module" in name for name in state["model"]._metadata)
    assert state["details"] == {**other["details"], "model": state["details"]["model"]}
    assert state["details"]["model"]["other_mode"] == ["1", "1.0", "1.1"]


class _Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)


UNFIT = {
    "another name": (_Renamed, ["model.first.weight", "model.0.weight"]),
    "another shape": (
        lambda: make_small_net(5),
        ["model.0.weight is float32 [5, 4] here", "float32 [3, 4]"],
    ),
    "another type": (
        lambda: make_small_net().double(),
        ["model.2.bias is float64 [2]", "float32 [2]"],
    ),
    "one more": (
        lambda: nn.Sequential(*make_small_net(), nn.Linear(2, 2)),
        ["model.3.weight is not in"],
    ),
    "one less": (lambda: make_small_net()[:2], ["model.2.weight is only in the stored state"]),
    "an odd one": (lambda: nn.Linear(4, 3), ["model.weight", "model.0.weight"]),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_model_that_does_not_fit_is_named_and_not_touched(lab, kind):
    make, words = UNFIT[kind]
    source = lab.store(model=make_small_net())
    model = make()
    before = _copy(model)
    with pytest.raises(ConflictError) as caught:
        restore_parts(source, make_parts({"model": model}))
    for word in words:
        assert word in str(caught.value)
    assert _same(model, before)


def test_a_lost_tie_is_refused(lab):
    def net(*, tied):
        model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
        if tied:
            model["b"].weight = model["a"].weight
        return model

    source = lab.store(model=net(tied=True))
    with pytest.raises(ConflictError, match=r"details\.model\.ties"):
        restore_parts(source, make_parts({"model": net(tied=False)}))
    source = lab.store(model=net(tied=False))
    with pytest.raises(ConflictError, match=r"details\.model\.ties"):
        restore_parts(source, make_parts({"model": net(tied=True)}))


def test_modes_frozen_parameters_and_hidden_buffers_come_back(lab):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            self.register_buffer("cache", torch.zeros(3), persistent=False)
            self.register_buffer("late", None, persistent=False)

    old = Net()
    old.body[1].eval()
    old.body[0].weight.requires_grad_(False)
    old.cache += 5
    old.late = torch.ones(2)
    source = lab.store(model=old)
    new = Net()
    place = new.cache.data_ptr()
    restore_parts(source, make_parts({"model": new}))
    assert [m.training for m in new.modules()] == [m.training for m in old.modules()]
    assert [p.requires_grad for p in new.parameters()] == [False, True, True, True]
    assert (new.cache.tolist(), new.cache.data_ptr()) == ([5.0, 5.0, 5.0], place)
    assert new.late.tolist() == [1.0, 1.0]
    old.cache = torch.zeros(7)
    restore_parts(lab.store(model=old), make_parts({"model": new}))
    assert new.cache.shape == (7,)


def test_extra_state_and_state_dict_hooks_go_through_the_model(lab):
    class Packed(nn.Module):
        """Stores one tensor under two names, and a value that is no tensor."""

        def __init__(self):
            super().__init__()
            self.both = nn.Parameter(torch.rand(4, 2))
            self.calls = 0
            self.register_state_dict_post_hook(self._split)
            self.register_load_state_dict_pre_hook(self._join)

        @staticmethod
        def _split(module, state, prefix, _):
            both = state.pop(f"{prefix}both")
            state[f"{prefix}low"], state[f"{prefix}high"] = both[:2] * 1, both[2:] * 1

        @staticmethod
        def _join(module, state, prefix, *_):
            halves = state.pop(f"{prefix}low"), state.pop(f"{prefix}high")
            state[f"{prefix}both"] = torch.cat(halves)

        def get_extra_state(self):
            return {"calls": self.calls}

        def set_extra_state(self, state):
            self.calls = state["calls"]

    old, new = Packed(), Packed()
    old.calls = 3
    place = new.both.data_ptr()
    restore_parts(lab.store(model=old), make_parts({"model": new}))
    assert (new.calls, new.both.data_ptr()) == (3, place)
    assert torch.equal(old.both, new.both)


def test_models_without_plain_data_are_refused():
    with pytest.raises(UsageError, match=r"model\.0\.weight, model\.0\.bias has no shape yet"):
        make_part("model", nn.Sequential(nn.LazyLinear(2)))
    with pytest.raises(UnsupportedError, match=r"model\.weight"):
        make_part("model", nn.Linear(2, 2, device="meta"))
    with pytest.raises(UnsupportedError, match=r"model\.table"):
        model = nn.Module()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch means to give them up
            table = torch.quantize_per_tensor(torch.rand(2), 0.1, 0, torch.qint8)
        model.register_buffer("table", table)
        make_part("model", model)


def test_wrappers_are_looked_through():
    model = nn.Linear(2, 2)
    assert ModulePart("m", nn.DataParallel(model)).module is model
    assert ModulePart("m", torch.compile(model, backend="eager")).module is model


# Modules that decide themselves about the shape of what they load.


class _History(nn.Linear):
    """Keeps a history in a tensor of extra state that grows at every step."""

    def __init__(self):
        super().__init__(WIDTH, 4)
        self.seen = torch.zeros(0)

    def forward(self, x):
        self.seen = torch.cat([self.seen, x.mean().detach()[None]])
        return super().forward(x + self.seen.mean())

    def get_extra_state(self):
        return self.seen.view(torch.uint8).clone()

    def set_extra_state(self, state):
        self.seen = state.cpu().view(torch.float32).clone()


class _Bank(nn.Linear):
    """Remembers batches in buffers: one that grows, one made late, one registered late."""

    def __init__(self, rows=2):
        super().__init__(WIDTH, 4)
        self.register_buffer("bank", torch.zeros(rows, WIDTH))
        self.register_buffer("late", None)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.bank = torch.cat([self.bank, x[:1].detach()])
        if self.bank.shape[0] == 5:
            self.late = x.detach().mean(0)
            self.register_buffer("later", x.detach().mean(0) * 2)
        x = x + self.bank.mean(0)
        return super().forward(x if self.late is None else x + self.late + self.later)


class _Resized(nn.Linear):
    """Takes a memory of any length through a hook."""

    def __init__(self):
        super().__init__(WIDTH, 4)
        self.memory = nn.Parameter(torch.zeros(1, WIDTH), requires_grad=False)
        self.register_load_state_dict_pre_hook(self._resize)

    @staticmethod
    def _resize(module, state, prefix, *_):
        module.memory.data = torch.zeros_like(state[f"{prefix}memory"])

    def forward(self, x):
        self.memory.data = torch.cat([self.memory.data, x[:1].detach()])
        return super().forward(x + self.memory.mean(0))


class _Nested(nn.Module):
    """Has a state dict of its own, with whatever it saw in it."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen = nn.Linear(WIDTH, 4), []

    def forward(self, x):
        self.seen.append(x[0].detach().clone())
        return self.inner(x + torch.stack(self.seen).mean(0))

    def state_dict(self, *_, **__):
        return {"inner": dict(self.inner.state_dict()), "seen": list(self.seen)}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["inner"])
        self.seen = [one.clone() for one in state["seen"]]


@pytest.mark.parametrize("net", [_History, _Bank, _Resized, _Nested])
def test_what_a_module_lets_grow_comes_back_in_its_size(lab, net):
    """In fresh runs, and in one that has grown further since."""

    def build():
        model = net()
        return simple(model, sgd(model, momentum=0.9))

    for before in (1, 4):
        lab.check_scenario(build, before=before, after=3)


def test_a_buffer_that_began_with_another_size_is_refused(lab):
    old = make_parts({"model": _Bank()})
    old["model"].module(torch.rand(3, WIDTH))
    model = _Bank(rows=7)
    before = _copy(model)
    with pytest.raises(
        ConflictError, match=r"model\.bank is .*\[7, 8\] here, .*\[3, 8\].* did not grow"
    ):
        restore_parts(lab.commit(old), make_parts({"model": model}))
    assert _same(model, before)
    # Without a run that grew it, another length is another model.
    with pytest.raises(ConflictError, match=r"model\.bank is"):
        restore_parts(lab.store(model=_Bank(rows=3)), make_parts({"model": model}))
    assert _same(model, before)


class _Picky(_History):
    """Takes no more than three entries, and finds out when half of the rest is loaded."""

    def set_extra_state(self, state):
        super().set_extra_state(state)
        torch.rand(1)
        if self.seen.numel() > 3:
            raise ValueError("too many entries")


class _Lossy(_History):
    def set_extra_state(self, state):
        super().set_extra_state(state[:-4])


@pytest.mark.parametrize(("net", "words"), [(_Picky, "too many"), (_Lossy, "not exact")])
def test_what_a_module_does_not_take_leaves_everything_as_it_was(lab, net, words):
    def make(calls):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), net())
        for _ in range(calls):
            model(torch.rand(2, WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        return {"model": model, "optimizer": optimizer, "count": [calls]}

    source, live = lab.store(**make(5)), make(2)
    before, seen = _copy(live["model"]), live["model"][1].seen.clone()
    generator = torch.get_rng_state()
    with pytest.raises(ConflictError, match=words) as caught:
        restore_parts(source, make_parts(live))
    assert "_extra_state is uint8 [8] here, uint8 [20]" in str(caught.value)
    assert caught.value.hint.startswith("nothing was changed; make the run as it was")
    assert _same(live["model"], before)
    assert torch.equal(live["model"][1].seen, seen)
    assert torch.equal(torch.get_rng_state(), generator)
    assert live["count"] == [2]
