"""Every kind of training, killed twice and rolled back once, ends on the bits of the plain one.

A plain training of 16 steps, without mvc, is the measure. The kept one commits every third step. It
is told of a NaN at step 8, goes back to step 6 and takes the steps again; SIGKILL ends it in the
middle of step 12. A fresh process goes on from step 9; SIGKILL ends that one in step 14, while its
writer, which was stopped, has the state of step 12 in hand and nothing of it on the disk. The
writer is woken, finishes, and a third process goes on from there. At every step of all three the
loss, the batch, and all that is alive must be those of the plain training.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from support.scenarios import SCENARIOS
from support.training_runs import find_deviation, read_trace

pytestmark = pytest.mark.torch

_GARBAGE = 4711

# One of each kind on every push.
_KEPT = ("loader-persistent", "stateful-2-own", "language-model", "optimizers", "grad-scaler")
_MARKS = {
    **dict.fromkeys(SCENARIOS.keys() - set(_KEPT), pytest.mark.slow),
    **dict.fromkeys(("averages", "models", "special-optimizers"), pytest.mark.nightly),
    "compiled-inductor": [
        pytest.mark.nightly,
        pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler"),
    ],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_MARKS.get(name, ())) for name in SCENARIOS]
)
def test_killed_twice_and_rolled_back(trainings, tmp_path, name):
    rewinds = SCENARIOS[name].rewinds
    traces = {which: tmp_path / which for which in ("plain", "first", "second", "third")}
    held, root = tmp_path / "held", tmp_path / "run"

    def train(which, **plan):
        return trainings.run("kept", root, scenario=name, trace=str(traces[which]), **plan)

    one = trainings.run("plain", root, scenario=name, trace=str(traces["plain"]))
    assert one.error is None
    plain = read_trace(traces["plain"])
    assert len({line["loss"] for line in plain}) > 4, "a training that does nothing proves nothing"

    first = train("first", lie_at=8 if rewinds else 0, kill_at=12, quiet_kill=True)
    assert first.killed, first.error
    again = [7, 8] if rewinds else []
    _check(traces["first"], plain, [*range(1, 9), *again, *range(9, 12)])

    second = train("second", seed=_GARBAGE, kill_at=14, hold_at=12, held_file=str(held))
    assert second.killed, second.error
    _check(traces["second"], plain, range(10, 14))
    os.kill(int(held.read_text()), signal.SIGCONT)

    third = train("third", seed=_GARBAGE + 1)
    assert third.error is None
    _check(traces["third"], plain, range(13, 17))


def _check(path: Path, plain, steps):
    trace = read_trace(path)
    assert find_deviation(trace, plain) is None
    assert [line["step"] for line in trace] == list(steps)
