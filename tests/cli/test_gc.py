"""mvc gc."""


def test_nothing_to_remove(shell):
    (line,) = shell.ok("gc").lines
    assert line.startswith("nothing to remove: ")
    fields = shell.json("gc")
    assert (fields["drop_chunks"], fields["objects"], fields["bytes"]) == (0, 0, 0)


def test_garbage_goes_and_the_rest_is_whole(shell):
    shell.ok("branch", "-D", "side")
    (shell.folder / ".mvc/0123456789abcdef.mvc-tmp").write_bytes(bytes(2**20))
    assert shell.json("gc", "-n")["leftovers"] == 1
    lines = shell.ok("gc", "--grace", "now", "--expire-reflog", "now").lines
    assert "1 leftover of killed processes removed" in lines
    assert any(line.endswith("Git objects removed") for line in lines)
    assert shell.json("fsck", "--data")["ok"] is True


def test_a_remote_is_swept(shell, tmp_path):
    shell.ok("remote", "add", "origin", str(tmp_path / "store"))
    shell.ok("push", "origin", "main")
    shell.ok("push", "origin", "side")
    shell.ok("push", "origin", ":side")
    planned = shell.json("gc", "--remote", "-n", "--grace", "now")
    assert (planned["dry_run"], planned["remove_packs"], planned["objects"]) == (True, 0, 0)
    lines = shell.ok("gc", "--remote", "origin").lines
    assert any(line.endswith("a later gc deletes them once the grace has passed") for line in lines)
    done = shell.json("gc", "--remote", "--grace", "now")
    assert done["objects"] > 0
    assert done["waiting_objects"] == 0
    assert shell.json("fsck", "--remote", "origin", "--data")["ok"] is True
    assert shell.ok("gc", "--remote").lines[0].startswith("nothing to remove: ")


def test_what_does_not_go_with_a_remote(shell):
    assert "names no repository; --remote looks at a remote" in shell("gc", "origin").error
    assert "no reflogs" in shell("gc", "--remote", "--expire-reflog", "now").error
