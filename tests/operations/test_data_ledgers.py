"""What data seen and who read of a long history, and how they find the shards of samples."""

import json

import numpy as np
import pytest

from mvc import Identity, NotFoundError, Repo
from mvc.history.objects import ObjectStore
from mvc.operations import data_ledgers
from mvc.sampling import (
    BlockOrder,
    DrawnEntry,
    IdList,
    PlanEntry,
    SampleDigest,
    SamplePlan,
    Skips,
    Source,
)
from mvc.shards import Shard, ShardMap
from mvc.states.document import Document, cut_entry, encode_document, parse_document

LAYERS = {f"layer{number}": {"step": number, "betas": [0.9, 0.99]} for number in range(50)}


@pytest.fixture
def repo(tmp_path):
    Repo.init(tmp_path)
    return Repo.open(tmp_path, identity=Identity("Ada", "ada@example.org"))


def commit(repo, ledger, **more):
    entries = {name: entry.to_json() for name, entry in ledger.items()}
    state = {"w": np.zeros(2, np.float32), "layers": LAYERS, "data_record": {"ledger": entries}}
    return repo.commit_state({**state, **more}, message="a step").commit


def commit_map(repo, name, records):
    shards = [
        Shard(f"{n:03}.tar", 10, bytes([n % 256] * 32), count) for n, count in enumerate(records)
    ]
    made = ShardMap.build(name, shards)
    (repo.worktree / f"{name}.shards").write_bytes(made.encode())
    repo.add(f"{name}.shards")
    repo.commit(f"map {name}")
    return made


def move(entry, stop):
    positions = np.arange(entry.cursor, stop)
    found = entry.plan.locate(positions).index
    return entry.move(stop, SampleDigest.of("web", found), Skips())


def draw(entry, ids):
    return entry.join(DrawnEntry("index", IdList.of("loader", np.asarray(ids, np.int64))))


def count_reads(monkeypatch, ask):
    reads = []
    plain = ObjectStore.read
    monkeypatch.setattr(
        ObjectStore, "read", lambda self, one: reads.append(one) or plain(self, one)
    )
    ask()
    monkeypatch.undo()
    return len(reads)


@pytest.mark.parametrize("kind", ["plan", "drawn"])
def test_a_history_is_read_once_and_no_state_is_parsed_whole(repo, kind, monkeypatch):
    planned = PlanEntry(SamplePlan((Source("web", 1000),), batch=10))
    drawn = DrawnEntry("index")
    counts = []
    for length in (20, 40):
        for _ in range(20):
            planned, drawn = move(planned, planned.cursor + 10), draw(drawn, range(5))
            commit(repo, {"web": planned} if kind == "plan" else {"loader": drawn})
            drawn = drawn.unlisted
        monkeypatch.setattr(data_ledgers, "parse_document", None)
        with Repo.open(repo.worktree) as fresh:
            found = fresh.data.who_saw("3")
            assert len(found.affected) == length or kind == "plan"
        with Repo.open(repo.worktree) as fresh:
            counts.append(count_reads(monkeypatch, lambda one=fresh: one.data.who_saw("3")))
    assert counts[1] <= counts[0] + 20 * 6


def test_what_came_since_a_commit_reads_nothing_before_it(repo, monkeypatch):
    entry = PlanEntry(SamplePlan((Source("web", 1000),), batch=10))
    for _ in range(30):
        entry = move(entry, entry.cursor + 10)
        commit(repo, {"web": entry})
    with Repo.open(repo.worktree) as fresh:
        assert fresh.data.seen("HEAD", "HEAD~3").loaders[0].digest.count == 30
    with Repo.open(repo.worktree) as fresh:
        assert count_reads(monkeypatch, lambda: fresh.data.seen("HEAD", "HEAD~3")) < 40


def test_two_branches_part_where_they_part(repo):
    entry = move(PlanEntry(SamplePlan((Source("web", 1000),), batch=10)), 10)
    base = commit(repo, {"web": entry})
    repo.branches.create("side", "HEAD")
    for _ in range(3):
        entry = move(entry, entry.cursor + 10)
        commit(repo, {"web": entry})
    found = repo.data.seen("HEAD", "side")
    assert (found.since, found.loaders[0].digest.count) == (base, 30)


def test_a_node_that_is_cut_out_is_the_one_that_is_parsed():
    value = {"a": {"data": [1]}, "data": {"x": '\n  "data": ', "y": list(range(99))}, "z": {"q": 1}}
    text = encode_document(Document((), (), {**value, "layers": LAYERS}))
    assert cut_entry(text, "data") == parse_document(text).state["data"]
    assert cut_entry(text, "nothing") is None
    assert cut_entry(json.dumps(json.loads(text)).encode(), "data") is None  # laid out otherwise


# Shards.


def loader_facts(items, **more):
    return {"data": {"loader": {"items": items, **more}}}


def test_a_plain_loader_reads_the_map_of_its_size(repo):
    commit_map(repo, "train", [30, 70])
    commit_map(repo, "other", [5, 5])
    saw = commit(
        repo, {"loader": draw(DrawnEntry("index"), [3, 31])}, environment=loader_facts(100)
    )
    found = repo.data.who_saw(shard="001.tar")
    assert (found.source, found.wanted, found.affected) == ("loader", range(30, 100), (saw,))
    assert dict(repo.data.seen().loaders[0].samples[0].shards) == {"000.tar": 1, "001.tar": 1}


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (loader_facts(99), "loader has 99 samples, and no map has as many records: train 100"),
        (loader_facts(100, subset="ab"), "loader draws from a Subset"),
        ({}, "which map loader reads is not known"),
    ],
)
def test_why_the_shards_of_a_plain_loader_are_not_known(repo, facts, line):
    commit_map(repo, "train", [30, 70])
    commit(repo, {"loader": draw(DrawnEntry("index"), [3])}, environment=facts)
    with pytest.raises(NotFoundError) as caught:
        repo.data.who_saw(shard="001.tar")
    assert line in (caught.value.hint or "")


def test_a_shard_that_was_taken_down_is_found_in_the_commits_before(repo):
    first = commit_map(repo, "train", [30, 70])
    plan = SamplePlan((Source("web", 100, shards=first.tree),), batch=10, shuffle=False)
    saw = commit(repo, {"web": move(PlanEntry(plan), 40)})
    second = commit_map(repo, "train", [30])
    later = SamplePlan((Source("web", 30, shards=second.tree),), batch=10, shuffle=False)
    after = commit(repo, {"web": move(PlanEntry(later, 40, 40), 50)})
    found = repo.data.who_saw(shard="001.tar")
    assert [(one.commit, one.seen) for one in found.saw] == [(saw, 10)]
    assert (found.affected[0], found.affected[-1]) == (after, saw)


@pytest.mark.parametrize("has_map", [True, False])
def test_an_order_by_blocks_takes_its_sizes_from_the_map(repo, has_map):
    sizes = [10 + number % 7 for number in range(200)]
    tree = commit_map(repo, "web", sizes).tree if has_map else "0" * 64
    order = BlockOrder(np.array(sizes), 16)
    plan = SamplePlan((Source("web", sum(sizes), None, tree, order),), batch=10)
    entry = move(PlanEntry(plan), 100)
    assert "runs" not in order.to_json()  # a commit has but their hash
    saw = commit(repo, {"web": entry})
    found = repo.data.seen(prove=True).loaders[0]
    assert found.is_proven is has_map
    assert (found.times is None) is not has_map
    assert found.digest.count == 100
    if has_map:
        seen = plan.locate(np.arange(1)).index[0]
        shard = int(np.searchsorted(np.cumsum(sizes), seen, "right"))
        assert repo.data.who_saw(shard=f"{shard:03}.tar").affected == (saw,)


def test_windows_of_a_packed_stream_are_in_its_shards(repo):
    made = commit_map(repo, "web", [30, 70])
    order = BlockOrder(np.array([4, 9]), 2)
    source = Source("web", 13, None, made.tree, order, "packing")
    commit(repo, {"web": move(PlanEntry(SamplePlan((source,), batch=10)), 10)})
    assert repo.data.who_saw(shard="001.tar").wanted == range(4, 13)


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_source_that_the_newest_commit_does_not_have_is_looked_for_before(repo, is_empty):
    first = commit(repo, {"web": draw(DrawnEntry("index"), [1, 2])})
    state = (
        {"ledger": {}, "own": {}}
        if is_empty
        else {"ledger": {"new": DrawnEntry("index").to_json()}}
    )
    repo.commit_state({"data_record": state}, message="x")
    assert repo.data.who_saw("web:2").saw[0].commit == first
    with pytest.raises(NotFoundError, match="no source 'wet'") as caught:
        repo.data.who_saw("wet:3")
    assert caught.value.hint == f"sources are {'web' if is_empty else 'new'}"
