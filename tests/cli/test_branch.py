"""mvc branch."""


def test_branch_lists(shell):
    assert shell.ok("branch").lines == ["* main", "  side"]
    assert shell.ok("branch", "-a").lines == ["* main", "  side"]
    main, side = (shell.json("log", name)[0]["commit"] for name in ("main", "side"))
    assert shell.ok("branch", "-v").lines == [
        f"* main {main[:7]} grown", f"  side {side[:7]} another config",
    ]  # fmt: skip
    assert shell.json("branch") == [
        {"name": "main", "commit": main, "current": True, "subject": "grown"},
        {"name": "side", "commit": side, "current": False, "subject": "another config"},
    ]
    assert shell.ok("branch", "--show-current").lines == ["main"]
    assert shell.json("branch", "--show-current") == {"branch": "main"}


def test_branch_made_moved_renamed_deleted(shell):
    assert shell.ok("branch", "new", "v1").out == ""
    base = shell.json("log", "v1")[0]["commit"]
    assert shell.json("branch", "other") == {
        "created": {"name": "other", "commit": shell.json("log")[0]["commit"]}
    }
    assert shell("branch", "new").code == 4
    shell.ok("branch", "-f", "new", "side")
    answer = shell("branch", "-d", "new")
    assert answer.code == 4
    assert "mvc branch -D new" in answer.hint
    side = shell.json("log", "side")[0]["commit"][:7]
    assert shell.ok("branch", "-D", "new").lines == [f"Deleted branch new (was {side})."]
    shell.ok("branch", "-f", "other", base)
    assert shell.json("branch", "-d", "other") == {"deleted": [{"name": "other", "commit": base}]}
    shell.ok("branch", "-m", "side", "aside")
    assert shell.json("branch", "-m", "trunk") == {"renamed": {"old_name": "main", "name": "trunk"}}
    assert shell.ok("branch").lines == ["  aside", "* trunk"]
    assert shell("branch", "-m", "aside", "trunk").code == 4


def test_which_branches_have_a_commit(shell):
    shell.ok("branch", "old", "main~1")
    assert shell.ok("branch", "--contains").lines == ["* main"]
    assert shell.ok("branch", "--contains", "v1").lines == ["* main", "  old", "  side"]
    assert shell.ok("branch", "--merged").lines == ["* main", "  old"]
    assert shell.ok("branch", "--no-merged", "side").lines == ["* main", "  old"]
    assert [ref["name"] for ref in shell.json("branch", "--merged", "old")] == ["old"]
    assert shell("branch", "--contains", "nope").code == 3
    assert shell("branch", "--contains", "main", "side").code == 2
    assert shell("branch", "--contains", "-d", "side").code == 2
