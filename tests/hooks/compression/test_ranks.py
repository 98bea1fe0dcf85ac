"""Two and four real processes over gloo: killed with SIGKILL, resumed in new ones, to the bit."""

import json
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from support.bounds import rest_nightly
from support.programs import call_ranks, start_calls

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("compressed_training.py")
SMALL, LARGE, TOTAL = 0.004, 25, 12
KILLED = [
    {"name": "torch"},
    {"name": "whole", "folder": "whole", "total": TOTAL, "cap": SMALL},
    {"name": "back", "folder": "back", "total": TOTAL, "cap": SMALL, "back_step": 10},
    {"name": "mixed", "folder": "mixed", "total": TOTAL, "cap": SMALL, "mixed": True},
    {"name": "killed", "folder": "killed", "total": TOTAL, "cap": SMALL, "kill_step": 7},
]
RESUMED = [
    {"name": "same", "folder": "killed", "total": TOTAL, "cap": SMALL},
    {"name": "other", "folder": "copy", "total": TOTAL, "cap": LARGE},
]


@pytest.fixture(scope="module", params=rest_nightly([2, 4]))
def lab(request, tmp_path_factory):
    folder, size = tmp_path_factory.mktemp("compressed"), request.param
    for rank in start_calls(PROGRAM, "make_runs", size, folder, runs=KILLED):
        text = rank.communicate(600)[1].decode()
        assert rank.returncode == -signal.SIGKILL, text
    shutil.copytree(folder / "killed", folder / "copy")
    call_ranks(PROGRAM, "make_runs", size, folder, runs=RESUMED)

    def say(name, rank=0):
        return SimpleNamespace(**json.loads((folder / f"said-{name}-{rank}.json").read_text()))

    def load(name, rank):
        where = next(one["folder"] for one in KILLED[1:] + RESUMED if one["name"] == name)
        return torch.load(folder / where / f"out-{name}-{rank}.pt", weights_only=False)

    return SimpleNamespace(say=say, load=load, size=size)


def _bits(value):
    if isinstance(value, dict):
        return {name: _bits(one) for name, one in value.items()}
    return value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


def _compare(lab, left, right):
    """Return the hooks whose models or memory differ in any bit, on any rank."""
    odd = set()
    for rank in range(lab.size):
        ends = [_bits(lab.load(name, rank)) for name in (left, right)]
        for part in ("models", "memory"):
            one, other = ends[0][part], ends[1][part]
            odd |= {name for name in one if one[name] != other[name]}
    return odd


def test_a_killed_run_goes_on_to_the_bit(lab):
    said = lab.say("same")
    assert (said.resumed, said.steps[0]) == (4, 5)
    assert _compare(lab, "whole", "same") == set()


def test_other_buckets_give_the_same_bits_where_sums_do(lab):
    """Two numbers have the same sum in any order; the signs are summed rank by rank."""
    assert lab.say("other").resumed == 4
    odd = _compare(lab, "whole", "other")
    assert "sign" not in odd
    assert lab.size > 2 or odd == set()


def test_a_rollback_takes_the_memory_back(lab):
    said = lab.say("back")
    assert not hasattr(said, "error"), said.error
    assert said.steps[9:11] == [10, 9]
    assert _compare(lab, "whole", "back") == set()


def test_the_errors_are_of_each_rank_and_the_factors_of_all(lab):
    first, second = (lab.load("whole", rank)["memory"] for rank in (0, 1))
    for name in ("fp16", "power", "sign"):
        assert any(one.any() for one in first[name]["errors"].values())
        assert _bits(first[name]["errors"]) != _bits(second[name]["errors"])
    assert first["bf16"]["errors"] == {}
    assert _bits(first["power"]["factors"]) == _bits(second["power"]["factors"])
    assert set(first["power"]["factors"]) == {"0.weight", "2.weight", "4.weight"}
    models = [lab.load("whole", rank)["models"] for rank in (0, 1)]
    assert _bits(models[0]) == _bits(models[1])


def test_what_is_sent_is_what_shapes_say(lab):
    said = lab.say("whole")
    for ratio, expected in said.ratios.values():
        assert ratio == pytest.approx(
            expected, rel=0.02
        )  # bits of each bucket are rounded up to bytes
    assert said.ratios["fp16"][0] == said.ratios["bf16"][0] == 2
    assert said.ratios["sign"][0] == pytest.approx(64 / lab.size, rel=0.1)
    assert said.metrics["compression"] == said.ratios["fp16"][0]


def test_casts_are_those_of_torch(lab):
    assert lab.say("torch").odd == []


def test_ranks_that_compress_otherwise_are_told(lab):
    for rank in range(lab.size):
        said = lab.say("mixed", rank)
        assert said.error.startswith("compression is Fp16(error_feedback=True, ")
        assert "PowerSgd(error_feedback=True, rank=3, start_step=2, extend=False)" in said.error
