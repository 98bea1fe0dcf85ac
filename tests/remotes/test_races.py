"""Many clients push at once: what was accepted is there, what was refused got a clear answer."""

import pytest

from mvc import clone
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from support.bounds import bounded, rest_slow
from support.remote_races import CLIENTS, race_pushes
from support.remote_repos import commit_model, make_repo
from support.zygote import Zygote


@pytest.mark.parametrize("branches", rest_slow([1, CLIENTS]))
def test_no_push_is_lost(tmp_path, branches):
    rounds = bounded(8, 200) // CLIENTS
    refused = race_pushes(tmp_path, str(tmp_path / "store"), branches=branches, rounds=rounds)
    assert refused == 0 or branches == 1


@pytest.mark.parametrize("seed", range(bounded(1, 50)))
def test_sweeps_beside_pushes_lose_nothing(tmp_path, seed):
    """Content that others have just let go is pushed again, while it is deleted."""
    store = tmp_path / "store"
    first = make_repo(tmp_path / "first", str(store))
    commit_model(first)
    first.push()
    for number in range(3):
        repo = make_repo(tmp_path / str(number), str(store))
        for kind in range(4):
            commit_model(repo, seed=kind, name=f"{kind}.safetensors")
            repo.branches.create(f"k{kind}")
    clone(store, tmp_path / "sweeper")
    with Zygote("support.remote_verbs") as zygote:
        *pushed, swept = zygote.run_all([
            *(
                ("branch_rounds", tmp_path / str(number), {"rounds": 12, "number": number, "seed": seed})
                for number in range(3)
            ),
            ("sweep_rounds", tmp_path / "sweeper", {"rounds": 10, "seed": seed}),
        ])  # fmt: skip
    assert [one.error for one in (*pushed, swept)] == [None] * 4
    assert swept.result > 0
    whole = clone(store, tmp_path / "whole")
    there = {name: commit for one in pushed for name, commit in one.result.items()}
    refs = RootStore(LocalStorage(store)).read().refs
    assert refs == {"refs/heads/main": first.resolve("HEAD")} | {
        f"refs/heads/{name}": commit for name, commit in there.items()
    }
    assert whole.upkeep.fsck(data=True).problems == ()
    assert whole.upkeep.fsck(remote="origin", data=True).problems == ()
