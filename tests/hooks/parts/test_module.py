"""Models: filled in place, with ties, modes and what a state dict leaves out."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mvc import ConflictError, UnsupportedError, UsageError
from mvc_hooks.parts.make import make_part, make_parts
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.restoring import capture_parts, restore_parts
from support.part_runs import OPTIMIZERS, make_net, make_run


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.embedding((x[:, :4] * 8).long())).mean((1, 2))


def test_tied_embedding(lab):
    found = lab.check_resume(make_run(OPTIMIZERS["adamw"], _Tied))
    assert found.first.model.head.weight is found.first.model.embedding.weight


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_modules(lab, kind):
    apply = getattr(nn.utils.parametrizations, kind)

    def net():
        return nn.Sequential(apply(nn.Linear(6, 4)), nn.Linear(4, 1))

    lab.check_resume(make_run(OPTIMIZERS["adamw"], net))


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


def _small_net(width=3):
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def _source(lab, **objects):
    return lab.commit(make_parts(objects))


def _copy(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def _same(model, values):
    return all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


class _Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)


UNFIT = {
    "another name": (_Renamed, ["model.first.weight", "model.0.weight"]),
    "another shape": (
        lambda: _small_net(5),
        ["model.0.weight is float32 [5, 4] here", "float32 [3, 4]"],
    ),
    "another type": (lambda: _small_net().double(), ["model.2.bias is float64 [2]", "float32 [2]"]),
    "one more": (
        lambda: nn.Sequential(*_small_net(), nn.Linear(2, 2)),
        ["model.3.weight is not in"],
    ),
    "one less": (lambda: _small_net()[:2], ["model.2.weight is only in the stored state"]),
    "an odd one": (lambda: nn.Linear(4, 3), ["model.weight", "model.0.weight"]),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_model_that_does_not_fit_is_named_and_not_touched(lab, kind):
    make, words = UNFIT[kind]
    source = _source(lab, model=_small_net())
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

    source = _source(lab, model=net(tied=True))
    with pytest.raises(ConflictError, match=r"details\.model\.ties"):
        restore_parts(source, make_parts({"model": net(tied=False)}))
    source = _source(lab, model=net(tied=False))
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
    source = _source(lab, model=old)
    new = Net()
    place = new.cache.data_ptr()
    restore_parts(source, make_parts({"model": new}))
    assert [m.training for m in new.modules()] == [m.training for m in old.modules()]
    assert [p.requires_grad for p in new.parameters()] == [False, True, True, True]
    assert (new.cache.tolist(), new.cache.data_ptr()) == ([5.0, 5.0, 5.0], place)
    assert new.late.tolist() == [1.0, 1.0]
    old.cache = torch.zeros(7)
    restore_parts(_source(lab, model=old), make_parts({"model": new}))
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
    restore_parts(_source(lab, model=old), make_parts({"model": new}))
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
