"""Steps against a timeline that is counted out, tick by tick."""

from hypothesis import given
from hypothesis import strategies as st

from mvc.tracing.overlap import Overlap
from mvc.tracing.spans import Collective, Cover, StepWindow, Trace, merge

END = 30
spans = st.lists(
    st.tuples(st.integers(0, END), st.integers(0, 8)).map(lambda one: (one[0], sum(one))),
    max_size=8,
)


def ticks(pairs):
    return {at for start, end in pairs for at in range(start, end)}


def make(compute, collectives, own, steps):
    return Trace(
        "t", 0, 2, "cpu",
        tuple(StepWindow(f"step {start}", start, end) for start, end in steps),
        Cover(compute), tuple(Collective("sum", *collective, None) for collective in sorted(collectives)),
        {"mvc.capture": merge(own)}, Cover(), Cover(),
    )  # fmt: skip


@given(spans, spans, spans, st.integers(1, END))
def test_steps_are_as_counted(compute, collectives, own, cut):
    windows = [(0, cut), (cut, END + 8)]
    computed, communicated = ticks(compute), ticks(collectives)
    for step, (start, end) in zip(
        Overlap(make(compute, collectives, own, windows)).steps, windows, strict=True
    ):
        window = set(range(start, end))
        counted = {
            "seconds": window,
            "compute_s": computed & window,
            "communication_s": communicated & window,
            "hidden_s": communicated & computed & window,
            "exposed_s": (communicated - computed) & window,
            "idle_s": window - computed - communicated,
            "own_s": ticks(own) & window,
        }
        found = {name: round(getattr(step, name), 6) for name in counted}
        assert found == {name: len(at) for name, at in counted.items()}
        mine = [collective for collective in sorted(collectives) if start <= collective[0] < end]
        assert [round(collective.exposed_s, 6) for collective in step.collectives] == [
            len(ticks([one]) - computed) for one in mine
        ]


@given(spans, spans)
def test_a_drawn_step_has_what_the_step_has(compute, collectives):
    overlap = Overlap(make(compute, collectives, [], [(0, END)]))
    (step,) = overlap.steps
    drawn = overlap.draw(step, 7)
    part = END / 7
    assert abs(sum(drawn.compute) * part - step.compute_s) < 1e-6
    assert abs(sum(drawn.exposed) * part - step.exposed_s) < 1e-6
    assert all(0 <= share <= 1 for share in (*drawn.compute, *drawn.communication, *drawn.exposed))
