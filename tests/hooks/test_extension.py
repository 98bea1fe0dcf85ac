"""What takes part in a run is called in order, and its state goes where the run goes."""

import pytest
import torch
from torch import nn

from mvc import ConflictError, UsageError
from mvc_hooks import Checkpointer, Extension
from mvc_hooks.extension import Contribution

pytestmark = pytest.mark.torch


class Counter(Extension):
    """Counts steps, and notes what it was asked."""

    entry = "counter"

    def __init__(self):
        self.count, self.calls = 0, []

    def open(self, host):
        self.calls.append("open")
        assert host.parts.keys() >= {"model"}

    def begin(self):
        self.calls.append("begin")

    def start(self):
        self.calls.append(f"start at {self.count}")

    def check_step(self, step):
        self.count += 1

    def capture(self):
        self.calls.append("capture")
        return {"count": self.count}

    def describe(self, step):
        return Contribution(facts={"counted": str(self.count)}, metrics={"half": self.count / 2})

    def note_durable(self, step):
        self.calls.append(f"durable {step}")

    def restore(self, state, origin):
        self.calls.append(f"restore {state}")
        self.count = 0 if state is None else state["count"]

    def after_rollback(self):
        self.calls.append("after_rollback")

    def close(self):
        self.calls.append("close")


def _run(folder, *extensions, **options):
    torch.manual_seed(0)
    options = {"every": 1, "signals": False, **options}
    return Checkpointer(folder, model=nn.Linear(1, 1), extensions=extensions, **options)


def test_calls_come_in_order_and_the_state_comes_back(tmp_path):
    first, second = Counter(), Counter()
    with _run(tmp_path, first) as ckpt:
        ckpt.step()
        ckpt.step()
        ckpt.wait()
        ckpt.roll_back(ckpt.repo.resolve("HEAD~1"))
        assert first.count == 1
        assert ckpt.repo.show("HEAD~1").annotations.meta["counted"] == "0"
        assert ckpt.repo.show("HEAD").annotations.metrics["half"] == 0.5
    assert first.calls[:3] == ["open", "begin", "start at 0"]
    rollback = first.calls.index("after_rollback")
    assert "restore {'count': 1}" in first.calls[:rollback]
    assert {"durable 0", "durable 1", "durable 2"} <= set(first.calls)
    assert first.calls[-1] == "close"
    with _run(tmp_path, second) as ckpt:
        assert ckpt.step_count == second.count == 1
    assert second.calls[:4] == ["open", "begin", "restore {'count': 1}", "start at 1"]


def test_a_commit_without_its_state_restores_none_and_a_run_without_it_refuses_its_state(tmp_path):
    with _run(tmp_path) as ckpt:
        ckpt.step()
    counter = Counter()
    with _run(tmp_path, counter) as ckpt:
        assert "restore None" in counter.calls
        ckpt.step()
    with pytest.raises(ConflictError, match="counter is only in the stored state"):
        _run(tmp_path)
    with _run(tmp_path, allow=["counter"]) as ckpt:
        assert ckpt.step_count == 2


def test_what_cannot_be_an_extension_is_refused(tmp_path):
    for extensions in (5, [5], [Counter]):
        with pytest.raises(UsageError, match="not a list of extensions"):
            Checkpointer(tmp_path / "run", model=nn.Linear(1, 1), extensions=extensions)
    with pytest.raises(UsageError, match="two extensions are called 'Counter'"):
        _run(tmp_path / "run", Counter(), Counter())
    with pytest.raises(UsageError, match="'counter' is a reserved name"):
        _run(tmp_path / "run", Counter(), parts={"counter": 3})
    assert not (tmp_path / "run").exists()


def test_an_extension_that_fails_to_open_leaves_nothing_open(tmp_path):
    class Broken(Extension):
        def open(self, host):
            raise UsageError("broken")

    counter = Counter()
    with pytest.raises(UsageError, match="broken"):
        _run(tmp_path / "run", counter, Broken())
    assert counter.calls == ["open", "close"]
    assert not (tmp_path / "run").exists()
