"""repack: less space, short chains, nothing to do the second time; and when ``--auto`` is due."""

from __future__ import annotations

import numpy as np
import pytest

from mvc import Repo
from mvc.formats.decoding import Encoding
from mvc.operations.repack import plan_repack, run_repack
from mvc.storage.local import LocalStorage
from mvc.upkeep.pairs import find_pairs, plan_chains
from mvc.upkeep.repacked import AUTO_COMMITS, AUTO_PACKS, is_due, read_note, write_note
from mvc.upkeep.versions import walk_all
from support.kept_repo import WHO, build_kept, commit_step, load_exactly


@pytest.fixture
def run(root):
    """A repository with a dozen commits, all stored whole, and their ids."""
    repo = Repo.init(root)
    repo.identity = WHO
    repo.set_config("mvc.chunkbytes", "16384")
    return repo, [commit_step(repo, step, delta=False) for step in range(12)]


def count_reads(monkeypatch):
    found, real = [], LocalStorage.read_into

    def read_into(storage, key, offset, buffer):
        found.append((key, len(buffer)))
        real(storage, key, offset, buffer)

    monkeypatch.setattr(LocalStorage, "read_into", read_into)
    return found


def pack_files(root):
    folder = root / ".mvc" / "chunks" / "packs"
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


class TestRun:
    def test_takes_less_and_is_the_same(self, root, run):
        repo, commits = run
        before = sum(repo._context.store.list_packs().packs.values())
        plan = repo.plan_repack()
        assert plan.chunks
        result = repo.repack(plan)
        after = sum(repo._context.store.list_packs().packs.values())
        assert result.pack_bytes == after < 0.8 * before
        assert result.deltas > len(commits)
        assert result.new_packs == len(repo._context.store.packs()) == 1
        assert [load_exactly(Repo.open(root), one) for one in commits] == list(range(12))
        assert repo.fsck(data=True).ok

    def test_chains_stay_short(self, run):
        """Commit after commit, repack after repack."""
        repo, _ = run
        for step in range(12, 18):
            commit_step(repo, step, delta=step % 2 == 0)
            repo.repack()
            copies = repo._context.store.copies()
            assert int(copies.depths().max()) <= 4

    def test_what_is_packed_well_stays(self, root, run, monkeypatch):
        repo, _ = run
        repo.repack()
        commits = walk_all(repo._context)
        files = pack_files(root)
        note = (root / ".mvc" / "repacked").stat()
        reads = count_reads(monkeypatch)
        for other in (repo, Repo.open(root)):
            plan = other.plan_repack()
            assert plan.is_empty
            result = other.repack(plan)
            assert (result.removed_packs, result.new_packs, result.freed_bytes) == (0, 0, 0)
        assert pack_files(root) == files
        assert (root / ".mvc" / "repacked").stat().st_mtime_ns == note.st_mtime_ns
        assert reads == []
        assert read_note(repo._context) == [commits[0].id]

    def test_looking_again_changes_nothing(self, root, run):
        repo, _ = run
        repo.repack()
        files = pack_files(root)
        repo.repack(repo.plan_repack(everything=True))
        assert pack_files(root) == files

    def test_a_lost_note_costs_only_a_look(self, root, run):
        repo, commits = run
        repo.repack()
        for text in (b"", b"no such thing\n", bytes(300), b"f" * 40 + b"\n"):
            (root / ".mvc" / "repacked").write_bytes(text)
            assert repo.plan_repack().is_empty
            repo.repack()
        assert load_exactly(repo, commits[0]) == 0

    def test_roundings_stay_roundings(self, run):
        repo, _ = run
        repo.repack()
        encodings = np.concatenate([x.encodings for x in repo._context.store.copies().indexes])
        assert (encodings == Encoding.CAST).sum() == 12

    def test_only_one_commit(self, root, run):
        """What ``commit --delta`` does: no other pack is touched, and no garbage."""
        repo, commits = run
        context = repo._context
        before = pack_files(root)
        plan = plan_repack(context, only=commits[5])
        assert len({pack for batch in plan.sweep.batches for pack in batch.remove}) == 1
        run_repack(context, plan)
        assert len(before.keys() - pack_files(root).keys()) == 2  # pack and index
        assert plan_repack(context, only=commits[5]).chunks == 0
        assert load_exactly(repo, commits[5]) == 5


class TestPairs:
    def test_younger_to_older_and_never_in_a_circle(self, run):
        repo, _ = run
        commits = walk_all(repo._context)
        pairs = find_pairs(repo._context, reversed(commits), frozenset())
        order = {chunk: place for place, chunk in enumerate(pairs)}
        assert len(pairs) > 11
        for chunk, pair in pairs.items():
            assert order.get(pair.base, -1) < order[chunk]

    def test_the_same_weights_again(self, run):
        """A run that goes back and forth between two versions: A, B, A, B."""
        repo, _ = run
        for step in (20, 21, 20, 21, 20):
            commit_step(repo, step, delta=False)
        repo.repack()
        repo.repack(repo.plan_repack(everything=True))
        assert repo.fsck(data=True).ok
        assert load_exactly(repo, "HEAD~1") == 21

    def test_opposite_directions_on_two_branches(self, root):
        """One branch goes from A to B, the other from B to A; either may lose its history."""
        repo = Repo.init(root)
        repo.identity = WHO
        repo.set_config("mvc.chunkbytes", "16384")
        commit_step(repo, 1)
        repo.create_branch("back")
        for branch, steps in (("main", (2, 3)), ("back", (3, 2))):
            for step in steps:
                commit_step(repo, step, branch=branch, delta=branch == "main")
        repo.repack()
        repo.switch("back", force=True)
        repo.delete_branch("main", force=True)
        repo.gc(grace_s=0)
        repo.repack(repo.plan_repack(everything=True, grace_s=0))
        assert [load_exactly(repo, name) for name in ("back", "back~1")] == [2, 3]
        assert repo.fsck(data=True).ok
        assert repo.plan_gc(grace_s=0).is_empty

    def test_nothing_to_pair(self, run):
        repo, _ = run
        assert plan_chains(repo._context.store.copies(), {}) == {}


class TestDue:
    def test_new_repository(self, repo, context):
        assert not is_due(context)
        commit_step(repo, 1)
        assert not is_due(context)

    @pytest.mark.parametrize("fresh", [AUTO_COMMITS - 1, AUTO_COMMITS, AUTO_COMMITS + 7])
    def test_commits_since_the_note(self, repo, context, fresh):
        """However many there are, as long as the note can be seen or not."""
        noted = repo.commit("noted", allow_empty=True).commit
        write_note(context, [noted])
        for number in range(fresh):
            repo.commit(f"{number}", allow_empty=True)
        assert is_due(context) == (fresh >= AUTO_COMMITS)

    def test_many_small_packs(self, repo, context):
        for number in range(AUTO_PACKS):
            assert not is_due(context)
            repo.commit_state({"w": np.full(300, number)}, message="m", branch="other")
            write_note(context, [repo.resolve("other")])
        assert is_due(context)
        repo.repack()
        assert not is_due(context)


class TestAutoMode:
    def test_a_look_that_says_no_is_short(self, root, monkeypatch):
        """Of weights that have nothing to do with the last ones only a few bases are read."""
        repo = Repo.init(root, branch="main")
        repo.identity = WHO
        repo.set_config("mvc.chunkbytes", "16384")
        rng = np.random.default_rng(8)
        states = [
            {f"layer.{n}": rng.standard_normal((64, 64)).astype(np.float32) for n in range(60)}
            for _ in range(2)
        ]
        repo.commit_state({"m": states[0]}, message="one")
        reads = count_reads(monkeypatch)
        repo.commit_state({"m": states[1]}, message="two")
        assert not (repo._context.store.copies().bases >= 0).any()
        bodies = [size for key, size in reads if key.endswith(".pack")]
        assert 0 < len(bodies) <= 60 // 12 + 3

    def test_a_look_is_taken_once(self, root, monkeypatch, run):
        """Where the base is at hand, none is read from the store at all."""
        repo, _ = run
        from support.kept_repo import drifting_state

        reads = count_reads(monkeypatch)
        repo.commit_state(drifting_state(12), message="m", previous=drifting_state(11), delta=True)
        assert (repo._context.store.copies().bases >= 0).any()
        assert [key for key, _ in reads if key.endswith(".pack")] == []


def test_repack_of_everything_kept(root):
    kept = build_kept(root)
    repo = Repo.open(root)
    repo.repack(repo.plan_repack(everything=True))
    kept.check(root)
    assert repo.plan_repack().is_empty
