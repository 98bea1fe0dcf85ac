"""mvc checkout."""

from support.models import digests, write_config


def test_checkout_a_branch_and_back(shell):
    before = digests(shell.folder)
    assert shell.ok("checkout", "side").lines == ["Switched to branch 'side'", "2 files written"]
    assert digests(shell.folder) != before
    assert shell.ok("checkout", "-").lines == ["Switched to branch 'main'", "2 files written"]
    assert digests(shell.folder) == before
    assert shell.ok("checkout").lines == ["Already on 'main'"]


def test_checkout_a_revision_detaches(shell):
    base = shell.json("log")[-1]["commit"]
    lines = shell.ok("checkout", "v1").lines
    assert lines[0] == f"HEAD is now at {base[:7]} base model"
    assert "mvc switch -c NAME" in lines[1]
    assert lines[2] == "1 file written"
    lines = shell.ok("checkout", "main").lines
    assert lines[0] == f"Previous HEAD position was {base[:7]} base model"


def test_checkout_paths_from_the_index_and_a_revision(shell):
    write_config(shell.folder / "config.json", lr=1)
    before = digests(shell.folder)
    assert shell.ok("checkout", "--", "config.json").lines == ["Updated 1 path from the index"]
    assert digests(shell.folder) != before
    write_config(shell.folder / "config.json", lr=1)
    shell.ok("checkout", "config.json")
    assert shell.ok("status", "-s").out == ""
    side = shell.json("log", "side")[0]["commit"][:7]
    assert shell.ok("checkout", "side", "--", "config.json").lines == [
        f"Updated 1 path from {side}"
    ]
    assert shell.ok("checkout", "side", "config.json").code == 0
    assert shell.ok("status", "-s").lines == ["M  config.json"]
