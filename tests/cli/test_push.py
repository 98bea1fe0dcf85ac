"""mvc push goes where the branch belongs, unless it is said otherwise."""

import pytest


@pytest.fixture
def pair(shell):
    for name in ("origin", "backup"):
        shell.ok("remote", "add", name, f"../{name}")
    shell.ok("push", "-q", "--all")
    return shell


def _refs(shell, name):
    return shell.json("ls-remote", name)["refs"]


def test_push_and_fetch_go_to_the_remote_that_the_branch_follows(pair):
    pair.ok("push", "-q", "-u", "backup", "main")
    pair.ok("commit", "--allow-empty", "-qm", "more")
    pair.ok("push", "-q")
    new = pair.json("status")["commit"]
    assert _refs(pair, "backup")["refs/heads/main"] == new
    assert _refs(pair, "origin")["refs/heads/main"] != new
    assert pair.json("fetch")["url"].endswith("/backup")
    pair.ok("config", "remote.pushDefault", "origin")
    pair.ok("push", "-q")
    assert _refs(pair, "origin")["refs/heads/main"] == new
    assert pair.json("fetch")["url"].endswith("/backup")


def test_push_of_a_branch_that_follows_one_of_another_name_asks_which(pair):
    pair.ok("switch", "-q", "-c", "mine", "origin/side")
    answer = pair("push")
    assert answer.code == 2
    assert "follows origin/side" in answer.error
    assert "mvc push origin HEAD:side" in answer.hint
    assert "refs/heads/mine" not in _refs(pair, "origin")
    pair.ok("commit", "--allow-empty", "-qm", "more")
    pair.ok("push", "-q", "origin", "HEAD:side")
    assert _refs(pair, "origin")["refs/heads/side"] == pair.json("status")["commit"]
    pair.ok("push", "-q", "origin", "mine")
    pair.ok("push", "-q", "-u")
    assert pair.ok("push").lines == ["Everything up-to-date"]


def test_fetch_all_asks_every_remote(pair):
    pair.ok("push", "-q", "backup")
    told = pair.json("fetch", "--all", "--no-tags")
    assert sorted(one["url"].rpartition("/")[2] for one in told) == ["backup", "origin"]
    answer = pair("fetch", "--all", "origin")
    assert answer.code == 2
    assert "--all goes with no REMOTE" in answer.error
