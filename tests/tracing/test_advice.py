"""What to change: each finding in a trace made for it, and none in a healthy one."""

import pytest

from mvc.tracing.advice import advise, find_straggler
from mvc.tracing.overlap import Overlap
from mvc.tracing.reading import read_trace
from support.traces import gloo, op, own, step, write

COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
HEALTHY = [step(1, 0, 100), op(0, 100), gloo(40, 60, 25), gloo(60, 80, 25), gloo(90, 98, 5)]


@pytest.fixture
def findings(tmp_path):
    def read(events):
        trace = read_trace(write(tmp_path / "t.json", events))
        return advise(trace, Overlap(trace))

    return read


def test_a_healthy_run_hears_only_that(findings):
    (one,) = findings(HEALTHY)
    assert (one.level, one.hint) == ("good", None)
    assert one.text == "100 % of the communication is hidden; the rest is 0.0 % of a step"


@pytest.mark.parametrize(
    ("events", "text", "hint"),
    [
        ([step(1, 0, 100), op(0, 70), gloo(68, 95, 80)], "all gradients are in one bucket", ": about 10"),
        ([step(1, 0, 100), op(0, 20), gloo(10, 99, 5), gloo(20, 99, 5)],
         "communicates for 89 ms and computes for 20 ms", "compress gradients"),
        ([step(1, 0, 100), op(0, 80), gloo(30, 50, 25), gloo(78, 95, 90)],
         "most of what is not hidden is the last bucket of 90 MiB", "registered later"),
        ([step(1, 0, 100), op(0, 70), gloo(65, 80, 25), gloo(70, 85, 5)],
         "the first bucket is not summed before 93 %", "register layers in the order"),
        ([step(1, 0, 100), op(0, 70), *(gloo(70 + at, 70.5 + at, 0.1) for at in range(20))],
         "20 small collectives a step", "a larger bucket_cap_mb"),
        ([*HEALTHY, op(95, 97, COPY)], "sums are copied back into gradients for 2.0 %",
         "gradient_as_bucket_view=True"),
        ([*HEALTHY, op(95, 97, SEARCH)], "2.0 % of a step goes into looking for unused",
         "find_unused_parameters=False"),
        ([*HEALTHY, own("mvc.capture", 97, 99), own("mvc.stamp", 99, 99.5)],
         "mvc takes 2.5 % of these steps, most of it mvc.capture (2 ms)", "commit less often"),
        ([step(1, 0, 10), op(0, 10)], "no collective is in these steps", "several ranks"),
    ],
)  # fmt: skip
def test_each_finding(findings, events, text, hint):
    (found,) = [finding for finding in findings(events) if text in finding.text]
    assert hint in found.hint


def test_what_no_order_can_hide_gets_no_advice_on_order(findings):
    texts = [
        finding.text for finding in findings([step(1, 0, 100), op(0, 9), gloo(8, 60), gloo(9, 99)])
    ]
    assert len(texts) == 2


def rank(tmp_path, number, compute, wait, *more):
    events = [step(1, 0, 100), op(0, compute), gloo(compute, compute + wait), *more]
    return Overlap(read_trace(write(tmp_path / f"{number}.json", events, number, 3)))


def test_the_rank_that_waits_least_is_the_one_that_others_wait_for(tmp_path):
    ranks = [rank(tmp_path, 0, 30, 60), rank(tmp_path, 1, 80, 10), rank(tmp_path, 2, 35, 55)]
    found = find_straggler(ranks)
    assert (found.trace, found.because) == (1, "computation")
    assert found.waits_s == pytest.approx(0.010)
    assert found.others_wait_s == pytest.approx(0.0575)
    assert found.excess_s == pytest.approx(0.0475)


def test_other_causes(tmp_path):
    early, late = [rank(tmp_path, at, 30, 60) for at in (0, 1)], step(1, 0, 100)
    idle = [late, op(0, 10), op(60, 80), gloo(80, 90)]
    held = [late, op(0, 30), own("mvc.capture", 30, 80), gloo(80, 90)]
    short = [step(1, 0, 50), op(0, 30), gloo(30, 40)]
    for events, because in ((idle, "idle time"), (held, "mvc"), (short, None)):
        third = Overlap(read_trace(write(tmp_path / "2.json", events, 2, 3)))
        found = find_straggler([*early, third])
        assert (found.trace, found.because) == (2, because)


def test_ranks_that_are_alike_have_none(tmp_path):
    assert find_straggler([rank(tmp_path, at, 30 + at, 60 - at) for at in range(3)]) is None
    assert find_straggler([rank(tmp_path, 0, 30, 60)]) is None
