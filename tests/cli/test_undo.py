"""mvc undo."""

from __future__ import annotations


def test_undo(shell):
    head, base = shell.json("log")[0]["commit"], shell.json("log")[1]["commit"]
    subjects = [entry["subject"] for entry in shell.json("log")]
    planned = shell.ok("undo", "--dry-run").lines
    assert planned[0] == f"Would take back: commit: {subjects[0]}"
    assert planned[1] == f"Branch 'main' would be at {base[:7]} {subjects[1]}"
    assert planned[2].startswith("Index and files would stay as they were")
    lines = shell.ok("undo").lines
    assert lines[:2] == [
        f"Took back: commit: {subjects[0]}",
        f"Branch 'main' is now at {base[:7]} {subjects[1]}",
    ]
    assert lines[2] == f"Index and files are as they were; the commit taken back is {head[:7]}"
    assert shell.ok("undo", "--redo").lines == [
        f"Redid: commit: {subjects[0]}",
        f"Branch 'main' is now at {head[:7]} {subjects[0]}",
    ]
    answer = shell("undo", "--redo")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.splitlines() == [
        "error: there is nothing to redo: the last move was not an undo"
    ]
    assert shell.ok("undo", "-q").out == ""
    assert shell.json("undo", "--redo", "-n")["dry_run"] is True


def test_undo_of_a_switch_and_a_reset(shell):
    shell.ok("switch", "side")
    assert shell.ok("undo").lines[0] == "Took back: checkout: moving from main to side"
    shell.ok("reset", "--hard", "HEAD~1")
    assert shell.ok("undo", "-n").lines[-1] == "1 file would be written"
    lines = shell.ok("undo").lines
    assert lines[0] == "Took back: reset: moving to HEAD~1"
    assert lines[-1].endswith("written")
    shell.ok("reset", "--hard", "HEAD~1")
    (shell.folder / "model.safetensors").write_bytes(b"mine")
    assert shell("undo").code == 4
    found = shell.json("undo", "--force")
    assert (found["kind"], found["written"]) == ("reset", ["model.safetensors"])
    assert shell.json("undo")["kind"] == "commit"


def test_undo_of_the_first_commit(empty):
    (empty.folder / "a.txt").write_text("a")
    empty.ok("add", ".")
    empty.ok("commit", "-m", "first")
    first = empty.json("log")[0]["commit"]
    assert empty.ok("undo").lines == [
        "Took back: commit (initial): first",
        "Branch 'main' is now without a commit",
        f"Index and files are as they were; the commit taken back is {first[:7]}",
    ]
    answer = empty("undo")
    assert (answer.code, len(answer.err.splitlines())) == (3, 2)
    assert empty.json("undo", "--redo")["commit"] == first


def test_undo_of_a_rollback_takes_its_branch_and_note(shell):
    shell.ok("rollback", "v1", "-m", "loss is NaN")
    assert shell.json("log", "--all")[0]["diverged"]["reason"] == "loss is NaN"
    shell.ok("undo", "--dry-run")
    assert len(shell.json("branch")) == 3
    lines = shell.ok("undo").lines
    assert lines[-1] == "Branch 'diverged/main/2000' and the note of the rollback are gone"
    assert [ref["name"] for ref in shell.json("branch")] == ["main", "side"]
    assert [entry["diverged"] for entry in shell.json("log", "--all")] == [None] * 4
    redone = shell.json("undo", "--redo")
    assert redone["diverged_branch"] == "diverged/main/2000"
    entry = shell.json("log", "diverged/main/2000")[0]
    assert (entry["subject"], entry["diverged"]["reason"]) == ("grown", "loss is NaN")
    shell.ok("branch", "-f", "diverged/main/2000", "side")
    assert shell.json("undo")["diverged_branch"] is None
    assert len(shell.json("branch")) == 3
    shell.ok("fsck")


def test_a_moved_tag_is_named_and_its_hint_works(shell):
    shell.ok("commit", "--allow-empty", "-m", "more")
    shell.ok("tag", "-f", "best", "HEAD~1")
    before = shell.ok("log", "-1", "--format=%H", "best").out
    shell.ok("tag", "-f", "best")
    hint = "Tag 'best' was not moved back: \"mvc tag -f best best@{1}\" undoes its last move"
    assert hint in shell.ok("undo").lines
    shell.ok("tag", "-f", "best", "best@{1}")
    assert shell.ok("log", "-1", "--format=%H", "best").out == before
