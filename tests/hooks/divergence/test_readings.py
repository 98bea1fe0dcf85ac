"""Readings come out as they went in, when they are due, and alike on all ranks."""

import json
import math
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc import UsageError
from mvc_hooks.divergence.history import Reading
from support.cases import for_each
from support.programs import start
from support.readings import ReadingQueue

_NO_CUDA = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none"
)


@for_each(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (2, 2.0),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float16(0.5), 0.5),
        (np.int64(7), 7.0),
        (np.array(2.5), 2.5),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([1.5]), 1.5),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.tensor(3), 3.0),
        (torch.nn.Parameter(torch.tensor(4.0)), 4.0),
        (math.inf, math.inf),
        (None, None),
    ],
)
def test_anything_that_is_one_number(value, expected):
    queue = ReadingQueue()
    queue.put(1, value, value)
    assert queue.take() == [Reading(1, expected, expected)]


def test_nan_stays():
    queue = ReadingQueue()
    queue.put(1, torch.tensor(math.nan), -math.inf)
    (reading,) = queue.take()
    assert math.isnan(reading.loss)
    assert reading.grad_norm == -math.inf


@for_each(
    "value",
    [
        "1.0",
        True,
        np.True_,
        1j,
        np.complex64(1),
        [1.0],
        10**400,
        np.zeros(2),
        torch.zeros(2),
        torch.tensor(True),
        torch.tensor(1j),
        torch.empty((), device="meta"),
        object(),
    ],
)
def test_anything_else_is_refused_and_leaves_no_trace(value):
    queue = ReadingQueue()
    with pytest.raises(UsageError, match="of step 3"):
        queue.put(3, 1.0, value)
    queue.put(3, 1.0)
    assert queue.drain() == [Reading(3, 1.0)]


def test_steps_rise_until_cleared():
    queue = ReadingQueue(lag_steps=2)
    queue.put(5, 1.0)
    for step in (5, 4):
        with pytest.raises(UsageError, match="came after"):
            queue.put(step, 1.0)
    queue.clear()
    queue.put(2, 3.0)
    assert queue.drain() == [Reading(2, 3.0)]


@given(st.integers(0, 5), st.lists(st.integers(1, 3), max_size=20))
def test_a_reading_is_due_exactly_lag_steps_later(lag, gaps):
    queue, step, seen = ReadingQueue(lag), 0, []
    for gap in gaps:
        step += gap
        queue.put(step, float(step))
        got = queue.take()
        assert all(reading.loss == reading.step for reading in got)
        seen += [reading.step for reading in got]
        assert all(s <= step - lag for s in seen)
        assert len(queue) == sum(s > step - lag for s in _sums(gaps) if s <= step)
    seen += [reading.step for reading in queue.take(step + lag)]
    assert seen == _sums(gaps)
    assert queue.drain() == []


def _sums(gaps):
    return [sum(gaps[: n + 1]) for n in range(len(gaps))]


def test_value_of_the_moment_counts_and_no_graph_is_kept():
    queue = ReadingQueue(lag_steps=1)
    weight = torch.tensor(2.0, requires_grad=True)
    loss = weight * 3
    graph = loss.grad_fn
    queue.put(1, loss)
    with torch.no_grad():
        loss.mul_(0)
    assert queue.drain() == [Reading(1, 6.0)]
    assert graph is not None
    assert weight.grad is None


@_NO_CUDA
def test_cuda_values_come_two_steps_later_without_a_sync():
    queue, losses = ReadingQueue(), torch.arange(1.0, 9.0, device="cuda")
    queue.put(1, losses[0], losses[0])
    queue.drain()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = []
        for step in range(2, 9):
            loss = losses[step - 1].clone()
            queue.put(step, loss, float(step))
            loss.fill_(-1)
            out.append([reading.step for reading in queue.take()])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert out == [[], [], [2], [3], [4], [5], [6]]
    assert queue.drain() == [Reading(7, 7.0, 7.0), Reading(8, 8.0, 8.0)]
    assert len(queue.messages._slots) <= 3


_RANK = """
import json, math, os, sys
import torch
from torch import distributed
from mvc import StorageError
from support.readings import ReadingQueue
from mvc_hooks.divergence.watch import Watch

rank, store = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group(
    "gloo", init_method=f"file://{store}", rank=rank, world_size=2
)
def watch_all(lag):
    queue, watch, seen = ReadingQueue(lag), Watch(), []
    for step in range(1, 101):
        loss = torch.tensor(2.0 + rank + 0.001 * ((step * (7 + rank)) % 5))
        norm = 1.0 if rank == 0 else None
        if step == 60 and rank == 1:
            loss = torch.tensor(math.nan)
        if step == 80 and rank == 0:
            norm = math.inf
        if step == 99 and rank == 1:
            loss = 1e6
        queue.put(step, loss, norm)
        for reading in queue.take():
            verdict = watch.take(reading)
            seen.append([step, repr(reading), repr(verdict)])
    queue.clear()
    return seen

def take_alone():
    queue, said = ReadingQueue(), None
    if rank == 0:
        try:
            queue.put(7, 1.0)
            queue.take()
        except StorageError as error:
            said = error.message
    return said

seen = [watch_all(None), watch_all(1)]
if rank == 1:
    distributed.destroy_process_group()
print(json.dumps([*seen, take_alone()]), flush=True)
os._exit(0)  # threads of gloo still wait for the other rank
"""


def test_two_ranks_decide_alike(tmp_path):
    """With readings that come at once, and a step later."""
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(_RANK))
    ranks = [start(script, rank, tmp_path / "store") for rank in range(2)]
    outputs = [process.communicate(timeout=600) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    (*first, said), (*second, _) = (json.loads(out) for out, _ in outputs)
    assert first == second
    assert said == "not all ranks took part in step 7"
    for late, seen in enumerate(first):
        alarms = {step: verdict for step, _, verdict in seen if verdict != "None"}
        assert set(alarms) == {60 + late, 80 + late, 99 + late}
        assert "loss is nan at step 60" in alarms[60 + late]
        assert "gradient norm is inf at step 80" in alarms[80 + late]
        assert "spike" in alarms[99 + late]
        assert "grad_norm=1.0" in seen[0][1], "the rank without a norm does not count"
        assert "loss=2.5" in seen[0][1]
