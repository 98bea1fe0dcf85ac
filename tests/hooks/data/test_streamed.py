"""Runs over streams, packed windows and mixtures go on with other ranks and workers: real processes."""

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

RUNS = SeeingRuns(Path(__file__).with_name("streamed_training.py"))
SIZES, ENDLESS = (13, 7, 30, 22), 96


def prepare(folder, suffix):
    write_shards(folder / "shards", suffix, SIZES)
    (folder / "seen").mkdir()
    Repo.init(folder / "run")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "suffix"),
    rest_nightly(
        [
            ("mixed", "jsonl.zst"),
            ("packed", "jsonl.zst"),
            ("stream", "jsonl.zst"),
            ("stream", "parquet"),
            ("stream", "tar"),
            ("endless", "jsonl"),
            ("split", "jsonl"),
        ],
        kept=2,
    ),
)
def test_ranks_and_workers_change_twice_within_an_epoch(tmp_path, kind, suffix):
    plain, changing = prepare(tmp_path / "plain", suffix), prepare(tmp_path / "changing", suffix)
    RUNS.train(plain, 1, 16, 0, kind)
    RUNS.train(changing, 2, 2, 0, kind)
    told = RUNS.train(changing, 3, 4, 2, kind)
    assert "resumed at step 2" in told
    RUNS.train(changing, 1, 16, 2, kind)
    ranks = [len(list_ranks(changing, step)) for step in range(1, 17)]
    assert ranks == [2] * 2 + [3] * 2 + [1] * 12
    for step in range(1, 17):
        if kind not in ("packed", "split"):
            assert read_seen(changing, step) == read_seen(plain, step)
        else:  # ranks take micro-batches by turns of their own
            assert sorted(read_seen(changing, step)) == sorted(read_seen(plain, step))
    check_epoch(kind, [read_seen(changing, step) for step in range(1, 17)])


def check_epoch(kind, steps):
    if kind == "stream":
        assert sorted(chain(*steps[:6])) == list(range(72))
        assert sorted(chain(*steps[6:12])) == list(range(72))
    elif kind == "endless":
        assert sorted(chain(*steps[:8])) == list(range(ENDLESS))
        assert sorted(chain(*steps[8:16])) == list(range(ENDLESS))
    elif kind in ("packed", "split"):
        tokens = Counter(chain(*chain(*steps)))
        lengths = {number: number % 11 + 1 for number in range(72)}
        windows = list(chain(*steps))
        assert len(windows) == 96
        assert all(tokens[number] >= length for number, length in lengths.items())
    else:
        samples = list(chain(*steps))
        more = [sample for sample in samples if sample >= 1000]
        stream = [sample for sample in samples if sample < 1000]
        for size, drawn in ((40, more), (72, stream)):  # no sample twice before each came once
            assert all(
                len(set(drawn[at : at + size])) == len(drawn[at : at + size])
                for at in range(0, len(drawn), size)
            )


@pytest.mark.slow
def test_a_killed_run_goes_on_in_the_same_order(tmp_path):
    plain, killed = (
        prepare(tmp_path / "plain", "jsonl.zst"),
        prepare(tmp_path / "killed", "jsonl.zst"),
    )
    RUNS.train(plain, 1, 14, 0, "stream")
    for kill_at, workers in ((3, 0), (8, 2)):
        RUNS.kill(killed, kill_at, 14, workers, "stream")
    RUNS.train(killed, 1, 14, 2, "stream")
    for step in range(1, 15):
        assert read_seen(killed, step) == read_seen(plain, step)
