"""A run grows from 1 process to 8 through its gates, and a bit that flips on one rank holds it up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mvc import ConflictError, Identity, Repo
from support.programs import run_ranks

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("growing_training.py")
SLOW = {"sync_p99_s": 10.0, "bandwidth_used": 0.0, "recovery_s": 86_400.0, "loss_rise": 1.0}
"""What the clock says of processes that share two cores is noted, and fails nothing here."""


def train(folder, size, fault="none"):
    """Run on so many processes; return what was measured."""
    done = run_ranks(PROGRAM, size, folder, fault)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "measured.json").read_text())


@pytest.mark.slow
def test_a_run_grows_and_a_flipped_bit_holds_it_up(tmp_path):
    Repo.init(tmp_path / "run")
    repo = Repo.open(tmp_path / "run", identity=Identity("A Tester", "tester@example.org"))
    assert repo.runs.plan_scale(1, 8) == (1, 2, 4, 8)
    for size in (1, 2):
        result = repo.runs.record_scale(train(tmp_path, size), limits=SLOW)
        assert (result.ok, result.commit) == (True, repo.resolve("main"))
    bad = train(tmp_path, 4, "flip")
    assert (bad["mismatches"], bad["checks"]) == (1, 7)
    result = repo.runs.record_scale(bad, limits=SLOW)
    assert {one.gate for one in result.failed} == {"bits", "deviation"}
    refused = (
        r"8 ranks have to wait: 4 failed at bits: 1 of 7 checks found a rank that differs; at dev"
    )
    with pytest.raises(ConflictError, match=refused):
        repo.runs.scale_status().check(8)
    for size in (4, 8):
        assert repo.runs.record_scale(train(tmp_path, size), limits=SLOW).ok
    status = repo.runs.scale_status()
    assert status.next_ranks is None
    assert [one.annotations.step for one in repo.log("main")] == [30, 24, 18, 12, 6]
    assert len({status.results[ranks].commit for ranks in (1, 2, 4, 8)}) == 4
