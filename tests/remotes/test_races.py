"""Many clients push at once: what was accepted is there, what was refused got a clear answer."""

from __future__ import annotations

import pytest

from mvc import clone
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from support.bounds import bounded
from support.remote_repos import commit_model, make_repo
from support.zygote import Zygote

CLIENTS = 8


@pytest.mark.parametrize("branches", [1, CLIENTS])
def test_no_push_is_lost(tmp_path, branches):
    store, rounds = tmp_path / "store", bounded(24, 200) // CLIENTS
    first = make_repo(tmp_path / "first", str(store))
    base = commit_model(first)
    first.push("origin", [f"main:refs/heads/b{number}" for number in range(branches)])
    for number in range(CLIENTS):
        clone(store, tmp_path / str(number), branch=f"b{number % branches}")
    with Zygote("support.remote_verbs") as zygote:
        outcomes = zygote.run_all([
            (
                "push_rounds",
                tmp_path / str(number),
                {"rounds": rounds, "branch": f"b{number % branches}", "number": number},
            )
            for number in range(CLIENTS)
        ])  # fmt: skip
    assert [one.error for one in outcomes] == [None] * CLIENTS
    accepted = [commit for one in outcomes for commit in one.result[0]]
    refused = sum(one.result[1] for one in outcomes)
    assert len(set(accepted)) == CLIENTS * rounds
    whole = clone(store, tmp_path / "whole", branch="b0")
    there = {entry.id for number in range(branches) for entry in whole.log(f"origin/b{number}")}
    assert there == {base, *accepted}  # each on top of another, none beside
    assert refused == 0 or branches == 1
    assert whole.fsck(data=True).problems == ()
    assert set(RootStore(LocalStorage(store)).read().refs) == {
        f"refs/heads/b{number}" for number in range(branches)
    }
