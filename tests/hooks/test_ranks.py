"""Two real processes over gloo: resumed, killed, rolled back, and always of one mind.

All runs but the killed one share two processes, because starting them is what takes long.
"""

from __future__ import annotations

import importlib.util
import json
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from mvc import ConflictError, Repo, clone
from mvc_hooks import Checkpointer
from mvc_hooks.ranks.pieces import RANKS
from support.once import make_once
from support.programs import call_ranks, start_calls

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("distributed_training.py")
TOTAL = 10
BACK = {"to": "last", "min_steps_back": 1, "skip_batches": 0}
POWER_SGD = {
    "total": TOTAL,
    "power_sgd": {"matrix_approximation_rank": 2, "start_powerSGD_iter": 3, "min_compression_rate": 0.5},
    "bucket_cap_mb": 0.003,
}  # fmt: skip
RUNS = [
    {"name": "plain", "total": TOTAL},
    {"name": "back", "total": TOTAL, "bad_rank": 1, "bad_steps": [7], "ladder": BACK},
    {"name": "ring", "total": TOTAL, "bad_rank": 1, "bad_steps": [8], "ladder": BACK,
     "ring": {"every": 3, "keep": 3}},
    {"name": "signal", "total": TOTAL, "signal_rank": 1, "signal_step": 6},
    {"name": "signal", "total": TOTAL, "seed": 9},
    {"name": "buffers", "total": TOTAL, "sync_buffers": False, "own_generators": [0, 1]},
    {"name": "buffers in two", "total": 6, "sync_buffers": False},
    {"name": "buffers in two", "total": TOTAL, "sync_buffers": False, "seed": 4},
    {"name": "micro", "total": 6, "micro": 3, "own_generators": [1]},
    {"name": "micro in two", "total": 3, "micro": 3},
    {"name": "micro in two", "total": 6, "micro": 3, "seed": 2},
    {"name": "power", **POWER_SGD},
    {"name": "power in two", **POWER_SGD, "total": 6},
    {"name": "power in two", **POWER_SGD, "seed": 5},
    {"name": "diverse", "total": 6, "diverse": True},
    {"name": "split", "total": 6, "split": True},
    {"name": "uneven", "total": TOTAL, "odd_rank": 1, "odd_step": 3},
    {"name": "broken", "total": TOTAL, "break_step": 3},
    {"name": "behind", "total": 9, "quiet": True, "options": {"every": 1, "when_behind": "skip"},
     "writer_rank": 1, "writer": {4: signal.SIGSTOP, 8: signal.SIGCONT}},
    {"name": "mended", "total": 8, "options": {"every": 2, "on_failure": "continue"},
     "writer_rank": 1, "writer": {4: signal.SIGSTOP, 5: signal.SIGKILL}},
    {"name": "sharded", "total": TOTAL, "shard": True},
    {"name": "damaged", "total": 6, "shard": True},
    {"name": "damaged", "total": TOTAL, "shard": True, "seed": 6, "damages": True},
    {"name": "shards and replicas", "total": 4, "shard": True},
    {"name": "shards and replicas", "total": 8},
    {"name": "shards and replicas", "total": TOTAL, "shard": True},
    {"name": "apart", "total": 6, "shard": True, "nodes": [0, 1], "store": True},
    {"name": "apart", "total": 8, "shard": True, "nodes": [0, 1], "lost": [1], "seed": 4},
    {"name": "apart", "total": 9, "shard": True, "nodes": [1, 0], "seed": 5},
    {"name": "apart", "total": TOTAL, "shard": True, "nodes": [0, 1], "lost": [0], "seed": 6},
    {"name": "apart back", "total": TOTAL, "shard": True, "nodes": [0, 1], "store": True,
     "bad_rank": 1, "bad_steps": [7], "ladder": BACK},
    {"name": "stages", "total": 2, "stages": True},
    {"name": "odd value", "total": 2, "odd_value_step": 0},
    {"name": "odd value later", "total": 4, "odd_value_step": 3},
    {"name": "strangers", "total": 2, "nodes": [0, 1]},
    {"name": "flipped", "total": 23, "flip_rank": 1, "flip_step": 3,
     "options": {"every": 1, "healthy_after": 1, "detectors": []}},
    {"name": "clock", "total": 20, "options": {"every": None, "every_seconds": 0.02}},
]  # fmt: skip


FOUR = [
    {"name": "plain", "total": 6, "options": {"every": 2}},
    {"name": "back", "total": 6, "options": {"every": 2}, "bad_rank": 3, "bad_steps": [5], "ladder": BACK},
    {"name": "in two", "total": 4, "options": {"every": 2}},
    {"name": "in two", "total": 6, "options": {"every": 2}, "seed": 9},
    {"name": "unclosed", "total": 3, "options": {"every": 2}, "is_left_open": True},
]  # fmt: skip


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    def train(folder):
        call_ranks(PROGRAM, "make_runs", 2, folder, runs=RUNS)

    folder = make_once(tmp_path_factory, "ranks", train)

    def say(name, which=0):
        numbers = [number for number, run in enumerate(RUNS) if run["name"] == name]
        paths = [folder / name / f"said-{rank}-{numbers[which]}.json" for rank in (0, 1)]
        return [SimpleNamespace(**json.loads(path.read_text())) for path in paths]

    return SimpleNamespace(folder=folder, say=say)


def walk(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from walk(item, (*path, number))
    else:
        yield path, value.numpy().tobytes() if isinstance(value, torch.Tensor) else value


def assert_same_end(lab, left, right, size=2):
    for rank in range(size):
        ends = [
            torch.load(lab.folder / name / f"out-{rank}.pt", weights_only=False)
            for name in (left, right)
        ]
        assert dict(walk(ends[0])) == dict(walk(ends[1]))


def test_the_ranks_of_a_run_are_not_the_same(lab):
    ends = [
        torch.load(lab.folder / "plain" / f"out-{rank}.pt", weights_only=False) for rank in (0, 1)
    ]
    assert not torch.equal(ends[0]["rng"], ends[1]["rng"])
    assert torch.equal(ends[0]["model"]["0.weight"], ends[1]["model"]["0.weight"])
    repo = Repo.open(lab.folder / "plain")
    told = repo.load_state("main")[RANKS]
    (order,) = told.pop("buckets")
    assert told == {"size": 2, "split": [["dataloader"]]}
    assert {name for bucket in order for name in bucket} == {
        f"model.{name}" for name, _ in make_parts(1)[0].named_parameters()
    }
    pieces = {
        tuple(one["at"]): one["value"]
        for one in repo.load_state("main", folder="ranks/1")["pieces"]
    }
    assert not torch.equal(pieces["rng",]["torch"], repo.load_state("main")["rng"]["torch"])
    assert ("model", "1.running_mean") in pieces


def test_rank_0_speaks_for_all_and_names_the_others(lab):
    said, other = (Path(lab.folder, f"log{rank}.txt").read_text().splitlines() for rank in (0, 1))
    assert other == []
    assert sum("commits hold " in line for line in said) == len(RUNS) - 4, "four are refused"
    assert any("INFO:mvc_hooks:rank 1: a new repository in" in line for line in said)
    assert any("branch 'main' goes on from" in line for line in said)
    assert not any("Traceback" in line for line in said)
    assert not any("environment: " in line for line in said)
    lost = [line.split(";")[0] for line in said if "in no commit" in line]
    own = "WARNING:mvc_hooks:in no commit: {}model.noise (a torch._C.Generator of its own)"
    assert lost == [own.format(""), own.format("rank 1: ")]


def test_bad_news_of_one_rank_take_both_back(lab):
    for said in lab.say("back"):
        assert said.rollbacks == [[7, 4]]
    assert_same_end(lab, "plain", "back")


def test_each_rank_goes_back_to_its_own_snapshot(lab):
    for said in lab.say("ring"):
        assert said.rollbacks == [[8, 6]]
    assert_same_end(lab, "plain", "ring")


def test_a_signal_to_one_rank_commits_and_ends_both(lab):
    for said in lab.say("signal"):
        assert (said.error, said.message) == ("EndedError", "SIGTERM")
    for said in lab.say("signal", 1):
        assert said.resumed == 6
        assert said.changes == []
    assert_same_end(lab, "plain", "signal")


def test_buffers_that_differ_come_back_to_their_rank(lab):
    ends = [
        torch.load(lab.folder / "buffers" / f"out-{rank}.pt", weights_only=False) for rank in (0, 1)
    ]
    assert not torch.equal(*(end["model"]["1.running_mean"] for end in ends))
    assert_same_end(lab, "buffers", "buffers in two")


def test_accumulating_runs_resume(lab):
    assert_same_end(lab, "micro", "micro in two")


def test_power_sgd_resumes_exactly(lab):
    for said in lab.say("power in two", 1):
        assert said.resumed == 6
    assert_same_end(lab, "power", "power in two")


def test_ranks_with_models_of_their_own_are_refused(lab):
    for said in lab.say("diverse"):
        assert said.error == "UnsupportedError"
        assert "model.0.weight differs between rank 0 and rank 1" in said.message


def test_stages_of_a_pipeline_are_refused(lab):
    for said in lab.say("stages"):
        assert said.error == "UnsupportedError"
        assert said.message == "rank 0 has model.0.weight, and rank 1 has not"
        assert "mvc_hooks.dcp" in said.hint


def test_an_optimizer_with_state_on_one_rank_alone_is_refused(lab):
    for said in lab.say("split"):
        assert said.error == "UnsupportedError"
        assert said.message == "optimizer differs between rank 0 and rank 1"
        assert "fully_shard" in said.hint
    assert [one.annotations.step for one in Repo(lab.folder / "split").log()] == [0]


def test_a_value_that_one_rank_cannot_store_is_told_by_all(lab):
    """At the start nothing begins; later the commit fails, and no rank waits for another."""
    first, second = lab.say("odd value")
    assert first.error == second.error == "UnsupportedError"
    assert first.message == second.message
    assert 'state["values"]["odd"] is a function; mvc stores only data' in first.message
    assert Repo(lab.folder / "odd value").branches.list() == []
    for said in lab.say("odd value later"):
        assert said.error == "CommitFailedError"
        assert "commit of step 4 failed: rank 1: " in said.message
        assert 'state["values"]["odd"] is a function; mvc stores only data' in said.message


def test_a_commit_that_fails_stops_both_ranks(lab):
    for said in lab.say("broken"):
        assert said.error == "CommitFailedError"


def test_ranks_whose_states_have_grown_apart_are_told_where(lab):
    for said in lab.say("uneven"):
        assert said.error == "CommitFailedError"
        assert "rank 1" in said.message
        assert (
            "optimizer.state.0.odd is missing on rank 0 and float32 [3] on rank 1" in said.message
        )


def test_the_clock_of_rank_0_counts(lab):
    first, second = lab.say("clock")
    assert len(first.commits) > 1
    assert second.steps == first.steps == list(range(1, 21))


def test_a_bit_that_differs_on_one_rank_is_told_by_the_commit(lab):
    """A commit of each step, of which every 16 in a row check all; the parameter stays another one."""
    first, second = lab.say("flipped")
    assert first.disputed == second.disputed, "all ranks hear of it"
    assert 1 <= len(first.disputed) <= 2
    repo = Repo.open(lab.folder / "flipped")
    by_step = {entry.step: entry for entry in repo.log("main")}
    for step in first.disputed:
        (dispute,) = by_step[step].agreement.disputes
        assert (dispute.tensor, dispute.chunk) == ("4.weight", 0)
        assert {dispute.stored, dispute.checked} == {(0,), (1,)}
    # Nothing that comes until all was checked again is known to be good.
    healthy = [step for step, entry in by_step.items() if entry.is_healthy]
    assert 1 in healthy
    assert not [step for step in healthy if step >= first.disputed[0]]
    said = Path(lab.folder, "log0.txt").read_text().splitlines()
    told = [line for line in said if line.startswith("WARNING:mvc_hooks:replicas: ")]
    assert len(told) == len(first.disputed)
    assert "4.weight in model.safetensors differs in chunk 0 between rank" in told[0]
    alarms = [one for one in repo.runs.read("main").alarms if one.cause == "replicas"]
    assert sorted(one.step for one in alarms) == first.disputed


def test_healthy_runs_raise_no_alarm_and_check_everything(lab):
    """Their ranks differ in buffers, gradients, generators, and what a hook keeps."""
    for name in ("plain", "back", "ring", "buffers", "micro", "power", "sharded", "apart", "clock"):
        repo = Repo.open(lab.folder / name / ("node0" if name == "apart" else ""))
        found = [entry.agreement for entry in repo.log("main") if entry.agreement is not None]
        assert not any(one.differed for one in found), name
        assert found or name in ("sharded", "apart"), name


def test_training_processes_say_nothing_for_a_commit(lab):
    """Steps 4 and 8 end with a commit; at the first three, and at the tenth, ranks compare what they saw.

    One run passes no loss, and skips some commits.
    """
    for name in ("plain", "behind", "sharded"):
        for said in lab.say(name):
            assert set(said.commits) >= {4}
            assert {step: said.calls[step] for step in map(str, range(4, 9))} == {
                str(step): ["all_reduce"] for step in range(4, 9)
            }


def test_all_ranks_have_the_same_commits(lab):
    for name in ("plain", "back", "sharded"):
        first, second = lab.say(name)
        assert first.ids == second.ids
        assert None not in first.ids
        assert first.commits == second.commits


def test_if_a_writer_is_behind_all_ranks_skip_the_commit(lab):
    first, second = lab.say("behind")
    assert first.skipped == second.skipped
    assert {6, 7} <= set(first.skipped)
    assert first.commits == second.commits
    assert set(first.commits) | set(first.skipped) == set(range(10))


def test_a_writer_that_dies_fails_its_commit_on_all_ranks_and_no_other(lab):
    for said in lab.say("mended"):
        errors = dict(zip(said.commits, said.errors, strict=True))
        assert "rank 1" in errors[4]
        assert [step for step, error in errors.items() if error is None] == [0, 2, 6, 8]


def test_a_commit_that_cannot_be_read_on_one_rank_is_left_by_all(lab):
    for said in lab.say("damaged", 1):
        assert said.resumed == 4
    assert_same_end(lab, "sharded", "damaged")
    assert Repo.open(lab.folder / "damaged").show("diverged/main/6").annotations.step == 6


def test_a_sharded_commit_is_the_whole_model(lab):
    state = Repo.open(lab.folder / "sharded").load_state("main")
    end = torch.load(lab.folder / "sharded" / "out-0.pt", weights_only=False)
    for name, value in end["model"].items():
        assert torch.equal(state["model"][name], value), name
    assert state["optimizer"]["state"][0]["exp_avg"].shape == (32, 16)


def test_shards_and_replicas_take_over_from_each_other(lab):
    assert [lab.say("shards and replicas", which)[1].resumed for which in range(3)] == [0, 4, 8]


@pytest.mark.nightly
def test_four_processes(tmp_path):
    call_ranks(PROGRAM, "make_runs", 4, tmp_path, runs=FOUR)
    four = SimpleNamespace(folder=tmp_path)
    assert_same_end(four, "plain", "in two", 4)
    assert_same_end(four, "plain", "back", 4)
    assert not Repo.open(tmp_path / "plain").upkeep.fsck(data=True).problems
    last = Repo.open(tmp_path / "unclosed")
    assert last.load_state("main")["run"]["step"] == 3, "committed after the process group had gone"
    assert last.load_state("main", folder="ranks/3")["pieces"]
    _, parts = make_parts(4)
    with pytest.raises(ConflictError, match="of ranks 1 to 3 would be lost"):
        Checkpointer(tmp_path / "plain", **parts)


def make_parts(size):
    spec = importlib.util.spec_from_file_location("distributed_training", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    model = program.make_model({})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.8),
        "dataloader": program.make_loader(0, size),
    }


def test_another_number_of_ranks_is_refused_unless_allowed(lab, tmp_path):
    model, parts = make_parts(1)
    before = [param.clone() for param in model.parameters()]
    folder = lab.folder / "plain"
    with pytest.raises(ConflictError, match="has 1 rank, but the commit was made by 2 ranks"):
        Checkpointer(folder, **parts)
    assert all(map(torch.equal, before, model.parameters()))
    with Checkpointer(folder, allow=["ranks"], **parts) as ckpt:
        assert ckpt.step_count == TOTAL
    end = torch.load(folder / "out-0.pt", weights_only=False)
    assert torch.equal(model[0].weight, end["model"]["0.weight"])


def test_a_rank_that_is_killed_ends_the_other_and_both_resume(lab, tmp_path):
    run = {"name": "killed", "total": TOTAL, "kill_rank": 1, "kill_step": 6}
    ranks = start_calls(PROGRAM, "make_runs", 2, tmp_path, runs=[run])
    for rank in ranks:
        rank.communicate(600)
    assert ranks[1].returncode == -signal.SIGKILL
    assert ranks[0].returncode not in (0, None)
    runs = [{"name": "killed", "total": TOTAL, "seed": 3}]
    call_ranks(PROGRAM, "make_runs", 2, tmp_path, runs=runs)
    said = json.loads((tmp_path / "killed" / "said-1-0.json").read_text())
    assert said["resumed"] == 4
    assert_same_end(lab, "plain", tmp_path / "killed")


def test_machines_with_a_store_in_common_train_as_in_one_folder(lab):
    """Machine 1 loses its disk, then rank 0 is on the other machine, then machine 0 loses its disk."""
    assert_same_end(lab, "sharded", "apart")
    said = [lab.say("apart", which) for which in range(4)]
    assert [[one.resumed for one in pair] for pair in said] == [[0, 0], [6, 6], [8, 8], [9, 9]]
    replaced = Repo.open(lab.folder / "apart/node0")
    healthy = [replaced.show(one).annotations.step for one in replaced.runs.healthy("main")]
    assert 4 in healthy, "what the machine that was lost had found out"
    other = clone(str(lab.folder / "apart/store"), lab.folder / "a clone of the store")
    whole = torch.load(lab.folder / "apart/out-0.pt", weights_only=False)["model"]
    stored = load_file(other.worktree / "model.safetensors")
    assert all(
        torch.equal(stored[name], one) for name, one in whole.items() if "running" not in name
    )
    assert other.upkeep.fsck(data=True).problems == ()


def test_machines_with_a_store_in_common_roll_back(lab):
    assert_same_end(lab, "sharded", "apart back")
    (first, second) = lab.say("apart back")
    assert first.rollbacks == second.rollbacks == [[7, 4]]
    repo = Repo.open(lab.folder / "apart back/node0")
    diverged = next(one.name for one in repo.branches.list() if one.name.startswith("diverged/"))
    assert repo.load_state(diverged)["run"]["step"] == 7


def test_machines_that_share_nothing_are_refused_at_once(lab):
    for one in lab.say("strangers"):
        assert one.error == "UsageError"
        assert "rank 1 sees another folder than rank 0, and has no store" in one.message
        assert "mvc doctor --shared" in one.hint
        assert "mvc init --store URL" in one.hint
