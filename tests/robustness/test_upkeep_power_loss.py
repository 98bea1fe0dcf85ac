"""The power goes at every step of gc, repack, gather, prune and commit --delta: nothing that is kept is lost.

After each stop the repository is sound, every commit nobody released loads bit for bit, and the verb,
begun again, ends its work.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from mvc import ConflictError, Repo
from support.bounds import bounded, rest_slow
from support.forgetful import count_steps, lose_power
from support.kept_repo import WHO, Kept, build_kept
from support.models import digest, write_model
from support.verbs import gather

pytestmark = pytest.mark.crash

_STRIDE = bounded(9, 1)


def _open(root):
    return Repo.open(root, identity=WHO)


def gc(root):
    _open(root).upkeep.gc(grace_s=0)


def repack(root):
    _open(root).upkeep.repack()


def prune(root):
    repo = _open(root)
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=3))


def commit_delta(root):
    """Commit what an add stored whole, as differences."""
    try:
        _open(root).commit("changed", delta=True)
    except ConflictError as error:
        assert "nothing to commit" in str(error)  # the first try had done it


def _prepare(root, verb):
    if verb is not commit_delta:
        return build_kept(root, released=verb is not prune)
    repo = Repo.init(root)
    repo.identity = WHO
    repo.set_config("mvc.chunkbytes", "16384")
    rng = np.random.default_rng(5)
    values = rng.standard_normal((256, 128)).astype(np.float32)
    path = write_model(root / "model.safetensors", layers=1, embed=values)
    kept = Kept(whole=[repo.commit("first", paths=".").commit])
    near = (values * (1 + 1e-4 * rng.standard_normal(values.shape))).astype(np.float32)
    write_model(path, layers=1, embed=near)
    repo.add(".", delta=False)
    return kept


def _check(root, verb, kept, where):
    if verb is not commit_delta:
        kept.check(root, where)
        return
    repo = _open(root)
    for entry in repo.log():
        copy = root / "copy.safetensors"
        repo.export(entry.info.id, copy, force=True)
        copy.unlink()
    report = repo.upkeep.fsck(data=True)
    assert report.ok, f"{where}: {report.problems}"
    assert kept.whole[0] in [entry.info.id for entry in repo.log()], where


def _is_done(root, verb, kept):
    """Tell whether a verb has nothing left to do."""
    repo = _open(root)
    if verb is gc:
        is_swept = not list(repo.git_dir.rglob("*.mvc-tmp"))
        return repo.upkeep.plan_gc(grace_s=0).is_empty and is_swept
    if verb is repack:
        return repo.upkeep.plan_repack().is_empty
    if verb is gather:
        return len(repo._context.store.packs()) == 1
    if verb is prune:
        plan = repo.upkeep.plan_prune(keep_last=3)
        released = {entry.commit for entry in plan.commits if entry.was_released}
        return not plan.releases and released == set(kept.released)
    copies = repo._context.store.copies()
    return repo.status().is_clean and (copies.bases[:, 0] >= 0).any()


@pytest.mark.parametrize(
    "verb", rest_slow([commit_delta, gc, repack, gather, prune]), ids=lambda verb: verb.__name__
)
def test_every_step(verb, tmp_path):
    origin, done = tmp_path / "origin", tmp_path / "done"
    kept = _prepare(origin, verb)
    if verb is prune:
        kept.whole, kept.released = kept.whole[2:], kept.whole[:2]
        _open(origin).tags.create("three", kept.whole[0])
    assert not _is_done(origin, verb, kept)
    shutil.copytree(origin, done)
    steps = count_steps(verb, done)
    assert steps > 15
    assert _is_done(done, verb, kept)
    _check(done, verb, kept, "alone")
    for where, survivor in lose_power(verb, origin, tmp_path, range(0, steps, _STRIDE)):
        _check(survivor, verb, kept, where)
        verb(survivor)
        _check(survivor, verb, kept, f"{where}, again")
        assert _is_done(survivor, verb, kept), where


def test_a_file_is_what_it_was(tmp_path):
    """What ``commit --delta`` encodes anew comes back byte for byte, and takes less."""
    root = tmp_path / "work"
    _prepare(root, commit_delta)
    before = digest(root / "model.safetensors")
    size_bytes = sum(_open(root)._context.store.list_packs().packs.values())
    commit_delta(root)
    assert sum(_open(root)._context.store.list_packs().packs.values()) < size_bytes
    (root / "model.safetensors").unlink()
    _open(root).restore("model.safetensors")
    assert digest(root / "model.safetensors") == before
