"""Every byte of every run arrives, and no other is touched, whoever moves it."""

import threading

import pytest
import torch

from mvc_hooks.snapshot import moving

pytestmark = pytest.mark.torch


def _move(sizes):
    gap, total = 3, sum(sizes) + 3 * len(sizes)
    source = torch.randint(0, 255, (total,), dtype=torch.uint8)
    target, wanted = torch.full((total,), 255, dtype=torch.uint8), None
    wanted, runs, start = target.clone(), [], 0
    for size in sizes:
        runs.append((target.data_ptr() + start, source.data_ptr() + start, size))
        wanted[start : start + size] = source[start : start + size]
        start += size + gap
    moving.move_runs(runs)
    assert torch.equal(target, wanted)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_by_several_threads(monkeypatch, threads):
    monkeypatch.setattr(moving, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(moving, "_WORTH_BYTES", 5000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    before = set(threading.enumerate())
    for sizes in ([], [0], [1], [999, 1000, 1001], [5000], [123_457, 0, 1, 77_000], [1] * 50):
        _move(sizes)
    assert set(threading.enumerate()) <= before  # one of another test may end meanwhile


def test_as_it_is():
    _move([2**26, 2**25 + 1, 7])
