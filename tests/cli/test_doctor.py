"""mvc doctor."""

from __future__ import annotations


def test_doctor(shell):
    lines = shell.ok("doctor").lines
    assert lines[0].startswith("python  ")
    fields = shell.json("doctor")
    assert {"versions", "python", "cores", "filesystem", "free_bytes", "advice"} <= set(fields)
    assert fields["versions"]["mvc-models"]
