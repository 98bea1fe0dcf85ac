"""mvc pull says what came and what became of the branch."""

from support.cli import Shell
from support.models import write_config


def _clone(shell, folder, environment):
    shell.ok("remote", "add", "origin", "../store")
    shell.ok("push", "-q", "-u")
    shell.ok("clone", "-q", "../store", "../copy")
    return Shell(folder / "copy", environment)


def test_pull_shows_the_merge_and_is_quiet_if_asked(shell, folder, environment):
    copy = _clone(shell, folder, environment)
    assert copy.ok("pull").lines == ["Already up to date."]
    write_config(shell.folder / "config.json", lr=1)
    shell.ok("commit", "-qam", "faster")
    shell.ok("push", "-q")
    told = copy.ok("pull").lines
    assert told[0] == f"From {folder / 'store'}"
    assert told[-2].startswith("Fast-forward of main to ")
    assert told[-1] == "1 file written"
    write_config(shell.folder / "config.json", lr=2)
    shell.ok("commit", "-qam", "faster still")
    shell.ok("push", "-q")
    assert copy.ok("pull", "-q").out == ""
    assert copy.json("status")["commit"] == shell.json("status")["commit"]


def test_the_merge_of_a_pull_says_what_came_from_where(shell, folder, environment):
    copy = _clone(shell, folder, environment)
    for one, name in ((shell, "one"), (copy, "two")):
        (one.folder / name).write_text("text")
        one.ok("add", name)
        one.ok("commit", "-qm", name)
    shell.ok("push", "-q")
    refused = copy("push")
    assert refused.code == 4
    assert '"mvc pull"' in refused.hint
    copy.ok("pull", "-q")
    assert copy.ok("log", "-1", "--format=%s").lines == [
        f"Merge branch 'main' of {folder / 'store'}"
    ]
    copy.ok("push", "-q")
    copy.ok("reset", "-q", "--hard", "HEAD^1")
    copy.ok("merge", "-q", "--no-ff", "origin/main")
    assert copy.ok("log", "-1", "--format=%s").lines == [
        "Merge remote-tracking branch 'origin/main'"
    ]
