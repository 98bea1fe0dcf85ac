"""A run goes on with other numbers of ranks and workers, and is killed anywhere: real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mvc import Repo
from support.seeing_runs import SeeingRuns, list_ranks, read_seen

pytestmark = pytest.mark.torch

RUNS = SeeingRuns(Path(__file__).with_name("ordered_training.py"))
EPOCH_STEPS = 3


def prepare(folder):
    folder.mkdir()
    Repo.init(folder / "run")
    return folder


def words(steps, workers=0, micro=0, how="next"):
    return steps, workers, micro, how


@pytest.mark.slow
def test_ranks_and_workers_change_within_epochs(tmp_path):
    plain, changing = prepare(tmp_path / "plain"), prepare(tmp_path / "changing")
    RUNS.train(plain, 1, *words(12))
    RUNS.train(changing, 2, *words(4, micro=4))
    RUNS.train(changing, 4, *words(6, workers=2, how="own"))
    RUNS.train(changing, 3, *words(8, micro=3, how="own"))
    told = RUNS.train(changing, 1, *words(12, workers=2))
    assert "resumed at step 8" in told
    ranks = [len(list_ranks(changing, step)) for step in range(1, 13)]
    assert ranks == [2] * 4 + [4] * 2 + [3] * 2 + [1] * 4
    for step in range(1, 13):
        assert read_seen(changing, step) == read_seen(plain, step)
    for first in range(1, 13, EPOCH_STEPS):
        rows = [row for step in range(first, first + EPOCH_STEPS) for row in read_seen(plain, step)]
        assert sorted(int(row[0]) for row in rows) == list(range(60))


@pytest.mark.slow
def test_a_killed_run_goes_on_in_the_same_order(tmp_path):
    plain, killed = prepare(tmp_path / "plain"), prepare(tmp_path / "killed")
    RUNS.train(plain, 1, *words(40))
    for kill_at in (3, 10, 24):
        RUNS.kill(killed, kill_at, *words(40, workers=kill_at % 2 * 2, how="own"))
    RUNS.train(killed, 1, *words(40))
    for step in range(1, 41):
        assert read_seen(killed, step) == read_seen(plain, step)


@pytest.mark.nightly
def test_eight_ranks_and_three_see_what_one_does(tmp_path):
    plain, many = prepare(tmp_path / "plain"), prepare(tmp_path / "many")
    RUNS.train(plain, 1, *words(6))
    RUNS.train(many, 8, *words(2))
    RUNS.train(many, 3, *words(6))
    for step in range(1, 7):
        assert read_seen(many, step) == read_seen(plain, step)
    ends = [Repo.open(folder / "run").data.seen("HEAD", prove=True) for folder in (plain, many)]
    assert len({end.loaders[0].total.hex for end in ends}) == 1
    assert all(end.loaders[0].is_proven for end in ends)
