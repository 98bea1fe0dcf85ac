"""mvc init."""

from __future__ import annotations


def test_init(bare):
    answer = bare.ok("init")
    assert answer.lines == [f"Initialized empty mvc repository in {bare.folder.resolve()}/.mvc/"]
    assert bare.ok("init").out.startswith("Reinitialized existing mvc repository in ")
    assert bare.json("init")["created"] is False


def test_init_somewhere_with_a_branch(bare):
    fields = bare.json("init", "new/place", "-b", "trunk")
    assert fields == {
        "git_dir": str(bare.folder.resolve() / "new" / "place" / ".mvc"),
        "branch": "trunk",
        "created": True,
    }
    assert bare.ok("init", "-q", "other").out == ""
    assert bare.ok("status", folder="new/place").lines[0] == "On branch trunk"
    assert bare.ok("-C", "new/place", "branch", "--show-current").lines == ["trunk"]
