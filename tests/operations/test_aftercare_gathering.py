"""Small packs are joined as history grows, whoever commits; nothing else about them changes."""

import os
import statistics

import numpy as np
import pytest

from mvc import Repo, fs
from mvc.chunkstore import listing
from mvc.chunkstore.listing import CLASSES_BYTES, GATHER_PACKS, find_crowd
from mvc.history import object_gather
from mvc.operations.aftercare import gather
from mvc.training import CommitRequest, RunStore
from mvc.upkeep.sweep import upkeep_lock
from support.damage import flip
from support.images import make_image
from support.kept_repo import WHO
from support.stockgit import git


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(listing, "GATHER_PACKS", 4)


def packs_of(repo):
    return Repo.open(repo.worktree)._context.list_packs().packs


def commit_numbers(repo, numbers, **more):
    for number in numbers:
        values = np.random.default_rng(number).standard_normal(300).astype(np.float32)
        state, time_s = {"w": values, "n": number}, 1_700_000_000 + number
        repo.commit_state(state, message=f"{number}", step=number, time_s=time_s, **more)


def check_numbers(repo, numbers):
    reader = Repo.open(repo.worktree)
    for number in numbers:
        values = np.random.default_rng(number).standard_normal(300).astype(np.float32)
        state = reader.load_state(f"main@{number}", framework="numpy")
        assert state["w"].tobytes() == values.tobytes()
        assert state["n"] == number
    assert reader.upkeep.fsck(data=True).ok


@pytest.mark.slow
def test_packs_stay_few_without_any_option(repo):
    count = 2 * GATHER_PACKS + 7
    seen = []
    for number in range(count):
        commit_numbers(repo, [number])
        seen.append(len(packs_of(repo)))
    assert seen[:GATHER_PACKS] == [*range(1, GATHER_PACKS), 1]
    assert max(seen) < GATHER_PACKS
    assert seen[-1] == seen[-1 - GATHER_PACKS + 1]
    loose = list(repo._context.history.objects.loose.iterate())
    assert len(loose) < 350 < 4 * count
    check_numbers(repo, range(count))
    git(repo.git_dir, "fsck", "--strict")


def test_a_commit_costs_the_same_later(repo, monkeypatch):
    """Opens, syncs and listings: those of a commit in the second round are those in the first."""
    monkeypatch.setattr(listing, "GATHER_PACKS", 20)
    counts = []
    for name in ("open", "scandir", "listdir", "fsync"):
        real = getattr(os, name)

        def call(*args, _real=real, **kwargs):
            counts[-1] += 1
            return _real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)
    for number in range(60):
        counts.append(0)
        commit_numbers(repo, [number])
    first, last = statistics.median(counts[5:15]), statistics.median(counts[-16:-1])
    assert last <= first + 3  # in a Git pack, too, is looked for what is nowhere
    assert sum(counts) < 1.5 * len(counts) * first


def test_each_byte_is_written_once_more_per_class(repo, few, monkeypatch):
    written = []
    real = fs.DurableFile.write

    def write(file, buffers):
        if file.folder.name == "packs":
            written.append(sum(len(memoryview(one).cast("B")) for one in buffers))
        real(file, buffers)

    monkeypatch.setattr(fs.DurableFile, "write", write)
    monkeypatch.setattr(listing, "CLASSES_BYTES", ((0, 2**11), (2**11, 2**14)))
    for number in range(40):
        commit_numbers(repo, [number])
    stored = sum(Repo.open(repo.worktree)._context.list_packs().packs.values())
    assert 2 * stored < sum(written) < 3.4 * stored  # with the indexes
    assert len(packs_of(repo)) <= 6


def test_what_is_due():
    low, high = CLASSES_BYTES[1]

    class Listing:
        def __init__(self, sizes):
            self.packs = dict(enumerate(sizes))
            self.made_s = dict.fromkeys(self.packs, 0.0) | {3: -1.0}

    assert not find_crowd(Listing([high] * 500))
    assert not find_crowd(Listing([low - 1] * 49 + [low] * 49 + [high] * 9))
    assert len(find_crowd(Listing([low - 1] * 50 + [low] * 49))) == 50
    assert len(find_crowd(Listing([low] * 50 + [high]))) == 50
    due = find_crowd(
        Listing([high - 1] * 2500)
    )  # what an older version left: a part of it at a time
    assert due[0] == 3
    assert len(due) == 5
    assert len(find_crowd(Listing([low] * 2500))) == 2 * GATHER_PACKS


def test_every_road_of_a_commit(repo, few):
    """add and commit, commit_state and images end in the same place."""
    for number in range(8):
        path = repo.worktree / "w.npy"
        np.save(path, np.random.default_rng(number).standard_normal(300_000))
        repo.commit(f"{number}", paths=path, step=number)
        image = make_image({"m": {"w": np.full(300, number)}})
        RunStore(repo).commit_image(
            image, CommitRequest(message=f"{number}, image", branch="image")
        )
        assert len(packs_of(repo)) <= 6  # three of each class
    np.save(repo.worktree / "again.npy", np.random.default_rng(2).standard_normal(300_000))
    (repo.worktree / "w.npy").unlink()
    repo.checkout("main@2")
    assert (repo.worktree / "w.npy").read_bytes() == (repo.worktree / "again.npy").read_bytes()


def test_health_marks_are_gathered_too(repo, monkeypatch):
    """A training run writes one after each commit; no commit leads to them."""
    monkeypatch.setattr(object_gather, "_CROWD", 1)
    monkeypatch.setattr(object_gather, "FEW_OBJECTS", 5)
    for number in range(6):
        repo.runs.mark_healthy(repo.resolve("HEAD")) if number else None
        commit_numbers(repo, [number])
    assert not list(repo._context.history.objects.loose.iterate())
    assert len(repo.runs.healthy()) == 5
    git(repo.git_dir, "fsck", "--strict")


def test_not_while_somebody_else_is_at_work(repo, few):
    """A writer, a sweep or another gathering: the commit is done, and a later one joins."""
    other = Repo.open(repo.worktree, identity=WHO)._context
    commit_numbers(repo, range(3))
    with upkeep_lock(other):
        commit_numbers(repo, range(3, 6))
    assert len(packs_of(repo)) == 6
    with fs.shared_lock(repo.git_dir / "sweep.lock"):
        commit_numbers(repo, [6])
    assert len(packs_of(repo)) == 7
    commit_numbers(repo, [7])
    assert len(packs_of(repo)) == 1
    check_numbers(repo, range(8))


def test_chunks_that_a_kill_left_twice_are_kept_once(repo, few):
    """All of one pack lies in a long one already, which stays; then that is what counts."""
    commit_numbers(repo, range(3))
    kept = {path: path.read_bytes() for path in (repo.git_dir / "chunks/packs").iterdir()}
    commit_numbers(repo, [3])
    (joined,) = packs_of(repo)
    for path, data in kept.items():
        path.write_bytes(data)
    context = Repo.open(repo.worktree)._context
    context.store.gather([pack for pack in context.store.packs() if pack != joined])
    assert set(packs_of(repo)) == {joined}
    check_numbers(repo, range(4))


def test_a_damaged_pack_stays_as_it_is(repo, few):
    """It is for fsck to report, neither copied nor in the way of the others."""
    commit_numbers(repo, range(3))
    hurt = next((repo.git_dir / "chunks/packs").glob("*.pack"))
    flip(hurt)
    commit_numbers(repo, range(3, 5))
    assert hurt.exists()
    assert hurt.stem in packs_of(repo)
    assert len(packs_of(repo)) == 3  # it, the joined ones and the newest
    problems = Repo.open(repo.worktree).upkeep.fsck(data=True).problems
    assert {problem.pack for problem in problems if problem.pack} == {hurt.stem}


def test_what_an_add_stored_and_no_commit_names_stays(repo, few):
    path = repo.worktree / "w.npy"
    np.save(path, np.arange(300_000))
    repo.add(path)
    commit_numbers(repo, range(5), branch="other")
    assert len(packs_of(repo)) < 4
    path.unlink()
    repo.restore("w.npy")
    assert np.load(path).sum() == np.arange(300_000).sum()
    gather(repo._context, repo.resolve("other"))
    assert Repo.open(repo.worktree).upkeep.fsck(data=True).ok
