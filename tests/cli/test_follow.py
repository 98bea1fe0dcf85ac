"""mvc publish and mvc follow at the command line."""

import sys

import pytest


@pytest.fixture
def store(shell):
    shell.ok("remote", "add", "origin", "../store")
    shell.ok("publish", "prod", "--limit-rate", "1G")
    return str(shell.folder.parent / "store")


def test_each_version_is_told_and_runs_a_command(shell, store):
    command = f"{sys.executable} -c \"import os; print(os.environ['MVC_VERSION'])\""
    done = shell.process("follow", store, "prod", "serve", "--once", "--exec", command)
    assert done.returncode == 0
    assert b"version 1, " in done.stdout
    assert b"1" in done.stdout.splitlines()
    assert shell.ok("follow", store, "prod", "serve", "--once").lines == []
    shell.ok("publish", "prod", "--to", "HEAD~1")
    told = shell.json("follow", store, "prod", "serve", "--once", "--limit-rate", "1M")
    assert told["number"] == 2
    assert told["received_bytes"] > 0
    shell.ok("publish", "prod")
    assert shell("follow", store, "prod", "serve", "--once", "--exec", "false").code == 1


def test_intervals_are_written_as_times(shell, store):
    for time in ["5", "30s", "10m", "1h", "1d"]:
        shell.ok("follow", store, "prod", "serve", "--once", "--interval", time)


def test_mistakes_are_told_before_anything_is_made(shell, store):
    for words, fact in [
        (["--interval", "0"], "--interval one second to one day"),
        (["--interval", "2d"], "--interval one second to one day"),
        (["--interval", "soon"], "'soon' is not a span of time"),
        (["--interval", "-3"], "not a span of time"),
        (["--keep", "-1"], "--keep takes 0 or more"),
        (["--limit-rate", "fast"], "'fast' is not a valid rate"),
    ]:
        answer = shell("follow", store, "prod", "serve", "--once", *words)
        assert answer.code == 2
        assert fact in answer.err
        assert not (shell.folder / "serve").exists()
