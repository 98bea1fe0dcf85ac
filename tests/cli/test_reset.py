"""mvc reset."""

from __future__ import annotations

from support.models import write_config


def test_reset_modes(shell):
    shell.ok("reset", "--soft", "HEAD~1")
    assert shell.ok("status", "-s").lines == ["M  model.safetensors"]
    shell.ok("reset", "--hard", "HEAD@{1}")
    assert shell.ok("status", "-s").out == ""
    answer = shell.ok("reset", "HEAD~1")
    assert answer.lines == ["Unstaged changes after reset:", "M\tmodel.safetensors"]
    shell.ok("reset", "--mixed", "-q", "HEAD@{1}")
    assert shell.ok("status", "-s").out == ""
    first = shell.json("log")[-1]["commit"][:7]
    assert shell.ok("reset", "--hard", "v1").lines == [f"HEAD is now at {first} base model"]


def test_reset_paths(shell):
    write_config(shell.folder / "config.json", lr=1)
    shell.ok("add", ".")
    assert shell.ok("reset", "config.json").lines == [
        "Unstaged changes after reset:", "M\tconfig.json",
    ]  # fmt: skip
    shell.ok("reset", "side", "--", "config.json")
    assert shell.ok("status", "-s").lines == ["MM config.json"]
    assert shell.json("reset", "HEAD", "config.json")["branch"] == "main"


def test_reset_before_the_first_commit(empty):
    (empty.folder / "a.txt").write_text("1")
    empty.ok("add", ".")
    empty.ok("reset", "HEAD", "a.txt")
    assert empty.ok("status", "-s").lines == ["?? a.txt"]
    empty.ok("add", ".")
    empty.ok("reset", "--", "a.txt")
    assert empty.ok("status", "-s").lines == ["?? a.txt"]
