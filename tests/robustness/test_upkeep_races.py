"""gc, repack and prune: on a failing disk, two at once, and beside commits and readers; nothing is lost.

``test_upkeep_power_loss`` stops them at every step.
"""

from __future__ import annotations

import random
import shutil

import pytest

from mvc import Repo, StorageError
from mvc.upkeep.sweep import upkeep_lock
from support import verbs
from support.bounds import bounded, rest_slow
from support.cli import Shell
from support.faults import FAULTS, fail_calls
from support.fulldisk import FullDisk
from support.kept_repo import WHO, build_kept, commit_step, load_exactly

VERBS = {"gc": {}, "repack": {}, "gather": {}, "prune": {"keep_last": 1}}


def _prepare(root, verb):
    """Return what must be there after the verb, and even while it goes on."""
    kept = build_kept(root, released=verb != "prune")
    if verb == "prune":  # steps 1 to 5 of main; what the tag and two tips have stays
        _open(root).tags.create("three", kept.whole[2])
        stays = [kept.whole[place] for place in (2, 5, 7)]
        kept.released = [commit for commit in kept.whole if commit not in stays]
        kept.whole = stays
    return kept


def _open(root):
    return Repo.open(root, identity=WHO)


def _run(root, verb):
    getattr(verbs, verb)(root, **VERBS[verb])


# Stopped.


def _check_all_well(root, verb, kept, where):
    """All is there now, and the verb works once nothing stands in its way."""
    kept.check(root, where)
    _run(root, verb)
    kept.check(root, f"{where}, again")
    _open(root).upkeep.gc(grace_s=0)
    assert _open(root).upkeep.plan_gc(grace_s=0).is_empty, where
    assert not list((root / ".mvc").rglob("*.mvc-tmp")), where


@pytest.mark.parametrize("verb", rest_slow(VERBS))
def test_disk_full(verb, tmp_path):
    origin, work, parts = tmp_path / "origin", tmp_path / "work", bounded(5, 60)
    kept = _prepare(origin, verb)
    shutil.copytree(origin, work)
    with FullDisk(work, 2**40) as disk:
        _run(work, verb)
    kept.check(work)
    failures = 0
    for number in range(parts):
        shutil.rmtree(work)
        shutil.copytree(origin, work)
        where = f"{verb}, {number} of {parts} parts of {disk.used_bytes:,} bytes"
        with FullDisk(work, disk.used_bytes * number // parts):
            try:
                _run(work, verb)
            except StorageError as error:
                failures += 1
                assert "no space left" in str(error).lower(), where
        _check_all_well(work, verb, kept, where)
    assert failures or not disk.used_bytes


@pytest.mark.parametrize("fault", rest_slow(FAULTS))
@pytest.mark.parametrize("verb", rest_slow(VERBS))
def test_one_fault(verb, fault, tmp_path):
    origin = tmp_path / "origin"
    kept = _prepare(origin, verb)
    for where, work in fail_calls(
        lambda root: _run(root, verb), origin, tmp_path, fault, bounded(23, 1)
    ):
        _check_all_well(work, verb, kept, f"{verb}: {where}")


@pytest.mark.nightly
def test_killed_over_and_over(tmp_path, zygote):
    """The same repository all the time: what one leaves the next one starts from."""
    root = tmp_path / "work"
    kept = build_kept(root)
    repo, chooser = _open(root), random.Random(22)
    for number in range(bounded(8, 300)):
        commit = commit_step(repo, number, run=9, delta=number % 2 == 0)
        commands = [(chooser.choice(["gc", "repack"]), root, {}), ("repack", root, {})]
        outcomes = zygote.run_all(commands, kill_after_s=chooser.uniform(0.005, 0.12), victims=1)
        assert outcomes[1].kind in (None, "ConflictError"), outcomes[1].error
        kept.check(root, f"round {number}")
        assert load_exactly(repo, commit) == number


# Two at once.


@pytest.mark.parametrize("verb", rest_slow(["gc", "repack", "prune"]))
def test_somebody_is_at_it(verb, tmp_path):
    """One line that says so, and nothing is changed."""
    root = tmp_path / "work"
    kept = _prepare(root, verb)
    arguments = {"prune": ["--keep-last", "1"], "gc": ["--grace", "now"], "repack": []}
    repo = _open(root)
    packs, refs = repo._context.store.packs(), repo._context.history.list_refs("refs/")
    with upkeep_lock(repo._context):
        answer = Shell(root)(verb, *arguments[verb])
    assert answer.code != 0
    assert answer.error == "another gc, prune or repack is running"
    assert answer.hint
    assert "Traceback" not in answer.err
    assert repo._context.store.packs() == packs
    assert repo._context.history.list_refs("refs/") == refs
    kept.check(root)
    _run(root, verb)
    kept.check(root)


def _plan(repo, verb, **options):
    return repo.upkeep.plan_gc(grace_s=0) if verb == "gc" else repo.upkeep.plan_repack(**options)


@pytest.mark.parametrize("second", rest_slow(["gc", "gather", "repack", "prune"], kept=2))
@pytest.mark.parametrize("first", ["gc", "repack"])
def test_a_plan_from_before(first, second, tmp_path):
    """A plan is made again where another upkeep, or a commit of a run, has moved the packs it speaks of."""
    root = tmp_path / "work"
    kept = _prepare(root, "prune")
    repo = _open(root)
    plan = _plan(repo, first, everything=second == "gather")
    assert not plan.is_empty
    gone = {pack for batch in plan.sweep.batches for pack in batch.remove}
    _run(root, second)
    assert second != "gather" or not gone <= repo._context.store.packs()
    getattr(repo.upkeep, first)(plan)
    kept.check(root)
    assert _plan(_open(root), first).is_empty


def test_all_at_once(tmp_path, zygote):
    origin, work = tmp_path / "origin", tmp_path / "work"
    kept = _prepare(origin, "prune")
    chooser = random.Random(23)
    for number in range(bounded(3, 100)):
        shutil.copytree(origin, work)
        names = [chooser.choice(sorted(VERBS)) for _ in range(3)]
        outcomes = zygote.run_all([(name, work, VERBS[name]) for name in names])
        where = f"round {number}: {names}"
        for outcome in outcomes:
            assert outcome.kind in (None, "ConflictError"), f"{where}: {outcome.error}"
            assert outcome.kind is None or outcome.hint, where
        assert any(outcome.kind is None for outcome in outcomes), where
        kept.check(work, where)
        shutil.rmtree(work)


# Beside commits and readers.


@pytest.mark.nightly
def test_beside_a_run(tmp_path, zygote):
    """gc and repack loop while a run commits, branches and resets, and others read."""
    root, end = tmp_path / "work", tmp_path / "end"
    repo = Repo.init(root)
    repo.identity = WHO
    repo.set_config("mvc.chunkbytes", "16384")
    commit_step(repo, 0)
    outcomes = zygote.run_all(
        [
            ("train_beside", root, {"end": str(end), "count": bounded(100, 3000)}),
            ("sweep_until", root, {"end": str(end)}),
            ("read_beside", root, {"end": str(end), "seed": 1}),
        ]
    )
    assert [outcome.error for outcome in outcomes] == [None] * 3
    line, swept, reads = (outcome.result for outcome in outcomes)
    assert swept[0], "no gc ever met any garbage"
    assert swept[1], "no repack ever did anything"
    assert reads
    found = [entry.info.id for entry in _open(root).log("main")]
    assert found[:-1] == line[::-1]
    for commit in line:
        load_exactly(repo, commit)
    report = _open(root).upkeep.fsck(data=True)
    assert report.ok, report.problems
    _open(root).upkeep.gc(grace_s=0)
    assert _open(root).upkeep.plan_gc(grace_s=0).is_empty
    for commit in line[:: max(1, len(line) // 20)]:
        load_exactly(_open(root), commit)


def test_a_long_lived_process_sees_what_gc_took(tmp_path):
    """A run that knows what it has written does not build upon what a gc has removed since."""
    root = tmp_path / "work"
    kept = build_kept(root)
    run, sweeper = _open(root), _open(root)
    terms = {"run": 9, "time_s": 1_800_000_000, "branch": "doomed"}
    run.branches.create("doomed")
    first = commit_step(run, 1, **terms)
    run.branches.delete("doomed", force=True)
    assert sweeper.upkeep.gc(grace_s=0).removed_objects
    assert not sweeper._context.history.has_object(first)
    run.branches.create("doomed")
    assert commit_step(run, 1, **terms) == first
    load_exactly(_open(root), "doomed")
    kept.check(root)


def test_revived_between_plan_and_run(tmp_path):
    """What was garbage when it was planned, and is not when it would go, stays."""
    root = tmp_path / "work"
    kept = build_kept(root)
    repo, other = _open(root), _open(root)
    doomed = commit_step(other, 5, run=9, branch="doomed")
    other.branches.delete("doomed", force=True)
    plan = repo.upkeep.plan_gc(grace_s=0)
    assert plan.objects
    other.branches.create("revived", doomed)
    commit_step(other, 6, run=9, branch="third")
    repo.upkeep.gc(plan)
    assert load_exactly(repo, "revived") == 5
    kept.check(root)


def test_same_content_between_plan_and_run(tmp_path):
    """Chunks that a plan drops and a commit takes up again, without writing them."""
    root = tmp_path / "work"
    kept = build_kept(root)
    repo, other = _open(root), _open(root)
    commit_step(other, 5, run=9, branch="doomed")
    other.branches.delete("doomed", force=True)
    plan = repo.upkeep.plan_gc(grace_s=0)
    assert plan.sweep.dropped_chunks
    again = commit_step(other, 5, run=9, branch="again")
    packs = repo._context.store.packs()
    done = repo.upkeep.gc(plan)
    assert done.kept_packs
    assert repo._context.store.packs() <= packs
    assert load_exactly(repo, again) == 5
    kept.check(root)
    assert load_exactly(repo, kept.whole[0]) == 3
