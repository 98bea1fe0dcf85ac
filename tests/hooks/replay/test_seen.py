"""A replay proves what a commit says of its samples, also where no weight depends on them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from mvc import ConflictError, Repo
from mvc_data import ConsistentDataLoader, ShardCheck, ShardedStream
from mvc_hooks import Checkpointer
from mvc_hooks.entry import load_entry
from mvc_lab import replay_steps
from mvc_lab.replay.__main__ import main
from support.bounds import rest_nightly, rest_slow

ENTRY = Path(__file__).with_name("seeing_training.py")
EVERY = 5


def make_run(folder, name, **options):
    torch.manual_seed(0)
    training = load_entry(f"{ENTRY}:{name}")()
    with Checkpointer(folder, every=EVERY, parts=training.parts, **options) as ckpt:
        for _ in ckpt.steps(15):
            ckpt.step(**training.train_step(ckpt))
    return folder


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("drawn"), "build")


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("planned"), "build_planned")


def edit(folder, edit_record):
    """Commit two commits of a run again on a branch, the second with another record of its data."""
    repo = Repo.open(folder)
    repo.branches.create("edited", "main@5")
    state = repo.load_state("main@10")
    edit_record(state)
    repo.commit_state(state, message="step 10", step=10, branch="edited")
    return repo


def test_another_order_of_the_same_weights_is_a_difference(drawn, capsys):
    assert main([str(drawn), "main@0", "15", f"{ENTRY}:build"]) == 0
    assert main([str(drawn), "main@0", "15", f"{ENTRY}:build_turned"]) == 1
    text = capsys.readouterr().out
    # The second pass begins after step 8.
    assert "DIFFERS at step 10: data_record.ledger.dataloader (saw 20 samples of digest" in text
    report = replay_steps(drawn, "main@0", 15, load_entry(f"{ENTRY}:build_turned"))
    assert report.compared == (5,)
    assert (report.difference.step, report.difference.others) == (10, 0)


def flip(record):
    digest = record["ledger"]["dataloader"]["digest"]
    record["ledger"]["dataloader"]["digest"] = f"{int(digest[0], 16) ^ 1:x}{digest[1:]}"


def count_one_more(record):
    record["ledger"]["dataloader"]["count"] += 1


def count_one_less(record):
    record["ledger"]["dataloader"]["count"] -= 1


def claim_a_skip(record):
    entry = record["ledger"]["dataloader"]
    entry["skipped"] = {"damaged": {"count": entry["count"], "digest": entry["digest"]}}


def move(record):
    record["ledger"]["dataloader"]["cursor"] += 2


def leave_out(record):
    del record["ledger"]["dataloader"]


def name_another(record):
    record["ledger"]["web"] = record["ledger"]["dataloader"]


def remove(record):
    record.clear()


EDITS = [count_one_less, leave_out, name_another, remove]


def test_a_flipped_digit_is_a_difference(drawn, tmp_path):
    check_edit(drawn, tmp_path, flip, "build")


@pytest.mark.slow
@pytest.mark.parametrize("edit_record", rest_nightly([*EDITS, count_one_more, claim_a_skip]))
def test_an_edited_record_is_a_difference(edit_record, drawn, tmp_path):
    check_edit(drawn, tmp_path, edit_record, "build")


@pytest.mark.slow
@pytest.mark.parametrize("edit_record", rest_nightly([*EDITS, flip, move]))
def test_an_edited_record_of_a_plan_is_a_difference(edit_record, planned, tmp_path):
    check_edit(planned, tmp_path, edit_record, "build_planned")


def check_edit(folder, tmp_path, edit_record, name):
    repo = shutil.copytree(folder, tmp_path / "run")
    edit(repo, lambda state: edit_record(state["data_record"]))
    report = replay_steps(repo, "edited", EVERY, load_entry(f"{ENTRY}:{name}"))
    source = "web" if edit_record is name_another else "dataloader"
    assert report.difference.name.startswith(f"data_record.ledger.{source} (saw ")
    assert (report.difference.step, report.difference.others) == (10, 0)


@pytest.mark.slow
def test_commits_of_an_older_version_say_nothing_and_later_ones_count_from_there(drawn, tmp_path):
    folder = shutil.copytree(drawn, tmp_path / "run")
    repo = Repo.open(folder)
    repo.branches.create("old", "main@0")
    for step in (0, EVERY):
        state = repo.load_state(f"main@{step}")
        del state["data_record"]
        repo.commit_state(state, message=f"step {step}", step=step, branch="old")
    make_run(folder, "build", branch="old")
    assert repo.data.seen("old").loaders[0].total.count == 2 * 10
    build = load_entry(f"{ENTRY}:build")
    report = replay_steps(folder, "old~3", 15, build)
    assert report.is_exact
    assert report.compared == (5, 10, 15)
    replayed = replay_steps(folder, "old~3", 15, load_entry(f"{ENTRY}:build_turned"))
    assert replayed.difference.step == 10


def _drop_content(samples):
    return torch.ones(len(samples), 2)


@pytest.mark.parametrize("lazy", rest_slow([False, True]))
def test_other_shards_than_those_of_the_run_are_named(tmp_path, lazy):
    data = tmp_path / "work" / "train"
    repo = Repo.init(data.parent)
    data.mkdir()
    for name in "ab":
        (data / f"{name}.jsonl").write_text("1\n2\n" * 10)
    repo.data.add("train")

    def build():
        stream = ShardedStream(data.with_suffix(".shards"))
        check = ShardCheck(data.with_suffix(".shards"), lazy=lazy)
        return load_entry(f"{ENTRY}:make_training")(
            ConsistentDataLoader(stream, 2, seed=1, shards=check, collate_fn=_drop_content)
        )

    torch.manual_seed(0)
    training, run = build(), tmp_path / "run"
    with Checkpointer(run, every=EVERY, parts=training.parts) as ckpt:
        for _ in ckpt.steps(10):
            ckpt.step(**training.train_step(ckpt))
    assert replay_steps(run, "main@5", 5, build).difference is None
    (data / "b.jsonl").write_text("1\n3\n" * 10)  # no weight depends on it
    with pytest.raises(ConflictError, match=r"changed shard b\.jsonl of train"):
        replay_steps(run, "main@5", 5, build)
    repo.data.add("train")
    with pytest.raises(
        ConflictError, match=r"not that of the commit: train \(1 changed\)"
    ) as caught:
        replay_steps(run, "main@5", 5, build)
    assert "allow" not in caught.value.hint
