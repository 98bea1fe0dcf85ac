"""A sharded commit of machines that have just a store in common."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest

from mvc import FormatError, NotFoundError, Repo, StorageError, UsageError, clone
from mvc.operations import commit_shares
from mvc.remotes import remote as remote_module
from mvc.remotes.root_store import RootStore
from mvc.storage.local import LocalStorage
from mvc.training import CommitRequest, RunStore, Whereabouts, choose_senders, parse_stored_share
from support.nodes import ME, commit_nodes, freeze_ranks, make_nodes, state_of, stored_by
from support.remote_repos import commit_model
from support.sharded import SeenPeers
from support.storage_faults import FaultyStorage

RANKS = 3


@pytest.fixture
def nodes(tmp_path, store):
    return make_nodes(tmp_path, store, RANKS)


def read_root(store):
    return RootStore(LocalStorage(store)).read()


def check_state(repo, seed, revision="HEAD"):
    loaded, expected = repo.load_state(revision, framework="numpy"), state_of(seed)
    for name, value in expected["model"].items():
        np.testing.assert_array_equal(loaded["model"][name], value)
    np.testing.assert_array_equal(loaded["optimizer"]["m"], expected["optimizer"]["m"])


def test_the_commit_is_that_of_one_process_and_all_of_it_is_on_the_store(nodes, store, tmp_path):
    alone = Repo.init(tmp_path / "alone")
    alone.set_config("mvc.chunkbytes", "4096")
    alone.identity = ME
    alone.commit_state(state_of(1), message="alone")
    done, stored = commit_nodes(nodes, 1)
    assert done.unsent is None
    assert read_root(store).refs == {"refs/heads/main": done.commit}
    tree = nodes[0]._context.history.read_tree(done.commit)
    same = alone._context.history.read_tree(alone.resolve("HEAD"))
    assert {path: tree[path] for path in same if path != "state.json"} == {
        path: entry for path, entry in same.items() if path != "state.json"
    }
    assert [bool(one.packs) for one in stored] == [False, True, True]
    assert nodes[0].upkeep.fsck(remote="origin", data=True).problems == ()
    other = clone(store, tmp_path / "other")
    check_state(other, 1)
    assert other.load_state(folder="ranks/2", framework="numpy")["pieces"][0][0] == 2
    assert not other.upkeep.fsck(data=True).problems


def test_every_machine_reads_what_the_others_have_stored(nodes):
    """The one that made the commit, and those that have to be told of it first."""
    first = commit_nodes(nodes, 1)[0].commit
    check_state(nodes[0], 1)
    for repo in nodes[1:]:
        RunStore(repo).bring_commit(first)
        check_state(repo, 1, first)
    second = commit_nodes(nodes, 2)[0].commit
    check_state(nodes[0], 2)
    for repo in nodes[1:]:
        RunStore(repo).bring_commit(second)
        check_state(repo, 2, second)
        assert repo.resolve(f"{second}~1") == first
        with pytest.raises(NotFoundError, match="neither here nor on"):
            RunStore(repo).bring_commit("0" * 40)


def test_few_requests_bring_a_commit(nodes, asked):
    """A machine asks for its own packs alone, however many the others have sent."""
    counts = []
    for seed in range(4):
        frozen = freeze_ranks(state_of(seed), RANKS)
        asked.clear()
        with stored_by(nodes, frozen) as (share, stored):
            sent = [call for one in asked for call in one.calls]
            asked.clear()
            assert (
                RunStore(nodes[0])
                .commit_shares(share, stored, CommitRequest(message=f"{seed}"))
                .unsent
                is None
            )
            made = [call for one in asked for call in one.calls]
        counts.append((len(sent), len(made)))
        indexes = [call for call in sent if call[0] == "read" and call[1].endswith(".idx")]
        assert not indexes, sent
        heads = [call for call in made if call[0] == "find_size" and call[1].endswith(".pack")]
        assert len({*heads}) >= RANKS - 1
    assert counts[-1][0] <= 8 * (RANKS - 1), sent
    assert counts[-1][1] <= 8 + 2 * (RANKS - 1), made
    assert counts[1] == counts[-1]


def test_differences_are_taken_from_the_last_commit(tmp_path, store, monkeypatch):
    nodes = make_nodes(tmp_path, store, RANKS, 2**15)
    small = state_of(1)
    monkeypatch.setattr("support.nodes.state_of", lambda seed: nudge(small, seed))
    for seed in range(1, 4):
        done, stored = commit_nodes(nodes, seed, delta=True)
    for one in stored[1:]:
        assert one.counts.stored_bytes < one.counts.new_plain_bytes / 2
    assert done.written_bytes < sum(one.counts.new_plain_bytes for one in stored) / 2
    assert nodes[0].upkeep.fsck(remote="origin", data=True).problems == ()


def nudge(state, seed):
    """Return a state that has changed a little in every chunk."""
    model = {name: value.copy() for name, value in state["model"].items()}
    for value in model.values():
        value[:, 0] = seed
    return {**state, "model": model}


def test_what_others_joined_meanwhile_is_not_sent_again(nodes, store, monkeypatch):
    monkeypatch.setattr("mvc.remotes.history.CROWD_PACKS", 4)
    for seed in (1, 2, 3):
        commit_nodes(nodes, seed)
    assert len(read_root(store).listed.packs) < 9
    before = sum(path.stat().st_size for path in store.glob("packs/*.pack"))
    for repo in nodes:
        repo.upkeep.gc()
    done, _ = commit_nodes(nodes, 3)
    after = sum(path.stat().st_size for path in store.glob("packs/*.pack"))
    assert after - before < 10_000
    assert done.unsent is None
    assert nodes[0].upkeep.fsck(remote="origin", data=True).problems == ()


def test_health_is_known_of_all_files_and_gates_read_nothing(nodes, asked):
    nodes[0].set_config("gate.nan", "0")
    asked.clear()
    done, _ = commit_nodes(nodes, 1)
    reads = [call for one in asked for call in one.calls if call[0] in ("read_into", "read_ranges")]
    assert not [call for call in reads if call[1].endswith(".pack") and "packs/" in call[1]]
    health = nodes[0].show(done.commit).info.trailers
    assert sum("ranks/" in value for _, value in health) == RANKS - 1


def test_machines_that_make_no_commits_stay_small(nodes, tmp_path):
    for repo in nodes:
        repo.set_config("cache.size", "300K")
    for seed in range(6):
        commit_nodes(nodes, seed)
    sizes = [sum(p.stat().st_size for p in repo.git_dir.glob("chunks/packs/*")) for repo in nodes]
    assert all(size < 360_000 for size in sizes), sizes
    check_state(nodes[0], 0, "HEAD~5")
    assert nodes[0].upkeep.fsck(remote="origin", data=True).problems == ()


@pytest.mark.parametrize("when", ["before", "lost"])
def test_a_push_that_fails_is_made_up_for_by_the_next(nodes, store, monkeypatch, when):
    commit_nodes(nodes, 1)
    with stored_by(nodes, freeze_ranks(state_of(2), RANKS)) as (share, stored):
        with breaking(monkeypatch, lambda name: when if name in ("upload", "replace") else None):
            done = RunStore(nodes[0]).commit_shares(share, stored, CommitRequest(message="two"))
    if when == "before":
        assert "503" in done.unsent
    check_state(nodes[0], 2)  # it is known where the others have put their parts
    assert commit_nodes(nodes, 3)[0].unsent is None
    assert nodes[0].upkeep.fsck(remote="origin", data=True).problems == ()
    check_state(clone(store, nodes[0].worktree.parent / "other"), 2, "origin/main~1")


class KilledError(BaseException):
    """The end of a machine: nothing of it runs any more."""


@contextlib.contextmanager
def breaking(monkeypatch, plan):
    """Let calls of stores fail as a plan says by their names; ``kill`` and ``killed`` end whoever calls."""

    def decide(name, _):
        fault = plan(name)
        if fault == "kill":
            raise KilledError
        return fault

    real = remote_module.open_store
    with monkeypatch.context() as patch:
        patch.setattr(remote_module, "open_store", lambda *args: FaultyStorage(real(*args), decide))
        yield


def killing_at(number):
    """Return a plan that ends who makes a call of that number, and all later ones; and what was called."""
    calls = []

    def plan(name):
        calls.append(name)
        return "kill" if len(calls) >= number else None

    return plan, calls


def test_a_machine_that_dies_while_it_sends_leaves_no_commit(tmp_path, store, monkeypatch):
    """At every request; the next commit is whole, and gc takes what was left."""
    nodes = make_nodes(tmp_path, store, 2)
    first = commit_nodes(nodes, 1)[0].commit
    number, survived = 0, False
    while not survived:
        number += 1
        plan, _ = killing_at(number)
        share = RunStore(nodes[1]).open_share(*(frozen := freeze_ranks(state_of(number), 2))[1])
        peers = SeenPeers([RunStore(nodes[0]).open_share(*frozen[0]), share], is_seen=True)
        with breaking(monkeypatch, plan), contextlib.suppress(KilledError):
            with RunStore(nodes[1]).store_share(share, peers, send=True):
                survived = True
        assert read_root(store).refs == {"refs/heads/main": first}
        assert number < 40
    assert number > 5
    check_whole_and_swept(nodes, store)


@pytest.mark.slow
def test_rank_0_that_dies_while_it_commits_leaves_the_store_as_it_was(tmp_path, store, monkeypatch):
    nodes = make_nodes(tmp_path, store, 2)
    last = commit_nodes(nodes, 1)[0].commit
    number, survived = 0, False
    while not survived:
        number += 1
        plan, calls = killing_at(number)
        with stored_by(nodes, freeze_ranks(state_of(number), 2)) as (share, stored):
            with breaking(monkeypatch, plan), contextlib.suppress(KilledError):
                RunStore(nodes[0]).commit_shares(share, stored, CommitRequest(message=f"{number}"))
                survived = True
        refs = read_root(store).refs
        assert refs == {"refs/heads/main": last} or "replace" in calls
        nodes[0] = Repo.open(nodes[0].worktree, identity=ME)
        assert commit_nodes(nodes, 50 + number)[0].unsent is None
        last = nodes[0].resolve("HEAD")
        assert read_root(store).refs == {"refs/heads/main": last}
        assert number < 40
    assert number > 8
    check_whole_and_swept(nodes, store)


def check_whole_and_swept(nodes, store):
    """Make one more commit; nothing of it is missing, and gc leaves nothing that is not needed."""
    done = commit_nodes(nodes, 99)[0]
    assert done.unsent is None
    nodes[0].remotes.gc(grace_s=0)
    nodes[0].remotes.gc(grace_s=0)
    assert nodes[0].upkeep.fsck(remote="origin", data=True).problems == ()
    root = read_root(store)
    there = {path.stem for path in store.glob("packs/*.pack")}
    assert there == RootStore(LocalStorage(store)).read_listing(root).packs.keys()
    check_state(clone(store, nodes[0].worktree.parent / "whole"), 99)


def test_what_was_sent_survives_a_gc_before_the_commit(nodes, store):
    """The packs are unnamed, and new: a sweep notes that, and takes them only a grace later."""
    commit_nodes(nodes, 1)
    other = clone(store, nodes[0].worktree.parent / "other")
    with stored_by(nodes, freeze_ranks(state_of(2), RANKS)) as (share, stored):
        other.remotes.gc()
        assert (
            RunStore(nodes[0]).commit_shares(share, stored, CommitRequest(message="two")).unsent
            is None
        )
    assert nodes[0].upkeep.fsck(remote="origin", data=True).problems == ()
    check_state(clone(store, nodes[0].worktree.parent / "whole"), 2)


def test_what_a_gc_took_before_the_commit_makes_none(nodes, store):
    first = commit_nodes(nodes, 1)[0].commit
    other = clone(store, nodes[0].worktree.parent / "other")
    with stored_by(nodes, freeze_ranks(state_of(2), RANKS)) as (share, stored):
        other.remotes.gc(grace_s=0)
        other.remotes.gc(grace_s=0)
        with pytest.raises(StorageError, match="what rank 1 has sent is not on"):
            RunStore(nodes[0]).commit_shares(share, stored, CommitRequest(message="never"))
    assert nodes[0].resolve("HEAD") == first
    assert commit_nodes(nodes, 2)[0].unsent is None  # sent anew
    assert nodes[0].upkeep.fsck(remote="origin", data=True).problems == ()


def test_another_pusher_between_two_looks_at_the_root(nodes, store):
    commit_nodes(nodes, 1)
    other = clone(store, nodes[0].worktree.parent / "other")
    other.identity = ME
    with stored_by(nodes, freeze_ranks(state_of(2), RANKS)) as (share, stored):
        other.switch("mine", create=True)
        mine = commit_model(other)
        other.push("origin", ["mine"])
        done = RunStore(nodes[0]).commit_shares(share, stored, CommitRequest(message="two"))
    assert done.unsent is None
    assert read_root(store).refs == {"refs/heads/main": done.commit, "refs/heads/mine": mine}
    assert nodes[0].upkeep.fsck(remote="origin", data=True).problems == ()


def test_a_rank_that_has_sent_too_little_makes_no_commit(nodes, store, monkeypatch):
    monkeypatch.setattr(commit_shares, "_LOOK_AGAIN_S", (0.0,))
    with stored_by(nodes, freeze_ranks(state_of(1), RANKS)) as (share, stored):
        one = dict(list(stored[1].packs.items())[1:])
        with pytest.raises(StorageError, match=r"what rank 1 has sent is not on .* lacks some"):
            told = [stored[0], replace(stored[1], packs={**stored[2].packs, **one}), stored[2]]
            RunStore(nodes[0]).commit_shares(share, told, CommitRequest(message="never"))
        with pytest.raises(StorageError, match="rank 2 has stored chunks that are not in this"):
            RunStore(nodes[0]).commit_shares(
                share, [*stored[:2], replace(stored[2], packs={})], CommitRequest(message="no")
            )
    assert nodes[0].branches.list() == []
    with pytest.raises(FormatError, match="not a pack"):
        parse_stored_share(replace(stored[1], packs={"../x": 4}).encode())


def test_a_rank_cannot_send_without_a_store(tmp_path):
    repo = Repo.init(tmp_path)
    frozen = freeze_ranks(state_of(1), 2)
    shares = [RunStore(repo).open_share(*one) for one in frozen]
    with pytest.raises(UsageError, match="no store has the content"):
        with RunStore(repo).store_share(shares[1], SeenPeers(shares, is_seen=True), send=True):
            pass


def test_ranks_find_out_what_they_share(nodes, tmp_path, store):
    same = Repo.open(nodes[0].worktree)
    bare = Repo.init(tmp_path / "bare")
    with RunStore(nodes[0]).leave_mark() as mark:
        found = [RunStore(repo).look_for_mark(mark) for repo in (nodes[0], same, nodes[1], bare)]
    assert not RunStore(nodes[0]).look_for_mark(mark).sees_mark
    place = str(store)
    assert found[0] == Whereabouts(sees_mark=True, store=place)
    assert found[2:] == [Whereabouts(sees_mark=False, store=place), Whereabouts(False, None)]
    assert choose_senders(found[:3]) == (False, False, True)
    with pytest.raises(UsageError, match="rank 3 sees another folder than rank 0") as caught:
        choose_senders(found)
    assert "doctor --shared" in caught.value.hint
    assert "init --store" in caught.value.hint
    with pytest.raises(UsageError):
        choose_senders([Whereabouts(sees_mark=True, store=None), found[2]])
    with pytest.raises(UsageError, match="not a mark"):
        RunStore(same).look_for_mark("../../x")
    repo = Repo.init(tmp_path / "alone")
    repo.identity = ME
    RunStore(repo).bring_commit(commit_model(repo))
