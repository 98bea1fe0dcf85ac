"""The reading end of a feed: whole lines only, whatever was written, and what they add up to."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.runs.reading import FeedTail, RunTotals
from mvc.runs.records import MAX_LINE_BYTES
from mvc.training import RunStore


def test_a_torn_line_costs_that_line_only(repo, path):
    with RunStore(repo).open_feed("main") as feed:
        feed.append("commit", step=1)
    with path.open("ab") as file:
        file.write(b'{"kind":"commit","ti')  # a crash in the middle
    assert repo.runs.read().damaged_lines == 0  # it may still be being written
    with RunStore(repo).open_feed("main") as feed:
        feed.append("commit", step=2)
    view = repo.runs.read()
    assert [commit.step for commit in view.commits] == [2, 1]
    assert view.damaged_lines == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)


KINDS = st.sampled_from([
    "start", "resume", "step", "snapshot", "commit", "skip", "alarm", "action", "rollback", "healthy",
    "error", "stop", "other",
])  # fmt: skip
FIELDS = st.sampled_from([
    "step", "loss", "grad_norm", "lr", "pid", "host", "began", "every", "total", "commit", "to_step",
    "to_commit", "stall_s", "write_s", "written_bytes", "plain_bytes", "queue_depth", "subject",
    "cause", "reason", "text", "seconds", "skipped_batches",
])  # fmt: skip


RECORDS = st.builds(
    lambda kind, time_s, fields: {**fields, "kind": kind, "time": time_s},
    KINDS | JSON,
    st.floats(0, 3e9) | JSON,
    st.dictionaries(
        FIELDS, JSON | st.integers(0, 99) | st.sampled_from(["nan", "inf"]), max_size=6
    ),
)


@given(st.lists(RECORDS | JSON, max_size=20))
def test_any_json_gives_a_view(values):
    totals = RunTotals(losses=5, events=3)
    for value in values:
        totals.take(json.dumps(value).encode())
    view = totals.view("main")
    assert len(view.losses) <= 5
    assert max(map(len, (view.commits, view.alarms, view.rollbacks, view.events, view.errors))) <= 3
    assert 0 <= view.damaged_lines <= len(values)
    for commit in view.commits:
        assert commit.step >= 0
        assert commit.stall_s is None or 0 <= commit.stall_s < math.inf


@given(st.binary(max_size=300))
def test_any_bytes_are_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("runs") / "main.jsonl"
    path.write_bytes(data)
    totals = RunTotals(losses=5, events=3)
    for line in FeedTail(path, limit_bytes=200).read_lines():
        totals.take(line)
    totals.view("main")


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 60_000,
        b'{"kind":' * 7000,
        b'{"kind":"step","time":1,"step":' + b"9" * 60_000 + b"}",
        b'{"kind":"step","time":NaN,"step":1}',
        b'{"kind":"step","time":Infinity,"step":1}',
        b'{"kind":"step","time":"nan","step":1}',
        b'{"kind":"step","time":-1,"step":1}',
        b'{"kind":"step","time":1e300,"step":1}',
        b'{"kind":"step","time":true,"step":1}',
        b'{"kind":"step","time":1,"step":-1}',
        b'{"kind":"step","time":1,"step":1.5}',
        b'{"kind":"step","time":1,"step":true}',
        b'{"kind":"step","time":1,"step":99999999999999999999}',
        b'{"kind":"step","time":1}',
        b'{"kind":"commit","time":1,"step":"1"}',
        b'{"kind":"rollback","time":1,"step":1}',
        b'{"kind":["step"],"time":1}',
        b'{"kind":"st\xff","time":1}',
        b'"step"',
        b"\x00" * 100,
        b'{"kind":"other","time":1,"x":"' + b"x" * MAX_LINE_BYTES + b'"}',
    ],
)
def test_a_damaged_line_is_counted(line):
    totals = RunTotals(losses=5, events=5)
    totals.take(b'{"kind":"step","time":1,"step":7,"loss":2}')
    totals.take(line)
    view = totals.view("main")
    assert (view.step, view.damaged_lines) == (7, 1)


def test_what_is_not_known_is_passed_over():
    totals = RunTotals(losses=5, events=5)
    totals.take(b'{"kind":"weather","time":1,"sun":true}')
    totals.take(b'{"kind":"step","time":1,"step":1,"loss":NaN,"sun":[{}],"lr":"high"}')
    view = totals.view("main")
    assert (view.step, view.lr, view.damaged_lines) == (1, None, 0)
    assert math.isnan(view.losses[0][1])


@given(st.lists(st.sampled_from([b"", b"x" * 300, b'{"a":1}']), max_size=12), st.data())
def test_a_tail_gives_whole_lines_only(tmp_path_factory, lines, data):
    """However the bytes arrive, what comes out are lines that went in, in order."""
    path = tmp_path_factory.mktemp("runs") / "main.jsonl"
    path.touch()
    numbered = [b"%d:" % number + line for number, line in enumerate(lines)]
    whole = b"".join(line + b"\n" for line in numbered)
    tail, got, at = FeedTail(path, limit_bytes=700), [], 0
    while at < len(whole):
        size = data.draw(st.integers(1, 400))
        with path.open("ab") as file:
            file.write(whole[at : at + size])
        at += size
        got += tail.read_lines()
    assert got == numbered


def test_speed_is_that_of_the_last_steps():
    def speed(*paces):
        totals = RunTotals(losses=5, events=5)
        for time_s, step in paces:
            totals.take(b'{"kind":"step","time":%f,"step":%d}' % (time_s, step))
        return totals.view("main").steps_per_s

    assert speed() is None
    assert speed((1, 1)) is None
    assert speed((1, 1), (2, 11), (3, 21)) == pytest.approx(10)
    assert speed((1, 1), (1000, 2), (1001, 12)) == pytest.approx(10)  # after a long pause
    assert speed((1, 1), (501, 2)) == pytest.approx(1 / 500)
    assert speed((1, 500), (2, 510), (3, 100), (4, 105)) == pytest.approx(5)  # it went back
    assert speed((5, 1), (5, 2)) < 1000


def test_scales_are_kept_where_they_change():
    totals = RunTotals(losses=3, events=5)
    for step, scale in enumerate([8, 8, 4, 4, 2, 2, 4], start=1):
        totals.take(
            json.dumps(
                {"kind": "step", "time": 1, "step": step, "scale": scale, "overflows": 2}
            ).encode()
        )
    totals.take(b'{"kind":"step","time":1,"step":8,"scale":"nan","overflows":-1}')
    view = totals.view("main")
    assert view.scales == ((3, 4.0), (5, 2.0), (7, 4.0))
    assert (view.scale, view.overflows) == (None, None)
