"""Branches of remotes: listed, gone to by name, followed, counted."""

import pytest

from support.cli import Shell
from support.models import write_config


@pytest.fixture
def pushed(shell):
    """The shell's repository, pushed to a remote beside it."""
    shell.ok("remote", "add", "origin", "../store")
    shell.ok("push", "-q", "--all", "-u")
    return shell


@pytest.fixture
def copy(pushed, folder, environment):
    """A shell in a clone of it, where only main was checked out."""
    pushed.ok("clone", "-q", "../store", "../copy")
    return Shell(folder / "copy", environment)


def _commit(shell, lr):
    write_config(shell.folder / "config.json", lr=lr)
    shell.ok("commit", "-qam", f"lr {lr}")


def test_branches_of_remotes_are_listed(copy):
    assert copy.ok("branch").lines == ["* main"]
    assert copy.ok("branch", "-r").lines == ["  origin/main", "  origin/side"]
    everything = ["* main", "  remotes/origin/main", "  remotes/origin/side"]
    assert copy.ok("branch", "-a").lines == everything
    assert [one["name"] for one in copy.json("branch", "-r")] == ["origin/main", "origin/side"]
    assert copy("branch", "-a", "-r").code == 2
    assert "unexpected argument" in copy("branch", "-r", "main").error
    side = copy.json("branch", "-r")[1]
    assert [one["name"] for one in copy.json("branch", "-r", "--contains", side["commit"])] == [
        "origin/side"
    ]


@pytest.mark.parametrize("verb", ["switch", "checkout"])
def test_a_branch_that_only_a_remote_has_is_made_and_follows_it(copy, verb):
    answer = copy.ok(verb, "side")
    assert answer.lines[:2] == [
        "Switched to branch 'side'", "Your branch is up to date with 'origin/side'.",
    ]  # fmt: skip
    assert copy.json("status")["upstream"]["branch"] == "side"
    assert copy.json("log", "side")[0]["commit"] == copy.json("log", "origin/side")[0]["commit"]


def test_a_path_of_that_name_stays_a_path(copy):
    (copy.folder / "side").write_text("a file, not a branch")
    copy.ok("add", "side")
    copy.ok("commit", "-qm", "a file")
    (copy.folder / "side").write_text("changed")
    copy.ok("checkout", "side")
    assert (copy.folder / "side").read_text() == "a file, not a branch"
    assert copy.ok("branch").lines == ["* main"]


def test_upstreams_are_set_shown_and_unset(copy):
    assert copy.ok("status", "-sb").lines == ["## main...origin/main"]
    _commit(copy, 1)
    assert copy.ok("status", "-sb").lines == ["## main...origin/main [ahead 1]"]
    assert copy.ok("branch", "-vv").lines[0].endswith("lr 1 [origin/main: ahead 1]")
    assert "\x1b[34m[origin/main: ahead 1]" in copy.ok("branch", "-v", terminal=True).out
    told = copy.json("branch", "-u", "origin/side")
    assert (told["branch"], told["upstream"]["branch"]) == ("main", "side")
    assert told["upstream"]["ahead"] == 3
    assert told["upstream"]["behind"] == 1
    assert copy.ok("status", "-sb").lines == ["## main...origin/side [ahead 3, behind 1]"]
    copy.ok("branch", "--unset-upstream")
    copy.ok("branch", "--unset-upstream")
    assert copy.ok("status", "-sb").lines == ["## main"]
    for wrong in ("origin/nothing", "v1", "main"):
        answer = copy("branch", "--set-upstream-to", wrong)
        assert answer.code == 3
        assert "mvc branch -r" in answer.hint
    assert copy("branch", "-u", "origin/main", "nothing").code == 3
