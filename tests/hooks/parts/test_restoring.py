"""Restoring is in place, exact, and loud about everything that does not fit."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mvc import ConflictError, UnsupportedError, UsageError
from mvc_hooks import capture, restore
from mvc_hooks.parts.make import make_part, make_parts
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.restoring import InexactRestoreError, capture_parts, restore_parts

pytestmark = pytest.mark.torch


def _net(width=3):
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def _source(lab, **objects):
    return lab.commit(make_parts(objects))


def _copy(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def _same(model, values):
    return all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


def test_everything_is_filled_where_it_lies(lab):
    model = _net()
    optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(0.1))
    parts = make_parts({"model": model, "optimizer": optimizer})

    def step():
        model(torch.rand(5, 4)).sum().backward()
        optimizer.step()

    step()
    source = lab.commit(parts)
    step()
    tensors = [*model.state_dict().values(), optimizer.param_groups[0]["lr"]]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    places = [tensor.data_ptr() for tensor in tensors]
    lists = optimizer.param_groups, optimizer.param_groups[0]["params"], optimizer.state
    restore_parts(source, parts)
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert lists[0] is optimizer.param_groups
    assert lists[1] is optimizer.param_groups[0]["params"]
    assert lists[2] is optimizer.state


def test_state_that_the_commit_has_not_is_taken_away(lab):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    parts = make_parts({"model": model, "optimizer": optimizer})
    source = lab.commit(parts)
    model(torch.rand(1, 2)).sum().backward()
    optimizer.step()
    assert optimizer.state
    restore_parts(source, parts)
    assert not optimizer.state


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


class _Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)


UNFIT = {
    "another name": (_Renamed, ["model.first.weight", "model.0.weight"]),
    "another shape": (lambda: _net(5), ["model.0.weight is float32 [5, 4] here", "float32 [3, 4]"]),
    "another type": (lambda: _net().double(), ["model.2.bias is float64 [2]", "float32 [2]"]),
    "one more": (lambda: nn.Sequential(*_net(), nn.Linear(2, 2)), ["model.3.weight is not in"]),
    "one less": (lambda: _net()[:2], ["model.2.weight is only in the stored state"]),
    "an odd one": (lambda: nn.Linear(4, 3), ["model.weight", "model.0.weight"]),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_model_that_does_not_fit_is_named_and_not_touched(lab, kind):
    make, words = UNFIT[kind]
    source = _source(lab, model=_net())
    model = make()
    before = _copy(model)
    with pytest.raises(ConflictError) as caught:
        restore_parts(source, make_parts({"model": model}))
    for word in words:
        assert word in str(caught.value)
    assert _same(model, before)


def test_many_differences_are_counted(lab):
    source = _source(lab, model=nn.Sequential(*(nn.Linear(2, 2) for _ in range(9))))
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(9)))
    with pytest.raises(ConflictError, match="and 8 more"):
        restore_parts(source, make_parts({"model": model}))


def test_a_graph_from_before_the_restore_cannot_be_used(lab):
    model = _net()
    parts = make_parts({"model": model})
    source = lab.commit(parts)
    loss = model(torch.rand(5, 4)).sum()
    restore_parts(source, parts)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_allowed_stays_as_it_is_and_the_rest_is_exact(lab):
    old = _net()
    source = _source(lab, model=old, count=3)
    model = nn.Sequential(*_net()[:2], nn.Linear(3, 7), nn.Linear(7, 1))
    head = model[2].weight.clone()
    parts = make_parts({"model": model})
    restore_parts(source, parts, allow=["model.2.*", "model.3", "count"])
    assert torch.equal(model[0].weight, old[0].weight)
    assert torch.equal(model[2].weight, head)
    with pytest.raises(ConflictError, match=r"model\.3"):
        restore_parts(source, parts, allow=["model.2.*", "count"])


def test_parts_that_are_missing_or_extra_are_named(lab):
    source = _source(lab, model=_net(), extra=1)
    with pytest.raises(ConflictError, match="extra is only in the stored state"):
        restore_parts(source, make_parts({"model": _net()}))
    with pytest.raises(ConflictError, match="other is not in the stored state"):
        restore_parts(source, make_parts({"model": _net(), "extra": 1, "other": {}}))
    restore_parts(source, make_parts({"model": _net(), "other": {}}), leave=["extra", "other"])


def test_an_optimizer_over_other_parameters_is_refused(lab):
    model = _net()
    make = lambda *params, **more: torch.optim.SGD(params, 0.1, **more)  # noqa: E731
    source = _source(lab, model=model, optimizer=make(model[0].weight, model[0].bias))
    with pytest.raises(ConflictError, match="1 groups"):
        grouped = torch.optim.SGD([{"params": [p]} for p in model[0].parameters()], 0.1)
        restore_parts(source, make_parts({"model": model, "optimizer": grouped}))
    with pytest.raises(ConflictError, match="1 parameters here, 2 parameters"):
        restore_parts(source, make_parts({"model": model, "optimizer": make(model[0].weight)}))
    swapped = make(model[0].bias, model[0].weight)
    with pytest.raises(ConflictError, match=r"'model\.0\.bias' here, parameter 'model\.0\.weight'"):
        restore_parts(source, make_parts({"model": model, "optimizer": swapped}))


def test_another_kind_of_optimizer_state_is_refused(lab):
    def run(**more):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1, **more)
        model(torch.rand(1, 2)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    source = _source(lab, **run())
    live = run()
    live["optimizer"].state[live["model"].weight]["exp_avg"] = torch.zeros(2, 2, dtype=torch.half)
    with pytest.raises(ConflictError, match=r"optimizer\.state\.0\.exp_avg is float16"):
        restore_parts(source, make_parts(live))
    source = _source(lab, **run(), scheduler=None)
    bare = nn.Linear(2, 2)
    sgd = torch.optim.SGD(bare.parameters(), 0.1)
    with pytest.raises(ConflictError, match=r"optimizer\.param_groups\.0\.momentum"):
        restore_parts(source, make_parts({"model": bare, "optimizer": sgd}))


def test_another_scheduler_is_refused(lab):
    def run(make):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return {"model": model, "optimizer": optimizer, "scheduler": make(optimizer)}

    step = lambda o: torch.optim.lr_scheduler.StepLR(o, 2)  # noqa: E731
    cosine = lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9)  # noqa: E731
    with pytest.raises(ConflictError, match=r"scheduler\.T_max"):
        restore_parts(_source(lab, **run(step)), make_parts(run(cosine)))


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


def test_what_an_object_loses_on_its_way_back_is_an_error(lab):
    class Forgetful:
        def __init__(self):
            self.count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            pass

    one = Forgetful()
    one.count = 4
    source = _source(lab, meter=one)
    with pytest.raises(InexactRestoreError, match="count"):
        restore_parts(source, make_parts({"meter": Forgetful()}))


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
    restore_parts(_source(lab, **old), make_parts(new))
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
    restore_parts(_source(lab, **old), make_parts(new))
    master = new["optimizer"].state[new["model"].weight]["master"]
    assert torch.equal(master, old["optimizer"].state[old["model"].weight]["master"])
    assert new["optimizer"].rounds == 2


def test_objects_without_a_state_are_refused():
    with pytest.raises(UsageError, match=r"tool is a .*Thread"):
        import threading

        make_parts({"tool": threading.Thread()})
    with pytest.raises(UsageError, match="gradients"):
        make_parts({"gradients": 1})
    assert set(make_parts({"scaler": None})) == {"scaler", "rng"}


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


def test_capture_and_restore_do_not_share_memory():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.rand(1, 2)).sum().backward()
    optimizer.step()
    parts = {"model": model, "optimizer": optimizer, "log": [1, 2], "count": 3}
    import copy

    state = copy.deepcopy(capture(**parts))
    optimizer.state.clear()
    assert restore(state, **{**parts, "count": None}) == {"log": [1, 2], "count": 3}
    optimizer.step()
    assert not torch.equal(
        state["optimizer"]["state"][0]["momentum_buffer"],
        optimizer.state[model.weight]["momentum_buffer"],
    )
    with pytest.raises(ConflictError, match=r"model\.weight"):
        restore(state, **{**parts, "model": nn.Linear(3, 3)})
    del state["details"]
    restore(state, **parts)


def test_values_change_in_place_and_may_grow(lab):
    def run(**values):
        return SimpleNamespace(**values, parts=make_parts(values))

    import collections

    import numpy as np

    def values():
        return {
            "book": {"best": 1.5, "seen": [1, 2, 3], "inner": {"x": torch.ones(2)}},
            "recent": collections.deque([1.0, 2.0], maxlen=4),
            "table": np.arange(4.0),
            "bits": bytearray(b"ab"),
            "names": {"a", "b"},
            "pair": (1, torch.zeros(1)),
        }

    old = run(**values())
    old.book["seen"].append(4)
    old.book["inner"]["x"] += 1
    old.recent.append(9.0)
    old.table[0] = 7
    old.bits += b"c"
    old.names.add("c")
    source = lab.commit(old.parts)
    new = run(**values())
    inner = new.book["inner"], new.book["inner"]["x"], new.book["seen"]
    found = restore_parts(source, new.parts)
    assert found["book"] is new.book
    assert inner == (new.book["inner"], new.book["inner"]["x"], new.book["seen"])
    assert inner[1].tolist() == [2.0, 2.0]
    assert new.book["seen"] == [1, 2, 3, 4]
    assert list(new.recent) == [1.0, 2.0, 9.0]
    assert (new.table[0], new.bits, new.names) == (7, b"abc", {"a", "b", "c"})
    with pytest.raises(ConflictError, match="table"):
        restore_parts(source, run(**{**values(), "table": np.arange(4)}).parts)
    with pytest.raises(ConflictError, match=r"book\.inner\.y"):
        broken = values()
        broken["book"]["inner"] = {"y": torch.ones(2)}
        restore_parts(source, run(**broken).parts)
    late = values()
    late["book"]["inner"] = {}
    restore_parts(source, run(**late).parts)
    assert late["book"]["inner"]["x"].tolist() == [2.0, 2.0]


def test_power_sgd_keeps_its_process_group(lab):
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    old, new = (PowerSGDState(None, 2, start_powerSGD_iter=3) for _ in range(2))
    old.error_dict[0] = torch.rand(4)
    old.p_memory_dict[0] = torch.rand(2, 3)
    old.iter = 5
    old.rng.rand(3)
    source = _source(lab, power=old)
    group = object()
    new.process_group = group
    with pytest.raises(ConflictError, match="power is of buckets") as caught:
        restore_parts(source, make_parts({"power": new}))
    assert "warm_up" in caught.value.hint
    assert new.error_dict == {}
    new.iter = 1  # it ran once in this process
    restore_parts(source, make_parts({"power": new}))
    assert new.process_group is group
    assert (new.iter, torch.equal(new.error_dict[0], old.error_dict[0])) == (5, True)
    assert new.rng.randint(1_000_000) == old.rng.randint(1_000_000)


def test_named_generators(lab):
    import random

    import numpy as np

    def make(seed):
        return {
            "torch_one": torch.Generator().manual_seed(seed),
            "pcg": np.random.default_rng(seed),
            "philox": np.random.Generator(np.random.Philox(seed)),
            "legacy": np.random.RandomState(seed),
            "python": random.Random(seed),
        }

    def draw(made):
        return [
            torch.rand(2, generator=made["torch_one"]).tolist(),
            made["pcg"].random(3).tolist(),
            made["philox"].normal(size=3).tolist(),
            made["legacy"].normal(size=3).tolist(),
            made["python"].gauss(0, 1),
        ]

    old, new = make(1), make(2)
    draw(old)
    source = _source(lab, **old)
    restore_parts(source, make_parts(new))
    assert draw(new) == draw(old)
    with pytest.raises(ConflictError, match="kind PCG64"):
        restore_parts(source, make_parts({**new, "philox": np.random.default_rng(1)}))


def test_state_of_other_cuda_devices_is_refused(lab):
    parts = make_parts({})
    state = capture_parts(parts)
    state["rng"]["cuda"] = [torch.get_rng_state()] * 3
    lab.repo.commit_state(state, message="x")
    from mvc_hooks.parts.sources import from_commit

    with pytest.raises(ConflictError, match=r"rng\.cuda is \d devices here, 3 devices"):
        restore_parts(from_commit(lab.repo, "HEAD"), parts)


class _Drawing:
    """Draws random numbers whenever it is asked for its state or gets it back."""

    def state_dict(self):
        torch.rand(1)
        return {}

    def load_state_dict(self, state):
        torch.rand(1)


def test_objects_that_draw_do_not_move_the_generators(lab):
    parts = make_parts({"drawing": _Drawing()})
    before = torch.get_rng_state()
    source = lab.commit(parts)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    restore_parts(source, parts)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_optimizer_has_the_last_word_over_its_learning_rate(lab):
    class Eager(torch.optim.lr_scheduler.StepLR):
        """Writes a rate into the optimizer when it is loaded."""

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.optimizer.param_groups[0]["lr"] = 77.0

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parts = {"model": model, "optimizer": optimizer, "scheduler": Eager(optimizer, 5)}
    restore_parts(_source(lab, **parts), make_parts(parts))
    assert optimizer.param_groups[0]["lr"] == 0.1
