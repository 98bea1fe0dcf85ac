"""Real ranks, each with a copy of the data: one word for all, whichever has the damage."""

from __future__ import annotations

import shutil

import pytest

from mvc import Repo
from mvc.shards import ShardMap
from mvc.training import RunStore
from support.programs import call_ranks
from support.shard_sets import flip, write_map, write_set


def launch(folder, runs, size=2):
    """Return what each rank has said of each run."""
    said = call_ranks("support.shard_ranks", "make_runs", size, folder, runs=runs)
    return {run["name"]: texts for run, *texts in zip(runs, *said, strict=True)}


def prepare(folder, name, *damages, environ=None, **options):
    """Return a run of ranks with copies of the data; the damages get the folders of rank 1 and the next."""
    checks = []
    ranks = range(len(damages) + 1)
    for rank in ranks:
        place = folder / name / f"rank{rank}"
        write_set(place / "train")
        write_map(place / "train", place / "train.shards")
        checks.append(
            {"source": str(place / "train.shards"), "root": str(place / "train"), **options}
        )
    for rank, damage in enumerate(damages, 1):
        damage(folder / name / f"rank{rank}")
    environs = [(environ or {}).get(rank, {}) for rank in ranks]
    return {"name": name, "checks": checks, "steps": 4, "environ": environs}


def swap(place):
    one, other = place / "train/0.npy", place / "train/1.npy"
    one.rename(place / "kept")
    other.rename(one)
    (place / "kept").rename(other)


def remove(place):
    (place / "train/part/1.jsonl").unlink()


def add(place):
    (place / "train/new\n.npy").write_bytes(b"new")


def keep(_):
    pass


def make_older(place):
    path = place / "train.shards"
    found = ShardMap.read(path)
    path.write_bytes(ShardMap.build(found.root, found.shards[1:]).encode())


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    runs = [
        prepare(folder, "good", keep),
        prepare(folder, "flipped", lambda place: flip(place / "train/samples.tar", 700)),
        prepare(folder, "older", make_older),
        prepare(folder, "no folder", lambda place: shutil.rmtree(place / "train")),
        prepare(folder, "no map", lambda place: (place / "train.shards").unlink()),
        prepare(folder, "lazy", lambda place: flip(place / "train/2.npy", 140), lazy=True),
    ]
    shared = prepare(folder, "shared", keep)
    shared["checks"][1] = shared["checks"][0]
    flip(folder / "shared/rank0/train/2.npy", 3)
    runs.append(shared)
    return folder, launch(folder, runs)


pytestmark = pytest.mark.slow

HEAD = "DataError: the data is not what its shard map says:"
SWAPPED = (
    f"{HEAD}\n  rank 1: swapped shard 0.npy of train: holds what '1.npy' should hold\n"
    "  rank 1: swapped shard 1.npy of train: holds what '0.npy' should hold"
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("flipped", f"{HEAD} rank 1: changed shard samples.tar of train: has another content"),
        ("older", f"{HEAD} rank 1: other map train: rank 0 has one with a difference: 1 removed"),
        ("no folder", f"{HEAD} rank 1: missing map train: the folder does not exist"),
        ("shared", f"{HEAD} ranks 0-1: changed shard 2.npy of train: has another content"),
        ("lazy", f"{HEAD} rank 1: changed shard 2.npy of train: has another content"),
    ],
)  # fmt: skip
def test_both_ranks_say_which_shard_of_which_rank(said, name, text):
    folder, texts = said
    assert texts[name] == [text, text]
    steps = []
    if name == "lazy":  # the first step is before the first open
        steps = [0]
    with Repo.open(folder / name / "run") as repo:
        found = [entry.annotations.step for entry in repo.log()] if repo.head.commit else []
    assert found == steps


def test_a_map_that_one_rank_lacks_ends_both(said):
    _, texts = said
    assert len(set(texts["no map"])) == 1
    assert "rank 1: there is no shard map" in texts["no map"][0]


def test_good_data_trains_and_each_commit_has_its_map(said):
    folder, texts = said
    assert texts["good"] == ["", ""]
    wanted = (folder / "good/rank0/train.shards").read_bytes()
    with Repo.open(folder / "good/run") as repo:
        for entry in repo.log():
            assert repo.read_file(entry.info.id, "train.shards") == wanted
            state = RunStore(repo).outline_state(entry.info.id)
            assert state["data_record"]["shards"] == {"train": ShardMap.parse(wanted).tree}
        assert [entry.annotations.step for entry in repo.log()] == [4, 2, 0]


def test_four_ranks_with_damages_of_their_own_are_each_named(tmp_path):
    def remove_map(place):
        (place / "train.shards").unlink()

    def write_junk(place):
        (place / "train.shards").write_text("junk")

    runs = [
        prepare(tmp_path, "all", swap, remove, add),
        prepare(tmp_path, "maps", keep, remove_map, write_junk),
        prepare(tmp_path, "no check", keep, keep, keep, lazy=True, environ={2: {"PYTHONHOME": "/none"}}),
    ]  # fmt: skip
    said = launch(tmp_path, runs, 4)
    assert [len(set(texts)) for texts in said.values()] == [1, 1, 1]
    assert said["all"][0].splitlines() == [
        *SWAPPED.splitlines(),
        r"  rank 3: extra shard 'new\n.npy' of train: is not in the map",
        "  rank 2: missing shard part/1.jsonl of train: does not exist",
    ]
    assert "rank 2: there is no shard map" in said["maps"][0]
    assert "; rank 3: " in said["maps"][0]
    assert "rank 2: the process that checks shards ended with code 1" in said["no check"][0]
