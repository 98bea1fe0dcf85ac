import re

import pytest

from mvc import Repo
from support.cli import plain


@pytest.fixture
def marked(shell):
    """main: base (step 0, v1, healthy), tuned (1000), grown (2000)."""
    Repo.open(shell.folder).runs.mark_healthy("v1")
    return shell


def ids(shell):
    return {entry["subject"]: entry["commit"] for entry in shell.json("log", "--all")}


def test_the_plan_and_then_what_was_done(marked):
    short = {subject: commit[:7] for subject, commit in ids(marked).items()}
    planned = [
        f"from  {short['grown']}  step 2,000  grown",
        f"to    {short['base model']}  step     0  base model",
        "why   the newest healthy commit below the tip",
        "left  2 commits, kept on diverged/main/2000",
    ]
    head = marked.json("status")["commit"]
    answer = marked.ok("rollback", "--dry-run")
    assert answer.lines == [*planned, f"Branch 'main' would go back to {short['base model']}"]
    assert marked.json("status")["commit"] == head
    assert len(marked.json("branch")) == 2
    answer = marked.ok("rollback", "-m", "loss is NaN")
    assert answer.lines == [
        *planned,
        f"Branch 'main' went back to {short['base model']}",
        "1 file written",
    ]
    assert answer.err == ""
    assert marked.json("status")["clean"]
    assert [one["name"] for one in marked.json("branch")] == ["diverged/main/2000", "main", "side"]
    (line,) = marked.ok("reflog", "-n1").lines
    assert line.endswith("HEAD@{0}: rollback: to " + ids(marked)["base model"][:10]
                         + " (step 0): loss is NaN")  # fmt: skip


def test_the_log_shows_the_abandoned_arm(marked):
    marked.ok("rollback", "--step", "1000", "-m", "loss \x1b[31mis NaN")
    marked.ok("commit", "-q", "--allow-empty", "-m", "again", "--step", "1500")
    found = {subject: commit[:7] for subject, commit in ids(marked).items()}
    lines = marked.ok("log", "--oneline", "--graph", "--all").lines
    (arm,) = [line for line in lines if "grown" in line]
    assert "[diverged: loss [31mis NaN] (diverged/main/2000) grown" in arm
    assert any("(tag: v1, healthy) base model" in line for line in lines)
    assert any("(HEAD -> main) again" in line for line in lines)
    text = marked.ok("log", "--graph", "--all").out
    cause = f"Diverged: loss [31mis NaN; main went back to {found['tuned']} (step 1,000)\n"
    assert cause in text
    assert text.index("grown") < text.index("tuned")
    assert "diverged" not in marked.ok("log").out
    undecorated = marked.ok("log", "--oneline", "--no-decorate", "--all").out
    assert "healthy" not in undecorated
    assert "[diverged: loss" in undecorated


def test_the_log_on_a_terminal(marked):
    marked.ok("rollback", "v1", "-m", "the loss was far above the median of the last 128 steps")
    marked.environment["COLUMNS"] = "150"
    raw = marked.ok("log", "--oneline", "--all", terminal=True).out
    (line,) = [line for line in plain(raw).splitlines() if "grown" in line]
    assert "[diverged: the loss was far above the median of th…] (diverged/main/2000) grown" in line
    assert "\x1b[31m[diverged: " in raw
    assert "\x1b[32mhealthy\x1b[0m" in raw
    piped = marked.ok("log", "--oneline", "--all").out
    assert "[diverged: the loss was far above the median of the last 128 steps] " in piped


def test_nothing_to_do(marked):
    tip = ids(marked)["grown"][:7]
    assert marked.ok("rollback", "HEAD").lines == [
        f"nothing to do: 'main' is already at {tip} (step 2,000), HEAD"
    ]
    fields = marked.json("rollback", "--step", "9000")
    assert (fields["moved"], fields["diverged_branch"], fields["abandoned"]) == (False, None, 0)
    assert fields["from"] == fields["to"]
    assert marked.ok("rollback", "-q", "--step", "9000").out == ""


def test_errors_are_one_line_and_a_hint(shell):
    before = shell.json("branch"), shell.json("reflog")
    for arguments, code, error in [
        (["side"], 4, "'side' is commit "),
        (["v1", "--healthy"], 2, "REV and --healthy cannot be used together"),
        (["--step", "1", "--steps-back", "1"], 2, "--step and --steps-back cannot be used"),
        (["--branch", "side"], 3, "no commit below the tip of branch 'side' is marked as healthy"),
    ]:
        answer = shell("rollback", *arguments)
        assert (answer.code, answer.out) == (code, "")
        assert error in answer.error
    assert (shell.json("branch"), shell.json("reflog")) == before


def test_json(marked):
    found = ids(marked)
    fields = marked.json("rollback", "--step", "1500", "-m", "loss is NaN")
    assert (fields["from"], fields["to"], fields["to_step"]) == (
        found["grown"],
        found["tuned"],
        1000,
    )
    assert fields["choice"] == "the newest commit up to step 1,500"
    assert fields["written"] == ["model.safetensors"]
    (entry,) = [one for one in marked.json("log", "--all") if one["diverged"]]
    assert (entry["commit"], entry["refs"]) == (found["grown"], ["diverged/main/2000"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", entry["diverged"].pop("time"))
    assert entry["diverged"] == {
        "reason": "loss is NaN", "branch": "main", "target": found["tuned"], "target_step": 1000,
        "at_step": None,
    }  # fmt: skip
    healthy = [one["subject"] for one in marked.json("log", "--all") if one["healthy"]]
    assert healthy == ["base model"]
