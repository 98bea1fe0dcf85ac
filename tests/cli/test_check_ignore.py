"""mvc check-ignore: which paths are ignored, and by which rule."""

import io
import sys

import pytest


@pytest.fixture
def ruled(shell):
    (shell.folder / ".mvcignore").write_text("# comment\n*.tmp\nlogs/\n*.json\n!keep.tmp\n")
    (shell.folder / "runs").mkdir()
    (shell.folder / "runs" / ".mvcignore").write_text("*.pt\n")
    (shell.folder / "logs").mkdir()
    return shell


def test_those_that_are_ignored_are_printed(ruled):
    answer = ruled.ok("check-ignore", "a.tmp", "keep.tmp", "new.json", "config.json", "logs", "x")
    assert answer.lines == ["a.tmp", "new.json", "logs"]  # config.json is tracked
    assert ruled.ok("check-ignore", "../b.tmp", "a.pt", folder="runs").lines == ["../b.tmp", "a.pt"]


def test_the_rule_is_named(ruled):
    answer = ruled.ok("check-ignore", "-v", "a.tmp", "logs/deep/x", "runs/a.pt", "future/logs/")
    assert answer.lines == [
        ".mvcignore:2:*.tmp\ta.tmp",
        ".mvcignore:3:logs/\tlogs/deep/x",
        "runs/.mvcignore:1:*.pt\truns/a.pt",
        ".mvcignore:3:logs/\tfuture/logs/",
    ]
    assert ruled("check-ignore", "future/logs").code == 1  # would be a file
    (found,) = ruled.json("check-ignore", "a.tmp", "x")
    assert found == {"path": "a.tmp", "source": ".mvcignore", "line": 2, "pattern": "*.tmp"}


def test_paths_from_stdin(ruled, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a.tmp\nx\nb c.tmp\n"))
    assert ruled.ok("check-ignore", "--stdin").lines == ["a.tmp", "b c.tmp"]
    for line in (["--stdin", "x"], [], ["/etc/passwd"]):
        assert ruled("check-ignore", *line).code == 2
    answer = ruled("check-ignore", "x", "keep.tmp")
    assert (answer.code, answer.out, answer.err) == (1, "", "")
