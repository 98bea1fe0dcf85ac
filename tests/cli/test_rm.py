"""mvc rm."""

from __future__ import annotations


def test_rm(shell):
    assert shell.ok("rm", "config.json").lines == ["rm 'config.json'"]
    assert not (shell.folder / "config.json").exists()
    assert shell.ok("status", "--porcelain").lines == ["D  config.json"]


def test_rm_cached_keeps_the_file(shell):
    assert shell.json("rm", "--cached", "config.json") == {"removed": ["config.json"]}
    assert (shell.folder / "config.json").exists()
    assert shell.ok("status", "--porcelain").lines == ["D  config.json", "?? config.json"]


def test_rm_of_a_folder_needs_r(empty):
    (empty.folder / "a").mkdir()
    (empty.folder / "a" / "b.txt").write_text("1")
    empty.ok("commit", "-m", "x", ".")
    answer = empty("rm", "a")
    assert answer.code == 2
    assert "--recursive" in answer.hint
    assert empty.ok("rm", "-r", "-q", "a").out == ""
    assert not (empty.folder / "a").exists()


def test_rm_of_changes_needs_force(shell):
    (shell.folder / "config.json").write_text("changed")
    answer = shell("rm", "config.json")
    assert answer.code == 4
    assert (shell.folder / "config.json").exists()
    shell.ok("rm", "-f", "config.json")
    assert not (shell.folder / "config.json").exists()
