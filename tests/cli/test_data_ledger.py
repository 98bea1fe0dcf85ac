"""mvc data seen and who, on a history whose ledgers are known."""

import numpy as np
import pytest

from mvc import Identity, Repo
from mvc.sampling import DrawnEntry, IdList, PlanEntry, SampleDigest, SamplePlan, Skips, Source
from mvc.shards import Shard, ShardMap
from support.cli import IDENTITY, Shell

PLAN_MAP = ShardMap.build("web", [Shard(f"{n}.tar", 10, bytes(32), 25) for n in range(4)])


def make_entries():
    """Return plan entries at 0, 40 and 90 of 100 samples, with sample 7 skipped from 40 on."""
    plan = SamplePlan((Source("web", 100, shards=PLAN_MAP.tree),), seed=2, batch=10, shuffle=False)
    skips = Skips().add_samples("web", 50, 59, reason="broken shard")
    entry = PlanEntry(plan)
    for stop, ids in ((40, range(40)), (90, [*range(40, 50), *range(60, 90)])):
        entry = entry.move(stop, SampleDigest.of("web", ids), skips)
        yield entry


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledger")
    Repo.init(folder)
    repo = Repo.open(folder, identity=Identity("Ada", "ada@example.org"))
    (folder / "web.shards").write_bytes(PLAN_MAP.encode())
    repo.add("web.shards")
    repo.commit("data")
    commits = []
    keys = DrawnEntry("key")
    for number, entry in enumerate(make_entries()):
        keys = keys.join(DrawnEntry("key", IdList.of("text", (f"k{number}", "both"))))
        ledger = {"dataloader": entry.to_json(), "text": keys.to_json()}
        state = {"w": np.zeros(3, np.float32), "data_record": {"ledger": ledger}}
        commits.append(repo.commit_state(state, message=f"step {number}", step=number).commit)
    return folder, commits


@pytest.fixture
def mvc(history):
    return Shell(history[0], dict(IDENTITY))


def test_what_a_commit_saw(mvc, history):
    found = mvc.json("data", "seen", "--list", "--prove")
    plan, text = found["loaders"]
    assert (found["commit"], found["since"]) == (history[1][1], history[1][0])
    assert (plan["samples"], plan["total"], plan["positions"]) == (40, 80, [40, 90])
    assert plan["is_proven"]
    assert plan["times"] == {"1": 40}
    assert plan["seen"][0]["ranges"] == [[40, 49], [60, 89]]
    assert plan["seen"][0]["shards"] == {"1.tar": 10, "2.tar": 15, "3.tar": 15}
    assert [(one["reason"], one["count"]) for one in plan["skipped"]] == [("broken shard", 10)]
    assert text["seen"][0]["keys"] == ["k1", "both"]


def test_what_came_between_two_commits_as_text(mvc):
    lines = mvc.ok("data", "seen", "HEAD~2..HEAD", "--prove").lines
    assert "  web epoch 0, 80 samples: 0-49, 60-89" in lines
    assert "  skipped (broken shard): web epoch 0, 10 samples: 50-59" in lines
    assert "  2 once, 1 twice" in lines
    assert sum("  proven:" in line for line in lines) == 2


def test_who_saw_a_sample_a_key_and_a_shard(mvc, history):
    first, last = history[1]
    assert mvc.json("data", "who", "web:3")["affected"] == [last, first]
    assert mvc.json("data", "who", "45")["affected"] == [last]
    skipped = mvc.json("data", "who", "web:55")
    assert skipped["affected"] == []
    assert skipped["saw"][0]["skipped"] == {"broken shard": 1}
    assert [one["total"] for one in mvc.json("data", "who", "text:both")["saw"]] == [2, 1]
    shard = mvc.json("data", "who", "--shard", "3.tar")
    assert (shard["first"], shard["stop"], shard["affected"]) == (75, 100, [last])
    assert (
        "1 commit learned from 3.tar (web:75-99)" in mvc.ok("data", "who", "--shard", "3.tar").out
    )


def test_wrong_words(mvc):
    for words, error in [
        (("seen", "HEAD", "HEAD"), "unexpected argument"),
        (("seen", "HEAD...HEAD"), "takes one revision"),
        (("seen", "nope"), "does not exist"),
        (("seen", "HEAD~2"), "does not say which samples it saw"),
        (("who",), "takes a sample, or --shard PATH"),
        (("who", "other:3"), "there is no source 'other'"),
        (("who", "web:x"), "is not the index of a sample"),
        (("who", "--shard", "9.tar"), "there is no shard '9.tar'"),
        (("ls", "--prove"), "--prove does not go with ls"),
    ]:
        answer = mvc("data", *words)
        assert answer.code != 0
        assert error in answer.error


def test_a_digest_that_is_wrong_is_not_proven(mvc, history):
    repo = Repo.open(history[0], identity=Identity("Ada", "ada@example.org"))
    plan = SamplePlan((Source("web", 100),), batch=10)
    entry = PlanEntry(plan).move(10, SampleDigest(10, (1, 2, 3, 4)), Skips())
    repo.branches.create("lie", "HEAD")
    state = {
        "w": np.zeros(3, np.float32),
        "data_record": {"ledger": {"dataloader": entry.to_json()}},
    }
    repo.commit_state(state, message="a lie", branch="lie")
    answer = mvc("data", "seen", "lie", "--prove")
    assert answer.code == 1
    assert "NOT PROVEN" in answer.out
