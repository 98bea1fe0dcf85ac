"""Kinds, counts, notices and repair; ``tests/robustness`` damages everything else."""

import os
import shlex
import shutil
import subprocess

import pytest

from mvc import Repo
from mvc.history.notes import write_notes
from mvc.history.values import Stamp
from mvc.progress import reporting
from support.models import write_model
from support.pruned import prune
from support.stockgit import git


@pytest.fixture
def two(repo, root):
    """Two commits of one model, each with a pack of its own."""
    for seed in (1, 2):
        write_model(root / "m.safetensors", seed=seed)
        repo.commit(f"seed {seed}", paths=".")
    return repo


def packs(root):
    return sorted((root / ".mvc/chunks/packs").glob("*.pack"))


def index_of(pack):
    return pack.with_suffix(".idx")


def test_a_sound_repository(two):
    calls = []
    with reporting(calls.append):
        report = two.upkeep.fsck(data=True)
    assert report.ok
    assert (report.problems, report.notices, report.repaired) == ((), (), ())
    assert (report.commits, report.files, report.data) == (2, 2, True)
    manifest_chunks = _chunks(two, "HEAD") | _chunks(two, "HEAD~1")
    assert report.chunks == len(manifest_chunks)
    assert sum(calls) == sum(pack.stat().st_size for pack in packs(two.worktree))


def _chunks(repo, revision):
    (info,) = repo.ls(revision)
    return set(repo._context.manifests.read(info.blob).chunk_ids())


def test_commits_that_add_no_file_are_counted(two, root):
    """An empty one, one that goes back, and one that only removes."""
    two.commit("empty", allow_empty=True)
    two.restore("m.safetensors", source="HEAD~2")
    two.commit("back", paths=".")
    two.remove("m.safetensors")
    two.commit("removed")
    assert two.upkeep.fsck().commits == 5


def test_what_is_staged_is_looked_at(repo, root):
    write_model(root / "m.safetensors")
    repo.add(".")
    (pack,) = packs(root)
    pack.unlink()
    report = Repo.open(root).upkeep.fsck()
    assert {problem.path for problem in report.problems if problem.path} == {"m.safetensors"}
    assert {problem.commit for problem in report.problems} == {None}


def test_a_commit_that_only_the_reflog_knows_is_looked_at(two, root):
    lost = two.head.commit
    two.reset("HEAD~1", mode="hard")
    needed = {chunk.hex() for chunk in _chunks(two, "HEAD@{1}") - _chunks(two, "HEAD")}
    for pack in packs(root):
        pack.unlink()
    report = Repo.open(root).upkeep.fsck()
    found = {problem.chunk for problem in report.problems if problem.commit == lost}
    assert needed <= found


class TestLostIndex:
    def test_of_a_pack_that_is_needed(self, two, root):
        pack = packs(root)[0]
        index_of(pack).unlink()
        opened = Repo.open(root)
        report = opened.upkeep.fsck()
        (problem,) = report.problems
        assert (problem.kind, problem.pack) == ("missing-index", pack.stem)
        assert "fsck --repair" in problem.hint
        assert report.notices == ()
        repaired = opened.upkeep.fsck(repair=True)
        assert repaired.ok
        assert repaired.repaired == (pack.stem,)
        assert index_of(pack).exists()
        assert Repo.open(root).upkeep.fsck(data=True).ok

    def test_of_a_pack_that_nothing_needs(self, two, root):
        """What a crash leaves between the pack and its index: no problem, only a notice."""
        before = packs(root)
        write_model(root / "extra.safetensors", seed=9)
        two.add("extra.safetensors")
        two.reset()
        (pack,) = set(packs(root)) - set(before)
        index_of(pack).unlink()
        report = Repo.open(root).upkeep.fsck()
        assert report.ok
        (notice,) = report.notices
        assert pack.stem in notice

    def test_repair_of_what_is_sound_does_nothing(self, two, root):
        two.upkeep.fsck(repair=True)  # makes the lock files, where nobody needed them before
        before = {path: path.stat().st_mtime_ns for path in (root / ".mvc").rglob("*")}
        report = two.upkeep.fsck(repair=True, data=True)
        assert (report.ok, report.repaired, report.notices) == (True, (), ())
        after = {path: path.stat().st_mtime_ns for path in (root / ".mvc").rglob("*")}
        assert after == before


def test_a_stray_file_is_a_notice(two, root):
    (root / ".mvc/chunks/packs/stray").write_text("x")
    report = two.upkeep.fsck()
    assert report.ok
    (notice,) = report.notices
    assert "stray" in notice


def test_notes_are_no_files_of_the_worktree(two):
    before = two.upkeep.fsck()
    notes = {two.head.commit: b'{"mvc-manifest":', two.show("HEAD~1").info.id: b"text"}
    for message in ("one", "two"):
        write_notes(
            two._context.history,
            "refs/notes/released",
            notes,
            message=message,
            stamp=Stamp.now(two.identity),
        )
        notes = dict.fromkeys(notes, b"other")
    assert two.upkeep.fsck(data=True).problems == ()
    after = two.upkeep.fsck()
    assert (after.commits, after.files, after.chunks) == (
        before.commits,
        before.files,
        before.chunks,
    )


@pytest.mark.parametrize("name", ["refs/heads/odd", "packed-refs", "index"])
def test_a_pipe_is_reported_at_once(two, root, name):
    """Whoever opened it to read would wait forever."""
    (root / ".mvc" / name).unlink(missing_ok=True)
    os.mkfifo(root / ".mvc" / name)
    problems = Repo.open(root).upkeep.fsck().problems
    assert f"{name} is a named pipe, not a file" in " ".join(one.detail for one in problems)


def test_a_pipe_in_place_of_what_may_be_lost(two, root):
    os.mkfifo(root / ".mvc/repacked")
    assert not two.upkeep.is_repack_due()


def _clone(root, target):
    git(root / ".mvc", "clone", "-q", "--bare", str(root / ".mvc"), str(target / ".mvc"))
    return Repo.open(target)


def test_a_clone_that_lost_its_notes_says_so(five_steps, repo, root, tmp_path):
    """Stock Git clones no notes: what was pruned looks lost."""
    prune(repo, keep_last=1)
    repo.upkeep.gc(grace_s=0)
    assert repo.upkeep.fsck().ok
    clone = _clone(root, tmp_path / "clone")
    (found, *_) = clone.upkeep.fsck().problems
    assert (found.kind, found.detail) == (
        "incomplete-clone", f"this is a clone of {root}/.mvc, and Git clones no chunks",
    )  # fmt: skip
    shutil.copytree(root / ".mvc/chunks", clone.git_dir / "chunks")
    clone = Repo.open(clone.worktree)
    (found, *_) = clone.upkeep.fsck().problems
    assert found.kind == "incomplete-clone"
    assert "without its Git notes" in found.detail
    subprocess.run(shlex.split(found.hint), check=True, capture_output=True)
    assert Repo.open(clone.worktree).upkeep.fsck(data=True).ok


def test_what_is_lost_in_no_clone_has_no_such_explanation(two, root):
    for pack in packs(root):
        pack.unlink()
        index_of(pack).unlink()
    kinds = {problem.kind for problem in Repo.open(root).upkeep.fsck().problems}
    assert kinds == {"missing-chunk"}
