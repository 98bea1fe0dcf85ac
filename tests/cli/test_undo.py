"""mvc undo."""


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


def test_a_moved_tag_is_named_and_its_hint_works(shell):
    shell.ok("commit", "--allow-empty", "-m", "more")
    shell.ok("tag", "-f", "best", "HEAD~1")
    before = shell.ok("log", "-1", "--format=%H", "best").out
    shell.ok("tag", "-f", "best")
    hint = "Tag 'best' was not moved back: \"mvc tag -f best best@{1}\" undoes its last move"
    assert hint in shell.ok("undo").lines
    shell.ok("tag", "-f", "best", "best@{1}")
    assert shell.ok("log", "-1", "--format=%H", "best").out == before
