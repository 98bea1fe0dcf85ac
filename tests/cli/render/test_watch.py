"""A run as a picture: any run fits any terminal, and a spike is seen."""

import dataclasses
import math
import sys

from hypothesis import given
from hypothesis import strategies as st

from mvc.cli.output import Output, printable
from mvc.cli.render.text import PLAIN
from mvc.cli.render.watch import chart_of, draw, frame_lines
from mvc.runs.records import RunAlarm, RunCommit, RunEvent, RunRollback, RunView
from support.cli import plain

TEXT = st.text(max_size=20)
NUMBER = st.floats(0, 1e12) | st.none()
WHOLE = st.integers(0, 2**63 - 1)
TIME = st.floats(0, 253402300799)


VIEWS = st.builds(
    RunView,
    branch=TEXT,
    alive=st.none() | st.booleans(),
    stopped=st.none() | TEXT,
    pid=st.none() | WHOLE,
    host=TEXT,
    started_s=st.none() | TIME,
    updated_s=st.none() | TIME,
    step=st.none() | WHOLE,
    total=st.none() | WHOLE,
    every=st.none() | WHOLE,
    steps_per_s=NUMBER,
    loss=st.none() | st.floats(),
    grad_norm=st.none() | st.floats(),
    lr=st.none() | st.floats(),
    losses=st.lists(st.tuples(WHOLE, st.floats()), max_size=9).map(tuple),
    queue_depth=st.none() | WHOLE,
    stall_s=NUMBER,
    commits=st.lists(
        st.builds(
            RunCommit,
            step=WHOLE, time_s=TIME, commit=TEXT, subject=TEXT, stall_s=NUMBER, write_s=NUMBER,
            written_bytes=st.none() | WHOLE, plain_bytes=st.none() | WHOLE,
            queue_depth=st.none() | WHOLE,
        ),
        max_size=3,
    ).map(tuple),
    alarms=st.lists(st.builds(RunAlarm, WHOLE, TIME, TEXT, TEXT), max_size=3).map(tuple),
    rollbacks=st.lists(
        st.builds(RunRollback, WHOLE, WHOLE, TIME, TEXT, TEXT, st.none() | WHOLE, NUMBER, TEXT),
        max_size=3,
    ).map(tuple),
    events=st.lists(st.builds(RunEvent, TEXT, WHOLE, TIME, TEXT), max_size=3).map(tuple),
)  # fmt: skip


@given(VIEWS, st.integers(1, 200), st.integers(1, 60) | st.none())
def test_any_run_can_be_shown(view, width, height):
    out = Output(sys.stdout, colour=True, width=width)
    lines = frame_lines(out, view, width=width, height=height, now_s=1e9)
    assert height is None or len(lines) <= height
    assert all(line == printable(line) for line in map(plain, lines))


def test_a_speed_that_no_run_has():
    names = [field.name for field in dataclasses.fields(RunView)]
    nothing = dict.fromkeys(names) | dict.fromkeys(
        ("losses", "commits", "alarms", "rollbacks", "events", "errors"), ()
    )
    facts = {"branch": "main", "host": "", "damaged_lines": 0, "step": 0, "total": 1}
    view = RunView(**{**nothing, **facts, "steps_per_s": 5e-324})
    out = Output(sys.stdout, colour=False, width=80)
    lines = frame_lines(out, view, width=80, height=None, now_s=1e9)
    assert not any("left" in line for line in lines)


@given(st.lists(st.tuples(st.integers(0, 99), st.floats())), st.integers(1, 50), st.integers(1, 9))
def test_any_curve_can_be_drawn(losses, width, rows):
    chart = chart_of(losses, width)
    lines = draw(chart, rows, style=lambda text, colour: text)
    assert len(lines) == rows
    assert {len(line) for line in lines} == {min(len(losses), width)}
    for at, column in enumerate(chart.columns):
        assert (lines[-1][at] == "!") == column.is_odd
        filled = "".join(line[at] for line in lines).lstrip()
        assert column.is_odd or bool(filled) == (column.value is not None)
        assert set(filled[1:]) <= {"█", "!"}  # no holes


def heights(losses, rows=1, **options):
    return draw(chart_of(losses, 99), rows, style=lambda text, colour: text, **options)


def test_curves():
    assert heights([(1, 1.0), (2, 5.0), (3, 8.0)]) == ["▁▅█"]
    assert heights([(1, 1.0), (2, 4.0), (3, 8.0)], 2) == ["  █", "▁▇█"]
    assert heights([(1, 1.0), (2, 10.0), (3, 100.0)]) == ["▁▄█"]  # equal heights, equal ratios
    assert chart_of([(1, 1.0), (2, 100.0)], 9).is_log
    assert not chart_of([(1, 0.0), (2, 100.0)], 9).is_log
    assert heights([(1, 3.0), (2, 3.0)]) == ["▄▄"]
    assert heights([(1, 1.0), (2, math.nan), (3, 2.0), (4, -math.inf)]) == ["▁!█!"]
    assert heights([(1, 1.0), (2, 8.0)], blocks=PLAIN) == [".#"]
    assert heights([]) == [""]


def test_a_spike_is_seen_however_many_steps_there_are():
    losses = [(step, 1.0) for step in range(10_000)]
    losses[7000] = (7000, 9.0)
    (line,) = draw(chart_of(losses, 100), 1, style=lambda text, colour: text)
    assert line == "▁" * 70 + "█" + "▁" * 29


def test_where_the_run_went_back():
    chart = chart_of([(1, 1.0), (2, 1.0), (1, 2.0), (2, 2.0)], 99)
    assert [column.went_back for column in chart.columns] == [False, False, True, False]
    assert draw(chart, 1, style=lambda text, colour: f"<{colour}:{text}>") == [
        "<cyan:▁▁><yellow:█><cyan:█>"
    ]
