"""What of a trace counts, in traces that the profiler wrote and in some put together by hand."""

from pathlib import Path

import pytest

from mvc.errors import FormatError, UnsupportedError
from mvc.tracing.overlap import Overlap
from mvc.tracing.reading import read_trace
from support.traces import (
    MIB,
    event,
    gloo,
    kernel,
    nccl,
    op,
    own,
    step,
    write,
)

GOLDEN = Path(__file__).parents[1] / "golden/traces"


def ms(steps, name):
    return [round(getattr(step, name) * 1e3, 6) for step in steps]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_real_trace(rank):
    trace = read_trace(str(GOLDEN / f"rank{rank}.json.gz"))
    assert (trace.rank, trace.ranks, trace.device) == (rank, 2, "cpu")
    assert [step.name for step in trace.steps] == ["ProfilerStep#3", "ProfilerStep#4"]
    layer = 4 * (96 * 96 + 96)
    assert sorted(collective.size_bytes for collective in trace.collectives) == [
        layer,
        layer,
        2 * layer,
        2 * layer,
    ]
    assert {collective.name for collective in trace.collectives} == {"gloo:all_reduce"}
    assert list(trace.own) == ["mvc.capture"]
    assert trace.copies.within(0, 10) > 0
    for whole in Overlap(trace).steps:
        assert whole.compute_s + whole.exposed_s + whole.idle_s == pytest.approx(whole.seconds)
        assert whole.hidden_s + whole.exposed_s == pytest.approx(whole.communication_s)
        assert 0 < whole.compute_s < whole.seconds
        assert 0 < whole.exposed_s <= whole.communication_s
        assert 0 < whole.own_s < whole.compute_s
        assert len(whole.collectives) == 2


def test_communication_of_the_cpu_hides_behind_operators_of_any_thread(tmp_path):
    events = [
        step(1, 0, 10),
        op(0, 4), op(1, 3), op(2, 6, tid=2),  # 0 to 6
        gloo(3, 8, 1.5), gloo(4, 5, tid=10),
        own("mvc.capture", 8, 9), own("mvc.hash", 8.5, 8.7), own("mvc.write", 0, 10, tid=33),
    ]  # fmt: skip
    overlap = Overlap(read_trace(write(tmp_path / "t.json", events)))
    assert ms(overlap.steps, "compute_s") == [6]
    assert ms(overlap.steps, "communication_s") == [5]
    assert ms(overlap.steps, "hidden_s") == [3]
    assert ms(overlap.steps, "exposed_s") == [2]
    assert ms(overlap.steps, "idle_s") == [2]
    assert ms(overlap.steps, "own_s") == [1]  # another thread holds nobody up
    (first, second) = overlap.steps[0].collectives
    assert (first.size_bytes, second.size_bytes) == (1.5 * MIB, None)
    assert first.exposed_s == pytest.approx(2e-3)
    assert first.computed == pytest.approx(0.5)
    assert second.exposed_s == pytest.approx(0, abs=1e-9)


def test_handing_a_collective_over_is_no_computation(tmp_path):
    events = [
        step(1, 0, 10),
        op(0, 5, "autograd::engine"),
        op(2, 4, "c10d::allreduce_"),
        gloo(2, 6),
    ]
    (one,) = Overlap(read_trace(write(tmp_path / "t.json", events))).steps
    assert ms([one], "compute_s") == [3]
    assert ms([one], "exposed_s") == [3]


def test_kernels_count_on_a_gpu_and_a_step_lasts_until_the_next(tmp_path):
    events = [
        op(0, 100), step(1, 0, 3), step(2, 3, 6),
        event("gpu_user_annotation", "ProfilerStep#1", 1, 9, tid=7),
        event("gpu_user_annotation", "ProfilerStep#2", 11, 20, tid=7),
        kernel(1, 5), kernel(5, 9, stream=8), nccl(4, 10, 8), nccl(10, 10.5, 2, kind="allgather"),
        kernel(11, 15), event("gpu_memcpy", "Memcpy DtoH", 15, 16, tid=7), nccl(14, 20, 8),
    ]  # fmt: skip
    trace = read_trace(write(tmp_path / "t.json.gz", events))
    assert trace.device == "gpu"
    steps = Overlap(trace).steps
    assert ms(steps, "start_s") == [1, 11]  # where the GPU began them
    assert [collective.name for collective in trace.collectives] == [
        "allreduce",
        "allgather",
        "allreduce",
    ]
    assert [collective.size_bytes for collective in trace.collectives] == [
        8 * MIB,
        2 * MIB,
        8 * MIB,
    ]
    assert sum(ms(steps, "communication_s")) == 12.5
    assert sum(ms(steps, "exposed_s")) == 5.5
    assert ms(steps, "seconds") == [10, 9]
    without = [event for event in events if event["cat"] != "gpu_user_annotation"]
    steps = read_trace(write(tmp_path / "t.json", without)).steps
    assert [(round(step.start_s, 6), round(step.end_s, 6)) for step in steps] == [
        (0, 0.003), (0.003, 0.020),
    ]  # fmt: skip


def test_without_steps_ranges_of_mvc_are_steps_and_else_the_whole(tmp_path):
    events = [op(0, 1), gloo(1, 2), own("mvc.step", 0, 2), own("mvc.step", 2, 4), op(2, 3)]
    trace = read_trace(write(tmp_path / "t.json", events))
    assert [step.name for step in trace.steps] == ["mvc.step 1", "mvc.step 2"]
    assert trace.own == {}
    (one,) = read_trace(write(tmp_path / "t.json", events[:2])).steps
    assert one.name == "the whole trace"
    assert (one.end_s - one.start_s) * 1e3 == pytest.approx(2)


@pytest.mark.parametrize(
    ("trace", "text"),
    [
        ({"traceEvents": []}, "a trace of another tool"),
        ({"traceEvents": [{"ph": "X", "cat": "v8", "name": "x", "ts": 1, "dur": 1}]}, "another tool"),
        ({"traceEvents": [{"ph": "B", "name": 5}]}, "another tool"),
        (
            {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [
                {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
                {"ph": "X", "pid": 1, "tid": 1, "name": "MatMul", "ts": 1.0, "dur": 1.0}]},
            "a trace of TensorFlow or JAX, not of torch.profiler",
        ),
    ],
)  # fmt: skip
def test_a_trace_of_another_tool_is_named(tmp_path, trace, text):
    import json

    (tmp_path / "t.json").write_text(json.dumps(trace))
    with pytest.raises(UnsupportedError, match=text) as caught:
        read_trace(str(tmp_path / "t.json"))
    assert "export_chrome_trace" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ts": None}, "has no time or length"),
        ({"ts": "12"}, "has no time or length"),
        ({"ts": 1e300}, "has no time or length"),
        ({"dur": [1]}, "has no time or length"),
        ({"dur": -1}, "ends before it starts"),
    ],
)
def test_an_event_that_makes_no_sense_is_named(tmp_path, change, text):
    with pytest.raises(FormatError, match=f"event 3 {text}"):
        read_trace(write(tmp_path / "t.json", [op(0, 1), op(1, 2) | change]))


def test_events_of_any_shape_are_no_trouble(tmp_path):
    odd = [
        event("cpu_op", "x", 0, 1) | {"args": 5, "tid": {"a": 1}, "pid": None},
        gloo(1, 2) | {"args": {"Input Dims": [[-4], "x", [[2]]], "Input type": ["float", 3, 4]}},
        gloo(1, 2) | {"args": None},
        nccl(2, 3) | {"args": {"In msg nelems": "5", "dtype": 3, "Collective name": 3}},
        {"ph": "X", "cat": 5, "name": None}, {"ph": "i"}, {},
    ]  # fmt: skip
    trace = read_trace(write(tmp_path / "t.json", odd))
    assert [collective.size_bytes for collective in trace.collectives] == [None]
    with pytest.raises(FormatError, match="event 2 is not an object"):
        read_trace(write(tmp_path / "t.json", [5]))


def test_a_trace_of_nothing_says_what_to_do(tmp_path):
    path = write(tmp_path / "t.json", [event("Trace", "PyTorch Profiler (0)", 0, 1)])
    with pytest.raises(FormatError, match="records no operation"):
        read_trace(path)
