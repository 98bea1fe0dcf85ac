"""mvc remote check."""

import pytest

from support.s3_server import KEYS, new_prefix
from support.storage_proxy import UNCONDITIONAL, FaultyProxy


@pytest.fixture
def shell(shell, monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return shell


def test_a_table_of_what_a_store_keeps(shell, moto):
    shell.ok("remote", "add", "origin", f"s3://mvc/{new_prefix()}")
    shell.ok("config", "remote.origin.endpoint", moto)
    lines = shell.ok("remote", "check", "origin").lines
    assert lines[0].split() == ["create", "only", "what", "is", "not", "there", "yes", "refused"]
    assert lines[-1] == "ok: the store keeps what mvc needs"
    told = shell.json("remote", "check")
    assert told["ok"]
    assert {one["name"] for one in told["promises"]} >= {"one winner of 20 writers", "read ranges"}


def test_a_store_that_ignores_conditions(shell, moto):
    shell.ok("remote", "add", "origin", f"s3://mvc/{new_prefix()}")
    with FaultyProxy(moto, lambda _: UNCONDITIONAL) as proxy:
        shell.ok("config", "remote.origin.endpoint", proxy.endpoint)
        result = shell("remote", "check", "origin")
    assert result.code == 1
    assert "not safe to push to: it lacks create only what is not there" in result.out


def test_a_folder_and_mistakes(shell, folder):
    assert shell.ok("remote", "check", str(folder / "store")).lines[-1].startswith("ok:")
    assert shell("remote", "check", "a", "b").code == 2
    assert shell("remote", "check", "nope").code == 3
