"""Alarms and what is done about them, each compared with a plain run that did the same by itself."""

from __future__ import annotations

import pytest

from mvc import Repo
from mvc_hooks import Ring, rollback, stop

pytestmark = pytest.mark.torch

_NAN = float("nan")


def _back(**options):
    return [rollback(**{"to": "last", "min_steps_back": 1, "skip_batches": 0, **options}), stop(3)]


def _rate(run):
    return run.optimizer.param_groups[0]["lr"]


def _indexes(run):
    return [index for _, index, _ in run.seen]


@pytest.mark.parametrize("ring", [None, Ring(every=1, keep=4)])
def test_without_left_out_batches_the_steps_are_taken_again(keep, plain, ring):
    run = keep(every=3, ladder=_back(), ring=ring).steps(5)
    report = run.step(loss=_NAN)
    to = 3 if ring is None else 5
    assert (report.from_step, report.onset_step, report.to_step) == (6, 6, to)
    assert (report.to_commit is None) == (ring is not None)
    assert report.skipped == "none"
    run.steps(8 - to)
    measure = plain(8)
    assert [one for one in run.seen[6:] if one not in measure.seen] == []
    assert run.now() == measure.now()


def test_a_rollback_into_the_ring_commits_what_it_went_on_from(keep, plain, tmp_path):
    run = keep(every=4, ladder=_back(), ring=Ring(every=1, keep=3)).steps(6)
    run.step(loss=_NAN)
    assert run.ckpt.step_count == 6
    run.steps(3)
    run.ckpt.close()
    repo = Repo.open(tmp_path / "run")
    assert [one.annotations.step for one in repo.log("main")] == [8, 4]
    assert keep(seed=8).steps(1).now() == plain(9).now()


def test_fewer_batches_than_steps_are_left_out_around_the_onset(keep):
    run = keep(every=4, ladder=_back(skip_batches=2)).steps(6)
    report = run.step(loss=_NAN)  # its batch, the seventh, has index 6
    assert (report.to_step, report.skipped) == (4, "6-7")
    run.steps(4)
    assert _indexes(run) == [*range(7), 4, 7, 8, 9]
