"""mvc tag."""

from __future__ import annotations


def test_tags(shell):
    assert shell.ok("tag").lines == ["v1"]
    assert shell.ok("tag", "v2").out == ""
    tip, base = (shell.json("log", name)[0]["commit"] for name in ("main", "v1"))
    assert shell.json("tag", "-a", "v3", "-m", "third", "v1") == {
        "created": {"name": "v3", "commit": base}
    }
    assert shell.json("tag") == [
        {"name": "v1", "commit": base, "subject": "base model", "message": None},
        {"name": "v2", "commit": tip, "subject": "grown", "message": None},
        {"name": "v3", "commit": base, "subject": "base model", "message": "third"},
    ]
    assert shell.ok("tag", "-l", "*2").lines == ["v2"]
    assert shell("tag", "v2", "v1").code == 4
    shell.ok("tag", "-f", "v2", "v1")
    assert shell.json("log", "v2")[0]["commit"] == base
    assert shell.ok("tag", "-d", "v2").lines == [f"Deleted tag 'v2' (was {base[:7]})"]
    assert shell.ok("tag", "-d", "-q", "v3").out == ""
    assert shell.json("tag", "--delete", "v1") == {"deleted": [{"name": "v1", "commit": base}]}


def test_an_annotated_tag_needs_a_message(shell):
    answer = shell("tag", "-a", "v2")
    assert answer.code == 2
    assert "-m" in answer.error


def test_the_message_of_an_annotated_tag(shell):
    shell.ok("tag", "-a", "v2", "-m", "second\n\nwith a note")
    lines = shell.ok("show", "v2").lines
    assert lines[:5] == ["tag v2", "", "second", "", "with a note"]
    assert lines[6].startswith("commit ")
    assert shell.json("show", "v2")["tag_message"] == "second\n\nwith a note"
    assert shell.ok("show", "v1").lines[0].startswith("commit ")
    assert [tag["message"] for tag in shell.json("tag")] == [None, "second\n\nwith a note"]
