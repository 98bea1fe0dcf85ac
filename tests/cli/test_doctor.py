"""mvc doctor."""


def test_doctor(shell):
    lines = shell.ok("doctor").lines
    assert lines[0].startswith("python  ")
    fields = shell.json("doctor")
    assert {"versions", "python", "cores", "filesystem", "free_bytes", "advice"} <= set(fields)
    assert fields["versions"]["mvc-models"]


def test_what_is_under_way(shell):
    shell.ok("bisect", "start")
    assert 'under way: a bisection; "mvc bisect reset" ends it' in shell.ok("doctor").lines
    assert shell.json("doctor")["under_way"] == ["bisect"]
    assert shell.json("status")["bisecting"]
    shell.ok("bisect", "reset")
    assert "bisecting" not in shell.json("status")
    assert "under way" not in shell.ok("doctor").out
    shell.ok("commit", "--allow-empty", "-m", "more")
    shell.ok("revert", "-n", "HEAD~1")
    assert 'under way: a revert; "mvc status" shows how to continue' in shell.ok("doctor").lines


def test_a_folder_that_is_shared(shell):
    assert (
        "locks, renames and new files do what mvc needs"
        in shell.ok("doctor", "--shared", "--wait", "1").lines
    )
    fields = shell.json("doctor", "--shared", "--wait", "1")
    assert (fields["problems"], fields["machines"]) == ([], 1)
    assert "700 seconds" in shell("doctor", "--shared", "--wait", "700").error
