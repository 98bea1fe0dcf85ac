"""A run goes on with other numbers of ranks and workers, and is killed anywhere: real processes."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from mvc import Repo
from support.bounds import rest_nightly
from support.sample_shards import write_shards
from support.seeing_runs import SeeingRuns, list_ranks, read_seen

pytestmark = pytest.mark.torch

RUNS = SeeingRuns(Path(__file__).with_name("ordered_training.py"))
SIZES, ENDLESS = (13, 7, 30, 22), 96


def prepare(folder, suffix=None):
    (folder / "seen").mkdir(parents=True)
    if suffix is not None:
        write_shards(folder / "shards", suffix, SIZES)
    Repo.init(folder / "run")
    return folder


def words(steps, workers=0, kind="numbers", micro=0, how="next"):
    return steps, workers, kind, micro, how


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "suffix"),
    rest_nightly(
        [
            ("numbers", None),
            ("mixed", "jsonl.zst"),
            ("packed", "jsonl.zst"),
            ("stream", "jsonl.zst"),
            ("stream", "parquet"),
            ("stream", "tar"),
            ("endless", "jsonl"),
            ("split", "jsonl"),
        ],
        kept=3,
    ),
)
def test_ranks_and_workers_change_within_epochs(tmp_path, kind, suffix):
    plain, changing = prepare(tmp_path / "plain", suffix), prepare(tmp_path / "changing", suffix)
    is_plain = kind == "numbers"
    RUNS.train(plain, 1, *words(16, 0, kind))
    RUNS.train(changing, 2, *words(2, 0, kind, micro=4 * is_plain))
    said = RUNS.train(changing, 3, *words(4, 2, kind, how="own" if is_plain else "next"))
    assert "resumed at step 2" in said
    if is_plain:
        RUNS.train(changing, 4, *words(6, 0, kind, micro=3, how="own"))
    RUNS.train(changing, 1, *words(16, 2, kind))
    ranks = [len(list_ranks(changing, step)) for step in range(1, 17)]
    assert ranks == [2] * 2 + [3] * 2 + [4 if is_plain else 1] * 2 + [1] * 10
    seen = [[read_seen(run, step) for step in range(1, 17)] for run in (plain, changing)]
    if kind in ("packed", "split"):  # ranks take micro-batches by turns of their own
        seen = [[sorted(step) for step in run] for run in seen]
    assert seen[0] == seen[1]
    check_epoch(kind, seen[1])


def check_epoch(kind, steps):
    size, length = {"numbers": (60, 3), "stream": (72, 6), "endless": (ENDLESS, 8)}.get(
        kind, (0, 16)
    )
    for first in range(0, 16 - length + 1, length) if size else ():
        samples = list(chain(*steps[first : first + length]))
        numbers = [int(one[0]) for one in samples] if kind == "numbers" else samples
        assert sorted(numbers) == list(range(size))
    if kind in ("packed", "split"):
        windows = list(chain(*steps))
        tokens = Counter(chain(*windows))
        assert len(windows) == 96
        assert all(tokens[number] >= number % 11 + 1 for number in range(72))
    if kind == "mixed":
        samples = list(chain(*steps))
        more = [sample for sample in samples if sample >= 1000]
        stream = [sample for sample in samples if sample < 1000]
        for size, drawn in ((40, more), (72, stream)):  # no sample twice before each came once
            assert all(
                len(set(drawn[at : at + size])) == len(drawn[at : at + size])
                for at in range(0, len(drawn), size)
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "suffix", "total", "kills"),
    [
        ("numbers", None, 40, [(3, 2), (10, 0), (24, 0)]),
        ("stream", "jsonl.zst", 14, [(3, 0), (8, 2)]),
    ],
)
def test_a_killed_run_goes_on_in_the_same_order(tmp_path, kind, suffix, total, kills):
    plain, killed = prepare(tmp_path / "plain", suffix), prepare(tmp_path / "killed", suffix)
    how = "own" if kind == "numbers" else "next"
    RUNS.train(plain, 1, *words(total, 0, kind))
    for kill_at, workers in kills:
        RUNS.kill(killed, kill_at, *words(total, workers, kind, how=how))
    RUNS.train(killed, 1, *words(total, 0, kind))
    for step in range(1, total + 1):
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
