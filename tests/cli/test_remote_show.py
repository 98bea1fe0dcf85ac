"""mvc remote show compares a remote with what is known here; prune forgets what is gone there."""

from support.cli import Shell


def test_show_and_prune(shell, folder, environment):
    shell.ok("remote", "add", "origin", "../store")
    shell.ok("push", "-q", "-u", "--all")
    shell.ok("clone", "-q", "../store", "../copy")
    copy = Shell(folder / "copy", environment)
    shell.ok("push", "-q", "-d", "origin", "side")
    shell.ok("push", "-q", "origin", "main:later")
    copy.ok("commit", "--allow-empty", "-qm", "mine")
    assert copy.ok("remote", "show").lines == [
        f"{folder / 'store'}, default branch main",
        "Branches there:",
        '  later  new: "mvc fetch" brings it',
        "  main   tracked",
        '  side   gone: "mvc remote prune" forgets it',
        "Branches here that follow them:",
        "  main  origin/main: ahead 1",
    ]
    shell.ok("publish", "prod")
    told = copy.json("remote", "show", "origin")
    assert told["branches"] == {"later": "new", "main": "tracked", "side": "gone"}
    assert told["followers"]["main"]["ahead"] == 1
    assert told["channels"]["prod"]["number"] == 1
    assert copy.ok("remote", "prune", "origin").lines == [" - [gone]            origin/side"]
    assert copy.json("remote", "prune") == []
    assert copy.ok("branch", "-r").lines == ["  origin/main"]
    assert copy("remote", "show", "nowhere").code == 3
    assert copy("remote", "prune", "origin", "side").code == 2
