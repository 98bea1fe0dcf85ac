"""Commits as text: columns of facts that fit, names of refs, and nothing that drives a terminal."""

import re

from support.cli import plain


def test_oneline_has_step_and_metrics_in_columns(shell):
    ids = [entry["commit"][:7] for entry in shell.json("log")]
    assert shell.ok("log", "--oneline").lines == [
        f"{ids[0]}  step 2,000  loss    2  acc 0.5  (HEAD -> main) grown",
        f"{ids[1]}  step 1,000  loss 2.25  tuned",
        f"{ids[2]}  step     0  loss  3.5  (tag: v1) base model",
    ]


def test_oneline_without_facts_is_gits(shell):
    shell.ok(
        "commit", "-q", "--allow-empty", "-m", "evil \x1b[2J", "-m", "Signed-off-by: Ada <a@b>"
    )
    (line,) = shell.ok("log", "--oneline", "-1").lines
    assert re.fullmatch(r"[0-9a-f]{7} \(HEAD -> main\) evil \\x1b\[2J", line)
    assert "main" not in shell.ok("log", "--oneline", "-1", "--no-decorate").out
    lines = shell.ok("log", "-1").lines
    assert lines[-3:] == ["    evil \\x1b[2J", "", "    Signed-off-by: Ada <a@b>"]


def test_metrics_that_do_not_fit_a_terminal_are_left_out(shell):
    shell.environment["COLUMNS"] = "60"
    for name in ("a-tag", "a-longer-tag", "the-longest-tag-of-all"):
        shell.ok("tag", name)
    first, *others = plain(shell.ok("log", "--oneline", terminal=True).out).splitlines()
    assert "step 2,000  loss    2  (HEAD -> main, …) grown" in first
    assert all(len(line) <= 60 for line in (first, *others))
    assert "acc" not in first
    assert "acc" in shell.ok("log", "--oneline").out


def test_long_subjects_are_cut_on_a_terminal_only(shell):
    subject = "many words " * 20
    shell.ok("commit", "-q", "--allow-empty", "-m", subject)
    for form in (["--oneline"], ["--oneline", "--graph", "--all"]):
        first = plain(shell.ok("log", *form, terminal=True).out).splitlines()[0]
        assert len(first) == 80
        assert first.endswith("…")
        assert subject.strip() in shell.ok("log", *form).out


def test_colours_on_a_terminal_only(shell):
    shown = shell.ok("log", terminal=True).out
    assert shown.startswith("\x1b[33mcommit ")
    assert plain(shown) == shell.ok("log").out
    shell.environment["NO_COLOR"] = "1"
    assert "\x1b" not in shell.ok("log", terminal=True).out
    del shell.environment["NO_COLOR"]
    shell.environment["FORCE_COLOR"] = "1"
    assert "\x1b[33m" in shell.ok("log").out
