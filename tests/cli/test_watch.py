"""watch as a whole command: one look, JSON, and live on a terminal of its own."""

from __future__ import annotations

import dataclasses
import fcntl
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import Repo
from mvc.cli.output import Output, printable
from mvc.cli.render.text import cell_width
from mvc.cli.render.watch import BLOCKS, PLAIN, chart_of, draw, frame_lines
from mvc.runs.records import RunAlarm, RunCommit, RunEvent, RunRollback, RunView
from support.cli import plain
from support.feeds import tell


@pytest.fixture
def run(empty):
    tell(Repo.open(empty.folder))
    return empty


def test_one_look(run):
    answer = run.ok("watch")
    first, second, third = answer.lines[:3]
    assert re.match(
        r"main  step 500 of 10,000 \(5\.0 %\)   .* steps/s   .* left +● running$", first
    )
    assert second == "loss 2.0268   grad norm 0.5   lr 0.0003   stall 12 ms   queue 1   healthy 200"
    assert re.match(r"last update \d.*started \d.*a commit every 100 steps   process \d+ on", third)
    assert "loss   steps 1 to 500   log scale   ! NaN or infinite" in answer.lines
    assert any(set(line) & set(BLOCKS[1:]) and "!" in line for line in answer.lines)
    (heading,) = [line for line in answer.lines if line.startswith("commits")]
    assert heading.split() == ["commits", "step", "stall", "write", "new", "of", "queue"]
    assert f"{400:040x}"[:7] in answer.out
    assert "12 ms  2.5 s  300 MiB  3 GiB      1  step 100 with a subject" in answer.out
    told = answer.lines[answer.lines.index("what happened") + 1 :]
    assert [line.split()[2] if "," not in line[:12] else "" for line in told][:3] == [
        "error", "rollback", "alarm",
    ]  # fmt: skip
    assert (
        "to step 300 (0000000) in 1.5 s, 200 batches skipped, kept on diverged/main/450" in told[1]
    )
    assert "the writer died\\x1b[2J and came back" in told[0]
    assert not any(line.endswith(" ") for line in answer.lines)
    assert run.ok("watch", "main", "--once").lines[5:] == answer.lines[5:]


@pytest.mark.parametrize("columns", [40, 60, 80, 140])
def test_it_fits_a_terminal(run, columns):
    run.environment["COLUMNS"] = str(columns)
    answer = run.ok("watch", "--once", terminal=True)
    text = plain(answer.out)
    assert max(map(cell_width, text.splitlines())) <= columns
    assert "step 500" in text
    assert "\x1b[36m" in answer.out
    run.environment["NO_COLOR"] = "1"
    assert "\x1b" not in run.ok("watch", "--once", terminal=True).out


def test_json(run):
    fields = run.json("watch")
    assert (fields["branch"], fields["step"], fields["alive"]) == ("main", 500, True)
    assert fields["losses"]["steps"] == list(range(1, 501))
    assert fields["losses"]["values"][449] == "nan"
    flags = {one["step"]: (one["healthy"], one["abandoned"]) for one in fields["commits"]}
    assert flags[200] == (True, False)
    assert flags[400] == (False, True)
    assert fields["rollbacks"][0]["to_step"] == 300
    assert fields["errors"][0]["kind"] == "error"


def test_a_run_that_has_only_begun(empty):
    with Repo.open(empty.folder).open_feed("exp/1") as feed:
        feed.append("start")
    answer = empty.ok("watch")
    assert answer.lines[0].startswith("exp/1  no step yet")
    with Repo.open(empty.folder).open_feed("exp/1") as feed:
        feed.append("stop", step=3, reason="done")
    assert empty.ok("watch").lines[0].endswith("■ stopped: done")


def test_an_encoding_without_blocks(run):
    run.environment["PYTHONIOENCODING"] = "ascii"
    result = run.process("watch", "--once")
    assert result.returncode == 0, result.stderr
    assert b"##" in result.stdout
    assert b"\\u2588" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "error", "hint"),
    [
        (("side",), 3, "there is no training run on branch 'side'", "there are runs on main"),
        (("a b",), 2, "'a b' is not a valid branch name", ""),
        (("--interval", "0"), 2, "--interval '0' is not a number", "--help"),
        (("--interval", "nan"), 2, "--interval 'nan' is not a number", ""),
        (("--interval", "x"), 2, "--interval 'x' is not a number", ""),
    ],
)
def test_bad_use(run, arguments, code, error, hint):
    answer = run("watch", *arguments)
    assert answer.code == code
    assert error in answer.error
    assert hint in answer.hint


def test_no_run_says_what_to_do(empty, bare):
    answer = empty("watch")
    assert (answer.code, answer.error) == (3, "there is no training run here")
    assert "Checkpointer" in answer.hint


# Live.


class Screen:
    """``mvc watch`` on a pseudo terminal."""

    def __init__(self, shell, *arguments, columns=80, rows=24):
        self._main, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(inner)
        self._inner = inner
        environment = {**os.environ, **shell.environment, "TERM": "xterm-256color"}
        del environment["COLUMNS"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mvc", "watch", *arguments],
            cwd=shell.folder, env=environment, stdin=inner, stdout=inner, stderr=inner,
            start_new_session=True,
        )  # fmt: skip
        self.text = ""

    def wait_for(self, text, deadline_s=300):
        end = time.monotonic() + deadline_s
        while text not in self.text:
            assert time.monotonic() < end, self.text
            if select.select([self._main], [], [], 1)[0]:
                self.text += os.read(self._main, 65536).decode(errors="replace")

    def press(self, keys):
        os.write(self._main, keys)

    def end(self):
        """Wait until it ends; return its exit code."""
        while self.process.poll() is None:
            if select.select([self._main], [], [], 0.1)[0]:
                self.text += os.read(self._main, 65536).decode(errors="replace")
        assert termios.tcgetattr(self._inner) == self.before  # the terminal is as it was
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._main)
        os.close(self._inner)


def test_live_until_q(run):
    with Screen(run, "--interval", "0.1") as screen:
        screen.wait_for("step 500")
        screen.wait_for("q quits")
        with Repo.open(run.folder).open_feed("main") as feed:
            feed.append("step", step=777, loss=1.0)
        screen.wait_for("step 777")
        screen.press(b"x")
        screen.press(b"q")
        assert screen.end() == 0
        assert "\x1b[?1049h" in screen.text  # a screen of its own, and back again
        assert "\x1b[?1049l" in screen.text


def test_live_until_ctrl_c(run):
    with Screen(run) as screen:
        screen.wait_for("q quits")
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 130
        assert "\x1b[?1049l" in screen.text
        assert "Traceback" not in screen.text


def test_an_error_is_seen(empty):
    with Screen(empty) as screen:
        screen.wait_for("there is no training run here")
        assert screen.end() == 3


# Frames and curves, whatever is in them.

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
