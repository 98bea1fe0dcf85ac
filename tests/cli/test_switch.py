"""mvc switch: to branches only, unless it is said otherwise."""

from __future__ import annotations

from support.models import write_config


def test_switch(shell):
    assert shell.ok("switch", "side").lines[0] == "Switched to branch 'side'"
    assert shell.ok("switch", "-").lines[0] == "Switched to branch 'main'"
    assert shell.ok("switch", "-c", "new").lines == ["Switched to a new branch 'new'"]
    assert shell.ok("switch", "--create", "older", "v1").lines[-1] == "1 file written"
    assert shell.ok("switch", "-q", "main").out == ""
    assert shell.json("switch", "side")["branch"] == "side"


def test_switch_goes_to_branches_only_unless_detached(shell):
    answer = shell("switch", "v1")
    assert answer.code == 3
    assert "--detach" in answer.hint
    assert shell.ok("switch", "--detach", "v1").lines[0].startswith("HEAD is now at ")
    answer = shell("switch", "-")
    assert answer.code == 0


def test_switch_force(shell):
    write_config(shell.folder / "config.json", lr=1)
    assert shell("switch", "side").code == 4
    shell.ok("switch", "-f", "side")
