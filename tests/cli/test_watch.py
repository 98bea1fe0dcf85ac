"""mvc watch: one look, JSON, and live on a terminal of its own."""

import re
import signal

import pytest

from mvc import Repo
from mvc.cli.render.text import BLOCKS
from mvc.training import RunStore
from support.feeds import tell
from support.screen import Screen


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
    with RunStore(Repo.open(empty.folder)).open_feed("exp/1") as feed:
        feed.append("start")
    answer = empty.ok("watch")
    assert answer.lines[0].startswith("exp/1  no step yet")
    with RunStore(Repo.open(empty.folder)).open_feed("exp/1") as feed:
        feed.append("stop", step=3, reason="done")
    assert empty.ok("watch").lines[0].endswith("■ stopped: done")


def test_an_encoding_without_blocks(run):
    run.environment["PYTHONIOENCODING"] = "ascii"
    result = run.process("watch", "--once")
    assert result.returncode == 0, result.stderr
    assert b"##" in result.stdout
    assert b"\\u2588" not in result.stdout


def test_bad_use(run):
    for arguments, code, error, hint in [
        (("side",), 3, "there is no training run on branch 'side'", "there are runs on main"),
        (("a b",), 2, "'a b' is not a valid branch name", ""),
        (("--interval", "0"), 2, "--interval '0' is not a number", "--help"),
        (("--interval", "nan"), 2, "--interval 'nan' is not a number", ""),
        (("--interval", "x"), 2, "--interval 'x' is not a number", ""),
    ]:
        answer = run("watch", *arguments)
        assert answer.code == code
        assert error in answer.error
        assert hint in answer.hint


# Live.


def test_live_until_q(run):
    with Screen(run, "watch", "--interval", "0.1") as screen:
        screen.wait_for("step 500")
        screen.wait_for("q quits")
        with RunStore(Repo.open(run.folder)).open_feed("main") as feed:
            feed.append("step", step=777, loss=1.0)
        screen.wait_for("step 777")
        screen.press(b"x")
        screen.press(b"q")
        assert screen.end() == 0
        assert "\x1b[?1049h" in screen.text  # a screen of its own, and back again
        assert "\x1b[?1049l" in screen.text


def test_live_until_ctrl_c(run):
    with Screen(run, "watch") as screen:
        screen.wait_for("q quits")
        screen.process.send_signal(signal.SIGINT)
        assert screen.end() == 130
        assert "\x1b[?1049l" in screen.text
        assert "Traceback" not in screen.text


def test_an_error_is_seen(empty):
    with Screen(empty, "watch") as screen:
        screen.wait_for("there is no training run here")
        assert screen.end() == 3


# Frames and curves, whatever is in them.


def test_the_scale_of_a_scaler(empty):
    feed = RunStore(Repo.open(empty.folder)).open_feed("main")
    feed.append("start", step=0)
    for step, (scale, overflows) in enumerate([(65536.0, 0), (32768.0, 1), (32768.0, 1)], start=1):
        feed.append("step", step=step, loss=2.0, scale=scale, overflows=overflows)
    feed.close()
    assert "loss 2   scale 32768   1 overflow" in empty.ok("watch").lines
    fields = empty.json("watch")
    assert (fields["scale"], fields["overflows"]) == (32768, 1)
    assert fields["scales"] == {"steps": [1, 2], "values": [65536, 32768]}
