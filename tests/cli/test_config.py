"""mvc config."""

from __future__ import annotations


def test_config(empty):
    assert empty.ok("config", "user.name", "Ada B").out == ""
    assert empty.ok("config", "user.name").lines == ["Ada B"]
    assert empty.ok("config", "USER.Name").lines == ["Ada B"]
    assert "user.name=Ada B" in empty.ok("config", "--list").lines
    assert "user.name=Ada B" in empty.ok("config").lines
    assert empty.json("config")["user.name"] == "Ada B"
    assert empty.json("config", "user.name") == {"user.name": "Ada B"}
    empty.ok("config", "--unset", "user.name")
    assert empty("config", "user.name").code == 3
    assert empty("config", "--unset", "user.name").code == 3
