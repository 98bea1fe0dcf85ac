"""A run grows through its gates; what they said is kept as notes."""

import pytest

from mvc import ConflictError, FormatError, NotFoundError, UsageError
from mvc.history.notes import write_notes
from mvc.scaling.results import RESULTS, SCALE_REF
from support.stockgit import git

GOOD = {
    "ranks": 2, "checks": 9, "mismatches": 0, "deviation_max": 0.0, "sync_p99_s": 0.01,
    "bandwidth_used": 0.9, "recovery_s": 3.0, "loss": 2.0,
}  # fmt: skip


@pytest.fixture
def run(repo):
    repo.commit("one", allow_empty=True)
    repo.runs.plan_scale(1, 4)
    return repo


def measure(ranks, **changes):
    return GOOD | {"ranks": ranks} | changes


def test_each_size_waits_for_the_one_before(run):
    assert run.runs.scale_status().next_ranks == 1
    with pytest.raises(ConflictError, match="2 ranks have to wait: nothing was judged on 1 yet"):
        run.runs.record_scale(measure(2))
    assert run.runs.record_scale(measure(1)).ok
    run.commit("two", allow_empty=True)
    failed = run.runs.record_scale(measure(2, sync_p99_s=0.081))
    assert [one.gate for one in failed.failed] == ["sync"]
    text = (
        "4 ranks have to wait: 2 failed at sync: P99 of a gradient sync is 0.081 s, at most 0.05 s"
    )
    for ask in (
        lambda: run.runs.record_scale(measure(4)),
        lambda: run.runs.scale_status().check(4),
    ):
        with pytest.raises(ConflictError, match=text):
            ask()
    assert run.runs.record_scale(measure(2)).ok
    run.runs.scale_status().check(4)
    assert run.runs.record_scale(measure(4)).ok
    status = run.runs.scale_status()
    assert (status.steps, status.next_ranks, set(status.results)) == ((1, 2, 4), None, {1, 2, 4})


def test_the_loss_is_that_of_the_size_before(run):
    run.runs.record_scale(measure(1, loss=1.0))
    run.runs.record_scale(measure(2, loss=1.5), limits={"loss_rise": 0.5})
    run.upkeep.gc(grace_s=0)
    (loss,) = run.runs.record_scale(measure(2, loss=1.06)).failed
    assert loss.text == "loss is 1.06, at most 1.05 after 1 at the size before"
    with pytest.raises(ConflictError, match="2 failed at loss"):  # a size that fails later counts
        run.runs.record_scale(measure(4))
    assert not run.upkeep.fsck(data=True).problems


def test_a_waiver_is_kept(run):
    run.runs.record_scale(measure(1, recovery_s=None), waive=["recovery"])
    result = run.runs.scale_status().results[1]
    assert result.ok
    assert [one.gate for one in result.verdicts if one.status == "waived"] == ["recovery"]
    text = git(run.git_dir, "log", "--notes=scale")
    assert "Gate: recovery waived - 30.0 (recovery was not measured)" in text


def test_results_of_what_was_left_do_not_count(run):
    run.runs.record_scale(measure(1))
    run.commit("two", allow_empty=True)
    run.runs.record_scale(measure(2))
    left = run.head.commit
    run.runs.rollback(run.runs.plan_rollback("HEAD~1"))
    assert run.runs.scale_status().next_ranks == 2
    assert run.runs.scale_status(left).next_ranks == 4


def test_notes_by_others_stay_and_pass_nothing(run):
    commit = run.head.commit
    for text in (b"Scale: passed\nRanks: 1", b"by hand", b"\xff\xfe"):
        write_notes(
            run._context.history, SCALE_REF, {commit: text}, message="x", stamp=run._context.stamp()
        )
        assert run.runs.scale_status().next_ranks == 1
    run.runs.record_scale(measure(1))
    assert run.runs.scale_status().next_ranks == 2
    note = run._context.notebook(RESULTS).find_note(commit)
    assert b"\xff\xfe" in run._context.history.read_blob(note)


def test_what_is_wrong_is_said_and_notes_nothing(repo):
    with pytest.raises(NotFoundError, match="no plan to grow is kept here"):
        repo.runs.scale_status()
    repo.runs.plan_scale(1, 4)
    assert repo.runs.scale_status().next_ranks == 1
    with pytest.raises(NotFoundError, match="has no commit yet"):
        repo.runs.record_scale(measure(1))
    repo.commit("one", allow_empty=True)
    with pytest.raises(UsageError, match="3 ranks are not in the plan"):
        repo.runs.record_scale(measure(3))
    with pytest.raises(UsageError, match="'typo' is not a gate"):
        repo.runs.record_scale(measure(1), waive=["typo"])
    with pytest.raises(NotFoundError):
        repo.runs.scale_status("nowhere")
    assert repo._context.history.find_ref(SCALE_REF) is None
    repo.set_config("scale.plan", "8 1")
    with pytest.raises(FormatError, match=r"scale\.plan is '8 1'"):
        repo.runs.scale_status()
