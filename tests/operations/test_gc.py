"""gc: what goes, what stays, what it costs when there is nothing to do, and the plan before."""

import os
import time

import pytest

from mvc import ConflictError, CorruptionError, Repo
from mvc.history.object_sweep import list_garbage, remove_objects
from mvc.history.reachability import DAY_S, reachable_objects
from mvc.operations.gc import gc, plan_gc
from mvc.storage.local import LocalStorage
from mvc.upkeep.sweep import upkeep_lock
from support.kept_repo import WHO, build_kept, commit_step, load_exactly, make_old
from support.releases import released_commits


@pytest.fixture
def kept(root):
    return build_kept(root)


@pytest.fixture
def swept(root, kept):
    """Like ``kept``, and nothing left to remove."""
    Repo.open(root).upkeep.gc(grace_s=0)
    return kept


@pytest.fixture
def repo(root):
    """The repository that ``kept`` made."""
    return Repo.open(root, identity=WHO)


@pytest.fixture
def reads(monkeypatch):
    """The reads of pack bodies since the fixture was made."""
    found, real = [], LocalStorage.read_into

    def read_into(storage, key, offset, buffer):
        if key.endswith(".pack"):
            found.append((key, offset, len(buffer)))
        real(storage, key, offset, buffer)

    monkeypatch.setattr(LocalStorage, "read_into", read_into)
    return found


def snapshot(root):
    """Return what lies in ``.mvc``: names, inodes, lengths, times."""
    found = {}
    for path in sorted((root / ".mvc").rglob("*")):
        stat = path.stat()
        what = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        found[str(path)] = what if path.is_file() else stat.st_mtime_ns
    return found


def _forget(repo, branch):
    """Delete a branch; nothing but old age keeps what only it had."""
    repo.branches.delete(branch, force=True)
    make_old(repo.worktree)


class TestNothingToDo:
    def test_writes_nothing_and_opens_no_pack(self, root, swept, repo, reads):
        before = snapshot(root)
        repo.upkeep.gc(grace_s=0)
        repo.upkeep.gc()
        assert snapshot(root) == before
        assert reads == []

    def test_a_plan_changes_nothing(self, root, kept, repo, reads):
        before = snapshot(root)
        plan = repo.upkeep.plan_gc(grace_s=0)
        assert not plan.is_empty
        repo.upkeep.plan_repack()
        repo.upkeep.plan_prune(keep_last=1)
        after = snapshot(root)
        assert {name: what for name, what in after.items() if not name.endswith(".lock")} == {
            name: what for name, what in before.items() if not name.endswith(".lock")
        }
        # Only repack looks at samples.
        assert sum(size for _, _, size in reads) < 2**20

    def test_the_plan_says_what_is_freed(self, root, kept, repo):
        def size_bytes():
            return sum(path.stat().st_size for path in (root / ".mvc").rglob("*") if path.is_file())

        before, plan = size_bytes(), repo.upkeep.plan_gc(grace_s=0)
        assert plan.freed_bytes > 0
        result = repo.upkeep.gc(plan)
        assert result.removed_objects == plan.objects > 0
        assert before - size_bytes() == pytest.approx(result.freed_bytes, abs=200)
        assert result.freed_bytes >= plan.freed_bytes
        assert repo.upkeep.plan_gc(grace_s=0).is_empty


class TestAge:
    def test_old_garbage_goes(self, root, swept, repo):
        doomed = commit_step(repo, 50, branch="doomed")
        _forget(repo, "doomed")
        assert repo.upkeep.plan_gc(grace_s=60 * DAY_S).is_empty
        assert repo.upkeep.gc().removed_objects
        assert not repo._context.history.has_object(doomed)
        swept.check(root)

    def test_what_a_young_commit_leads_to_stays(self, root, swept, repo):
        """Its parents and their content, however old they are."""
        old = commit_step(repo, 50, branch="doomed")
        make_old(root)
        young = commit_step(repo, 51, branch="doomed", delta=True)
        repo.branches.delete("doomed", force=True)
        repo.upkeep.gc()
        repo.branches.create("again", young)
        assert [load_exactly(repo, one) for one in ("again", old)] == [51, 50]

    def test_repack_removes_objects_before_content(self, root, swept, repo):
        """No commit is left that looks whole and has lost its content."""
        doomed = commit_step(repo, 50, branch="doomed")
        _forget(repo, "doomed")
        repo.upkeep.repack()
        assert not repo._context.history.has_object(doomed)
        swept.check(root)


class TestReflog:
    @pytest.fixture
    def left(self, root, swept, repo):
        """A commit that only reflog entries of a hundred days ago know."""
        commit = commit_step(repo, 60)
        repo.reset("HEAD~1", mode="hard")
        then = str(int(time.time()) - 100 * DAY_S)
        for log in [path for path in (root / ".mvc" / "logs").rglob("*") if path.is_file()]:
            lines = log.read_bytes().splitlines(keepends=True)
            parts = [line.split(b"\t", 1) for line in lines]
            for part in parts:
                words = part[0].split(b" ")
                words[-2] = then.encode()
                part[0] = b" ".join(words)
            log.write_bytes(b"".join(b"\t".join(part) for part in parts))
        commit_step(repo, 61)  # the newest entry of a log always stays
        make_old(root)
        return commit

    def test_repack_keeps_what_a_log_still_knows(self, root, left, swept, repo):
        repo.upkeep.repack()
        assert load_exactly(repo, left) == 60
        swept.check(root)

    def test_gc_forgets_it_from_the_log_first(self, root, left, swept, repo):
        plan = repo.upkeep.plan_gc()
        assert plan.reflog_entries
        repo.upkeep.gc(plan)
        assert not repo._context.history.has_object(left)
        assert left not in {entry.new for entry in repo.reflog("HEAD")}
        swept.check(root)


class TestReleased:
    def test_released_content_in_the_index(self, root, kept, repo):
        """A reset to a released commit stages what is not there; that is no damage."""
        repo.reset(kept.released[0], mode="mixed")
        for _ in range(2):
            assert repo.upkeep.fsck(data=True).ok
            repo.upkeep.gc(grace_s=0)
            repo.upkeep.repack()
            repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=9))
        repo.undo(force=True)
        kept.check(root)

    def test_a_manifest_that_outlived_its_commit(self, root, kept, repo):
        """A gc that died between commits and blobs leaves manifests of released content."""
        context = repo._context
        repo.switch("side")
        _forget(repo, "main")
        repo.tags.delete("three")
        released = [one for one in kept.released if one not in {e.info.id for e in repo.log()}]
        expiry = plan_gc(context, grace_s=0).expiry
        for path in (root / ".mvc" / "logs").rglob("*"):
            if path.is_file():
                path.unlink()
        objects = reachable_objects(context.history, expiry=expiry)
        garbage = list_garbage(context.history, objects, older_than_s=0)
        with context.history.sweep_alone():
            remove_objects(context.history, [item for item in garbage if item.kind == "commit"])
        for path in (root / ".mvc" / "objects").rglob("*"):
            if path.is_file():
                os.utime(path)
        assert not all(context.history.has_object(one) for one in kept.released) or not released
        repo.upkeep.gc()  # manifests and trees are young, and what they name is long gone
        repo.upkeep.repack()
        assert repo.upkeep.fsck(data=True).ok

    def test_a_deleted_branch_with_a_released_manifest(self, kept, repo):
        """What nobody let go can be had again for two weeks, whoever else let the same go."""
        commit = commit_step(repo, 70)
        # The same files, so the same manifests, on a branch that is deleted.
        twin = repo.commit_state(
            repo.load_state(commit, framework="numpy"), message="twin", branch="twin"
        ).commit
        repo.branches.delete("twin", force=True)
        commit_step(repo, 71)
        repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
        assert commit in released_commits(repo._context)
        repo.branches.create("twin", twin)
        assert load_exactly(repo, "twin") == 70
        assert repo.upkeep.fsck(data=True).ok
        repo.upkeep.gc()


class TestDamage:
    def test_a_damaged_pack_stops_it(self, root, kept, repo):
        """Nothing is removed that a damaged pack might have to be mended with."""
        store = repo._context.store
        batches = repo.upkeep.plan_gc(grace_s=0).sweep.batches
        needed = store.packs() - {pack for batch in batches for pack in batch.remove}
        pack = root / ".mvc" / "chunks" / "packs" / f"{min(needed)}.pack"
        pack.chmod(0o644)
        with open(pack, "r+b") as file:
            file.truncate(pack.stat().st_size // 2)
        before = store.packs()
        with pytest.raises(CorruptionError, match="missing or damaged") as caught:
            Repo.open(root).upkeep.gc(grace_s=0)
        assert "fsck" in caught.value.hint
        assert Repo.open(root)._context.store.packs() == before


def test_writers_may_not_sweep(root, kept, repo):
    """Who holds the lock of writers is told, not hung."""
    plan = repo.upkeep.plan_gc(grace_s=0)
    with repo._context.history.no_sweep():
        with pytest.raises(Exception, match="cannot sweep"):
            gc(repo._context, plan)
    repo.upkeep.gc(plan)
    again = repo.upkeep.gc(plan)  # it is out of date by now, so it is made again
    assert (again.removed_packs, again.removed_objects) == (0, 0)


def test_a_repair_waits_for_no_sweep(root, kept, repo):
    """It moves packs, which a sweep has planned with."""
    with upkeep_lock(repo._context), pytest.raises(ConflictError, match="is running"):
        repo.upkeep.fsck(repair=True)
    assert repo.upkeep.fsck().ok
    assert repo.upkeep.fsck(repair=True).ok
