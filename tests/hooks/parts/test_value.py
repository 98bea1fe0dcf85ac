"""Plain values change in place, and objects keep their state themselves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from mvc import ConflictError
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.restoring import InexactRestoreError, restore_parts

pytestmark = pytest.mark.torch


def test_another_scheduler_is_refused(lab):
    def run(make):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return {"model": model, "optimizer": optimizer, "scheduler": make(optimizer)}

    step = lambda o: torch.optim.lr_scheduler.StepLR(o, 2)  # noqa: E731
    cosine = lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9)  # noqa: E731
    with pytest.raises(
        ConflictError, match="scheduler is of class CosineAnnealingLR here, of another class"
    ):
        restore_parts(lab.store(**run(step)), make_parts(run(cosine)))


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
    source = lab.store(meter=one)
    with pytest.raises(InexactRestoreError, match="count") as caught:
        restore_parts(source, make_parts({"meter": Forgetful()}))
    assert "its load_state_dict does not keep what it is given" in caught.value.hint


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


class _Memory:
    """Keeps a table that grows to the side, as long as it is asked to hold no more than it can."""

    def __init__(self, width, limit=9):
        self.table, self.limit = torch.ones(2, width), limit

    def state_dict(self):
        return {"table": self.table}

    def load_state_dict(self, state):
        self.table = state["table"].clone()
        if self.table.shape[1] > self.limit:
            raise ValueError("too wide")


def test_objects_decide_about_shapes_and_stay_as_they_are_if_they_refuse(lab):
    old = _Memory(5)
    old.table += 1
    source = lab.store(memory=old)
    new = _Memory(3)
    restore_parts(source, make_parts({"memory": new}))
    assert torch.equal(new.table, old.table)
    model, small = nn.Linear(2, 2), _Memory(3, limit=4)
    before = model.weight.clone()
    source = lab.store(memory=old, model=nn.Linear(2, 2))
    with pytest.raises(ConflictError, match=r"memory\.table is .*\[2, 3\].*too wide") as caught:
        restore_parts(source, make_parts({"memory": small, "model": model}))
    assert caught.value.hint.startswith("nothing was changed")
    assert torch.equal(small.table, torch.ones(2, 3))
    assert torch.equal(model.weight, before)


def test_an_object_that_cannot_go_back_is_named(lab):
    class Stuck(_Memory):
        def load_state_dict(self, state):
            self.table = state["table"] * 0
            raise ValueError("stuck")

    source = lab.store(memory=_Memory(5))
    with pytest.raises(ConflictError, match="stuck") as caught:
        restore_parts(source, make_parts({"memory": Stuck(3)}))
    assert caught.value.hint == "memory.table could not be undone: start the run again"


def test_power_sgd_keeps_its_process_group(lab):
    old, new = (PowerSGDState(None, 2, start_powerSGD_iter=3) for _ in range(2))
    old.error_dict[0] = torch.rand(4)
    old.p_memory_dict[0] = torch.rand(2, 3)
    old.iter = 5
    old.rng.rand(3)
    source = lab.commit(make_parts({"power": old}))
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
