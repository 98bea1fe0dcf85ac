"""gc, repack and prune: killed at random moments, two at once, and beside commits and readers."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pytest

from mvc import Repo
from mvc.upkeep.sweep import upkeep_lock
from support import verbs
from support.bounds import bounded, rest_slow
from support.cli import Shell
from support.kept_repo import WHO, build_kept, load_exactly
from support.zygote import Zygote

_KILLS = bounded(5, 150)
_COMMITS = bounded(100, 3000)


@pytest.fixture(scope="module")
def zygote():
    with Zygote() as running:
        yield running


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


# Killed.


@pytest.mark.parametrize("verb", rest_slow(VERBS))
def test_killed_at_any_moment(verb, tmp_path, zygote):
    origin, work = tmp_path / "origin", tmp_path / "work"
    kept = _prepare(origin, verb)
    shutil.copytree(origin, work)
    usual = zygote.run(verb, work, **VERBS[verb])
    assert usual.error is None
    kept.check(work, "alone")
    chooser, hits = random.Random(21), 0
    for number in range(_KILLS):
        shutil.rmtree(work)
        shutil.copytree(origin, work)
        delay_s = chooser.uniform(0.1, 1.05) * usual.seconds
        outcome = zygote.run(verb, work, kill_after_s=delay_s, **VERBS[verb])
        hits += outcome.killed
        where = f"{verb}, kill {number} after {delay_s * 1e3:.2f} ms"
        assert outcome.error is None, f"{where}: {outcome.error}"
        kept.check(work, where)
        if number % 2:  # another verb comes across what was left
            _open(work).upkeep.gc(grace_s=0)
        getattr(verbs, verb)(work, **VERBS[verb])
        kept.check(work, f"{where}, again")
        if verb in ("prune", "gather"):  # what the killed one wrote has its grace, or is joined
            _open(work).upkeep.gc(grace_s=0)
        left = replace(
            _open(work).upkeep.plan_gc(grace_s=0), statistics=0
        )  # only gc looks at what is kept
        assert left.is_empty, where
        assert not list((work / ".mvc").rglob("*.mvc-tmp")), where
    assert hits


@pytest.mark.nightly
def test_killed_over_and_over(tmp_path, zygote):
    """The same repository all the time: what one leaves the next one starts from."""
    root = tmp_path / "work"
    kept = build_kept(root)
    repo, chooser = _open(root), random.Random(22)
    for number in range(bounded(8, 300)):
        commit = repo.commit_state(
            verbs.make_near_state(number), message="more", delta=number % 2 == 0
        ).commit
        commands = [(chooser.choice(["gc", "repack"]), root, {}), ("repack", root, {})]
        outcomes = zygote.run_all(commands, kill_after_s=chooser.uniform(0.005, 0.12), victims=1)
        assert outcomes[1].kind in (None, "ConflictError"), outcomes[1].error
        kept.check(root, f"round {number}")
        assert verbs.load_near_state(repo, commit) == number


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
    getattr(verbs, verb)(root, **VERBS[verb])
    kept.check(root)


@pytest.mark.parametrize("second", rest_slow(["gc", "repack", "prune"]))
@pytest.mark.parametrize("first", ["gc", "repack"])
def test_a_plan_from_before(first, second, tmp_path):
    """A plan is made again where another upkeep has moved the packs it speaks of."""
    root = tmp_path / "work"
    kept = _prepare(root, "prune")
    late, repo = _open(root), _open(root)
    plan = late.upkeep.plan_gc(grace_s=0) if first == "gc" else late.upkeep.plan_repack()
    assert not plan.is_empty
    if second == "prune":
        repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
    else:
        getattr(repo.upkeep, second)(**({"grace_s": 0} if second == "gc" else {}))
    getattr(late.upkeep, first)(plan)
    kept.check(root)
    again = _open(root)
    assert (
        again.upkeep.plan_gc(grace_s=0) if first == "gc" else again.upkeep.plan_repack()
    ).is_empty


@pytest.mark.parametrize("verb", rest_slow(["gc", "repack"]))
def test_a_plan_from_before_packs_were_joined(verb, tmp_path):
    """A commit of a run beside it joins packs at any time: no reason to fail."""
    root = tmp_path / "work"
    kept = _prepare(root, verb)
    repo = _open(root)
    plan = (
        repo.upkeep.plan_gc(grace_s=0) if verb == "gc" else repo.upkeep.plan_repack(everything=True)
    )
    gone = {pack for batch in plan.sweep.batches for pack in batch.remove}
    verbs.gather(root)
    assert not gone <= repo._context.store.packs()
    getattr(repo.upkeep, verb)(plan)
    kept.check(root)
    again = _open(root)
    assert (
        again.upkeep.plan_gc(grace_s=0) if verb == "gc" else again.upkeep.plan_repack()
    ).is_empty


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
    repo.commit_state(verbs.make_near_state(0), message="start", step=0)
    outcomes = zygote.run_all(
        [
            ("train_beside", root, {"end": str(end), "count": _COMMITS}),
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
        verbs.load_near_state(repo, commit)
    report = _open(root).upkeep.fsck(data=True)
    assert report.ok, report.problems
    _open(root).upkeep.gc(grace_s=0)
    assert _open(root).upkeep.plan_gc(grace_s=0).is_empty
    for commit in line[:: max(1, len(line) // 20)]:
        verbs.load_near_state(_open(root), commit)


def test_a_long_lived_process_sees_what_gc_took(tmp_path):
    """A run that knows what it has written does not build upon what a gc has removed since."""
    root = tmp_path / "work"
    kept = build_kept(root)
    run, sweeper = _open(root), _open(root)
    state = verbs.make_near_state(1)
    run.branches.create("doomed")
    first = run.commit_state(state, message="one", step=1, time_s=1_800_000_000, branch="doomed")
    run.branches.delete("doomed", force=True)
    assert sweeper.upkeep.gc(grace_s=0).removed_objects
    assert not sweeper._context.history.has_object(first.commit)
    run.branches.create("doomed")
    again = run.commit_state(state, message="one", step=1, time_s=1_800_000_000, branch="doomed")
    assert again.commit == first.commit
    verbs.load_near_state(_open(root), "doomed")
    kept.check(root)


def test_revived_between_plan_and_run(tmp_path):
    """What was garbage when it was planned, and is not when it would go, stays."""
    root = tmp_path / "work"
    kept = build_kept(root)
    repo, other = _open(root), _open(root)
    doomed = other.commit_state(verbs.make_near_state(5), message="m", branch="doomed").commit
    other.branches.delete("doomed", force=True)
    plan = repo.upkeep.plan_gc(grace_s=0)
    assert plan.objects
    other.branches.create("revived", doomed)
    other.commit_state({"other": verbs.make_near_state(6)["w"]}, message="n", branch="third")
    repo.upkeep.gc(plan)
    assert verbs.load_near_state(repo, "revived") == 5
    kept.check(root)


def test_same_content_between_plan_and_run(tmp_path):
    """Chunks that a plan drops and a commit takes up again, without writing them."""
    root = tmp_path / "work"
    kept = build_kept(root)
    repo, other = _open(root), _open(root)
    other.commit_state(verbs.make_near_state(5), message="m", branch="doomed")
    other.branches.delete("doomed", force=True)
    plan = repo.upkeep.plan_gc(grace_s=0)
    assert plan.sweep.dropped_chunks
    result = other.commit_state(verbs.make_near_state(5), message="again", branch="again")
    packs = repo._context.store.packs()
    done = repo.upkeep.gc(plan)
    assert done.kept_packs
    assert repo._context.store.packs() <= packs
    assert verbs.load_near_state(repo, result.commit) == 5
    kept.check(root)
    assert load_exactly(repo, kept.whole[0]) == 3
