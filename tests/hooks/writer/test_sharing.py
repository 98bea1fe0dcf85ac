"""A commit of several ranks: the same as that of one, or none at all, whoever dies when."""

import resource
import signal
from pathlib import Path

import pytest
import torch

from mvc import Repo, StorageError
from mvc.training import Agreement, Dispute
from mvc_hooks.writer.messages import Bye
from support.bounds import rest_slow
from support.committing import WHO, read_links
from support.crews import CrewRig, make_whole

pytestmark = pytest.mark.torch


def _assert_holds(rig, state, commit):
    assert rig.repo.verify_state(state, commit).differences == ()
    assert rig.repo.upkeep.fsck(data=True).problems == ()


def test_it_is_the_commit_of_one_process(tmp_path):
    whole = make_whole(1)
    alone = Repo.init(tmp_path / "alone")
    alone.identity = WHO
    expected = alone.commit_state(whole, message="step 1", step=1)
    with CrewRig(tmp_path / "run", 3) as rig:
        reports = rig.commit(whole, 1)
        assert [report.error for report in reports] == [None] * 3
        assert len({report.commit for report in reports}) == 1
        commit = reports[0].commit
        _assert_holds(rig, whole, commit)
        for path in ("model.safetensors", "optimizer.safetensors"):
            ours, theirs = (
                {one.path: one.blob for one in repo.ls(at)}[path]
                for repo, at in ((rig.repo, commit), (alone, expected.commit))
            )
            assert ours == theirs
        entry = rig.repo.show(commit)
        assert entry.annotations.meta["lr"] == "0.1"
        assert entry.annotations.meta["written_bytes"] == str(reports[0].written_bytes)


@pytest.mark.parametrize("nodes", rest_slow([None, "abb"]))
def test_commits_follow_one_another(tmp_path, nodes):
    with CrewRig(tmp_path / "run", 3, nodes=nodes) as rig:
        parents = []
        for step in (1, 2, 3):
            whole = make_whole(step)
            reports = rig.commit(whole, step)
            assert [report.error for report in reports] == [None] * 3
            assert [*rig.repo.show(reports[0].commit).info.parents] == parents
            parents = [reports[0].commit]
            _assert_holds(rig, whole, parents[0])
        for one in rig.ranks:
            assert sum("mvc-snapshot" in link for link in read_links(one.pid)) == 1
            assert "mvc-snapshot" not in Path(f"/proc/{one.pid}/maps").read_text()


def test_several_are_under_way(tmp_path):
    with CrewRig(tmp_path / "run", 2) as rig:
        rig.ranks[1].signal(signal.SIGSTOP)
        for step in (1, 2, 3):
            rig.submit(make_whole(step), step)
        rig.ranks[1].signal(signal.SIGCONT)
        rig.settle()
        for one in rig.ranks:
            assert [report.step for report in one.reports] == [1, 2, 3]
            assert [report.error for report in one.reports] == [None] * 3
        _assert_holds(rig, make_whole(3), "main")


# Somebody dies.


def _assert_next_works(rig, step=2):
    whole = make_whole(step)
    reports = rig.commit(whole, step)
    assert [report.error for report in reports] == [None] * len(rig.ranks)
    assert len({report.commit for report in reports}) == 1
    _assert_holds(rig, whole, reports[0].commit)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_writer_that_is_killed_fails_the_commit_everywhere(tmp_path, victim):
    with CrewRig(tmp_path / "run", 2) as rig:
        state = make_whole(1)
        for stage in ("start", "offer", "join", "read", "fetch", "serve", "stored"):
            rig.start(victim, stage)
            reports = rig.commit(state, 1)
            why = f"rank {victim}: its writer ended (killed by signal 9)"
            assert [report.commit for report in reports] == [None, None]
            assert all(report.error.startswith(why) for report in reports), stage
            assert [*rig.repo.log()] == []
        _assert_next_works(rig)


@pytest.mark.slow
def test_a_commit_that_was_made_is_found_by_all(tmp_path):
    with CrewRig(tmp_path / "run", 3) as rig:
        for step, stage in enumerate(("committed", "telling"), 1):
            rig.start(0, stage)
            _assert_next_works(rig, step)
        _assert_next_works(rig, 3)


@pytest.mark.slow
def test_all_agree_whatever_became_of_it(tmp_path):
    with CrewRig(tmp_path / "run", 2) as rig:
        for step, (stage, victim) in enumerate((("told", 1), ("heard", 1), ("decided", 0)), 1):
            rig.start(victim, stage)
            reports = rig.commit(make_whole(step), step)
            assert len({report.commit for report in reports}) == 1
            made = [entry.info.id for entry in rig.repo.log() if entry.step == step]
            assert made == [one for one in {report.commit for report in reports} if one]
        _assert_next_works(rig, 4)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["telling", "decided"])
def test_rank_0_vanishes(tmp_path, stage):
    """Its training too: nobody can tell the others; they look at the branch."""
    with CrewRig(tmp_path / "run", 3, stages={0: stage}) as rig:
        rig.submit(make_whole(1), 1)
        first, *others = rig.ranks
        first.wait_for_death()
        first.place.close()
        reports = rig.settle(others)
        if stage == "telling":
            assert {report.commit for report in reports} == {rig.repo.resolve("main")}
        else:
            why = "rank 0: its training and its writer have ended"
            assert [report.error for report in reports] == [why] * 2
            assert [*rig.repo.log()] == []


@pytest.mark.slow
def test_another_rank_vanishes(tmp_path):
    with CrewRig(tmp_path / "run", 3, stages={2: "serve"}) as rig:
        rig.submit(make_whole(1), 1)
        *others, last = rig.ranks
        last.wait_for_death()
        last.place.close()
        reports = rig.settle(others)
        # Who asks it for a part may find out before who watches over it.
        first, second = (report.error for report in reports)
        assert first == second
        assert first in {
            "rank 2: its training and its writer have ended",
            "rank 0: rank 2 cannot be reached: Connection refused",
            "rank 1: rank 2 cannot be reached: Connection refused",
        }
        assert [*rig.repo.log()] == []


@pytest.mark.slow
def test_a_training_that_ends_leaves_its_last_commit(tmp_path):
    with CrewRig(tmp_path / "run", 2) as rig:
        for one in rig.ranks:
            one.signal(signal.SIGSTOP)
        rig.submit(make_whole(1), 1)
        for one in rig.ranks:
            one.place.drop_in_child()  # as the end of a process does
            one.writer._send(Bye())
            one.writer._channel.close()
        for one in rig.ranks:
            one.signal(signal.SIGCONT)
        for one in rig.ranks:
            assert one.writer._process.wait(60) == 0
        _assert_holds(rig, make_whole(1), "main")
        for one in rig.ranks:
            assert not Path(one.place.address.path).parent.exists()
            one.writer.is_lost = True


@pytest.mark.slow
def test_a_machine_that_says_nothing_is_not_waited_for(tmp_path):
    """As one that lost its power, or its network: no connection is closed."""
    with CrewRig(tmp_path / "run", 3, stages={2: "silent"}, grace_s=3.0) as rig:
        _assert_next_works(rig, 1)
        rig.submit(make_whole(2), 2)
        reports = rig.settle(rig.ranks[:2])
        assert {report.error for report in reports} == {"rank 2: its writer ended"}
        rig.ranks[2].signal(signal.SIGCONT)
        (report,) = rig.settle(rig.ranks[2:])
        assert report.error == reports[0].error
        rig.start(2)
        _assert_next_works(rig, 3)


# Something else goes wrong.


@pytest.mark.slow
@pytest.mark.parametrize("victim", rest_slow([1, 0]))
def test_what_fails_on_one_is_told_to_all(tmp_path, victim):
    with CrewRig(tmp_path / "run", 2) as rig:
        state = make_whole(1)
        one, other = rig.ranks[victim], rig.ranks[1 - victim]

        def settle():
            reports = rig.settle()
            assert len({report.error for report in reports}) == 1
            assert [report.step for report in reports] == [1, 1]
            return reports[0].error

        resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (2**12, -1))
        rig.commit(state, 1)
        error = settle()
        assert error.startswith(f"rank {victim}: ")
        assert "too large" in error
        one.kill()

        snapshot = one.freeze(state, 1)
        snapshot.fence.is_torn = True
        one.queue.submit(snapshot, "main", "step 1")
        other.submit(state, 1)
        assert settle().startswith(f"rank {victim}: the state changed while it was copied")

        one.queue.skip(1, "main", "step 1", StorageError("no room", hint="buy more"))
        other.submit(state, 1)
        assert settle() == f"rank {victim}: no room (buy more)"
        _assert_next_works(rig)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_cannot_start_a_writer_tells_all(tmp_path, victim, monkeypatch):
    with CrewRig(tmp_path / "run", 2) as rig:
        _assert_next_works(rig, 1)
        state = make_whole(2)
        one = rig.ranks[victim]
        one.kill()
        rig.ranks[1 - victim].submit(state, 2)
        with monkeypatch.context() as patch:
            patch.setattr("sys.executable", str(tmp_path / "nothing"))
            one.submit(state, 2)
        reports = rig.settle()
        why = f"rank {victim}: cannot start the writer process: No such file"
        assert all(report.error.startswith(why) for report in reports)
        _assert_next_works(rig, 3)


def test_a_branch_that_was_moved_is_told_to_all(tmp_path):
    with CrewRig(tmp_path / "run", 2) as rig:
        _assert_next_works(rig, 1)
        rig.repo.commit_state({"a": 1}, message="theirs")
        reports = rig.commit(make_whole(2), 2)
        assert len({report.error for report in reports}) == 1
        assert "where this run left it" in reports[0].error


def test_a_gate_refuses_it_for_all(tmp_path):
    with CrewRig(tmp_path / "run", 2) as rig:
        rig.repo.set_config("gate.max", "1")
        reports = rig.commit(make_whole(1), 1)
        assert [report.is_refused for report in reports] == [True, True]
        assert len({report.error for report in reports}) == 1


# Replicas check each other.


def make_replica(seed):
    """A state of 1.5 MiB, of which replicas divide each tensor among them."""
    generator = torch.Generator().manual_seed(seed)
    return {"model": {f"w{at}": torch.randn(300, 325, generator=generator) for at in range(4)}}


def _commit_checked(rig, step, others=None):
    """Commit the state of replicas; return what came of the check."""
    (report, *more) = rig.commit(make_replica(step), step, others)
    assert report.error is None
    assert {one.agreement for one in more} == {report.agreement}, "all ranks are told"
    assert rig.repo.show(report.commit).agreement == report.agreement
    assert report.is_disputed == (report.agreement.differed > 0)
    return report.agreement


@pytest.mark.parametrize("nodes", rest_slow([None, "abc"]))
def test_replicas_agree_or_the_commit_says_which_do_not(tmp_path, nodes):
    """On one machine they read each other's memory, on several they send what they check."""
    with CrewRig(tmp_path / "run", 3, nodes=nodes) as rig:
        rig.check(array=2)
        assert _commit_checked(rig, 1) == Agreement(1, 4)
        state = make_replica(2)
        state["model"]["w2"].view(torch.int32)[150, 0] ^= 1 << 20
        found = _commit_checked(rig, 2, {1: state})
        dispute = Dispute("model.safetensors", "w2", 0, (0, 1, 2), (0, 1, 2))
        assert found == Agreement(0, 4, 1, (dispute,)), "each keeps a third of it"
        assert _commit_checked(rig, 3) == Agreement(1, 4)
        assert rig.repo.upkeep.fsck(data=True).problems == ()


@pytest.mark.slow
def test_a_writer_that_is_killed_while_it_checks_fails_the_commit_as_any_other(tmp_path):
    with CrewRig(tmp_path / "run", 2) as rig:
        for array, victim in ((0, 1), (1, 0)):
            rig.check(array)
            rig.start(victim, "check")
            reports = rig.commit(make_replica(1), 1)
            why = f"rank {victim}: its writer ended (killed by signal 9)"
            assert all(report.error.startswith(why) for report in reports)
            assert [*rig.repo.log()] == []
        assert _commit_checked(rig, 1).agreed == 1
        _assert_holds(rig, make_replica(1), "main")
