"""An object store is asked once whether refs are safe there, and the answer is remembered."""

import pytest

from mvc.errors import UnsupportedError
from support.remote_repos import commit_model, make_repo
from support.s3_server import KEYS, new_prefix
from support.storage_proxy import UNCONDITIONAL, FaultyProxy


@pytest.fixture
def repo(tmp_path, moto, monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    repo = make_repo(tmp_path / "a", f"s3://mvc/{new_prefix()}")
    repo.set_config("remote.origin.endpoint", moto)
    commit_model(repo)
    return repo


def test_the_first_push_asks_and_the_second_does_not(repo, moto):
    with FaultyProxy(moto, lambda _: None) as proxy:
        repo.set_config("remote.origin.endpoint", proxy.endpoint)
        repo.push()
        assert repo.remotes.list()["origin"].is_checked
        asked = [one for one in proxy.requests if "/check/" in one.target]
        assert 0 < len(asked) <= 16
        commit_model(repo, seed=1)
        repo.push()
        assert [one for one in proxy.requests if "/check/" in one.target] == asked
    repo.set_config("remote.origin.endpoint", moto)
    assert not repo.remotes.list()["origin"].is_checked  # another server


def test_a_store_that_loses_updates_is_refused_and_nothing_is_sent(repo, moto):
    with FaultyProxy(moto, lambda _: UNCONDITIONAL) as proxy:
        repo.set_config("remote.origin.endpoint", proxy.endpoint)
        with pytest.raises(UnsupportedError, match="not safe for refs: create only") as caught:
            repo.push()
        assert "mvc remote check origin" in caught.value.hint
        assert not repo.remotes.list()["origin"].is_checked
        sent = [one.target for one in proxy.requests if one.method == "PUT"]
        assert all("/check/" in one for one in sent)


def test_another_place_is_not_known(repo):
    assert repo.remotes.check().ok
    assert repo.remotes.list()["origin"].is_checked
    assert repo.remotes.rename("origin", "store").is_checked
    assert not repo.remotes.set_url("store", "s3://mvc/elsewhere").is_checked
