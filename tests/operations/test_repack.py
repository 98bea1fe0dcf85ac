"""repack: less space, short chains, nothing to do the second time; and when ``--auto`` is due."""

import numpy as np

from mvc import Repo
from mvc.formats.decoding import Encoding
from mvc.operations.repack import make_plan, repack
from mvc.upkeep.repacked import read_note
from mvc.upkeep.versions import walk_all
from support.kept_repo import build_kept, count_reads, load_exactly


def pack_files(root):
    folder = root / ".mvc" / "chunks" / "packs"
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


class TestRun:
    def test_takes_less_and_is_the_same(self, root, whole_run):
        repo, commits = whole_run
        before = sum(repo._context.store.list_packs().packs.values())
        plan = repo.upkeep.plan_repack()
        assert plan.chunks
        result = repo.upkeep.repack(plan)
        after = sum(repo._context.store.list_packs().packs.values())
        assert result.pack_bytes == after < 0.8 * before
        assert result.deltas > len(commits)
        assert result.new_packs == len(repo._context.store.packs()) == 1
        assert [load_exactly(Repo.open(root), one) for one in commits] == list(range(12))
        assert repo.upkeep.fsck(data=True).ok

    def test_what_is_packed_well_stays(self, root, whole_run, monkeypatch):
        repo, _ = whole_run
        repo.upkeep.repack()
        commits = walk_all(repo._context)
        files = pack_files(root)
        note = (root / ".mvc" / "repacked").stat()
        reads = count_reads(monkeypatch)
        for other in (repo, Repo.open(root)):
            plan = other.upkeep.plan_repack()
            assert plan.is_empty
            result = other.upkeep.repack(plan)
            assert (result.removed_packs, result.new_packs, result.freed_bytes) == (0, 0, 0)
        assert pack_files(root) == files
        assert (root / ".mvc" / "repacked").stat().st_mtime_ns == note.st_mtime_ns
        assert reads == []
        assert read_note(repo._context) == [commits[0].id]

    def test_a_lost_note_costs_only_a_look(self, root, whole_run):
        repo, commits = whole_run
        repo.upkeep.repack()
        for text in (b"", b"no such thing\n", bytes(300), b"f" * 40 + b"\n"):
            (root / ".mvc" / "repacked").write_bytes(text)
            assert repo.upkeep.plan_repack().is_empty
            repo.upkeep.repack()
        assert load_exactly(repo, commits[0]) == 0

    def test_roundings_stay_roundings(self, whole_run):
        repo, _ = whole_run
        repo.upkeep.repack()
        encodings = np.concatenate([x.encodings for x in repo._context.store.copies().indexes])
        assert (encodings == Encoding.CAST).sum() == 12

    def test_only_one_commit(self, root, whole_run):
        """What ``commit --delta`` does: no other pack is touched, and no garbage."""
        repo, commits = whole_run
        context = repo._context
        before = pack_files(root)
        plan = make_plan(context, only=commits[5])
        assert len({pack for batch in plan.sweep.batches for pack in batch.remove}) == 1
        repack(context, plan)
        assert len(before.keys() - pack_files(root).keys()) == 2  # pack and index
        assert make_plan(context, only=commits[5]).chunks == 0
        assert load_exactly(repo, commits[5]) == 5


def test_repack_of_everything_kept(root):
    kept = build_kept(root)
    repo = Repo.open(root)
    repo.upkeep.repack(repo.upkeep.plan_repack(everything=True))
    kept.check(root)
    assert repo.upkeep.plan_repack().is_empty
