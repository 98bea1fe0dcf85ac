"""A full disk, a failing one and Ctrl-C in the middle of gc, repack and prune: nothing is lost."""

from __future__ import annotations

import errno
import shutil

import pytest

from mvc import Repo, StorageError
from support import verbs
from support.bounds import bounded, rest_slow
from support.faults import OneFault
from support.fulldisk import FullDisk
from support.kept_repo import WHO, build_kept

_STRIDE = bounded(23, 1)
_SIZES = bounded(5, 60)
_FAULTS = {
    "io-error": OSError(errno.EIO, "Input/output error"),
    "ctrl-c": KeyboardInterrupt(),
}
VERBS = {"gc": {}, "repack": {}, "gather": {}, "prune": {"keep_last": 1}}


def _prepare(root, verb):
    kept = build_kept(root, released=verb != "prune")
    if verb == "prune":
        Repo.open(root, identity=WHO).tags.create("three", kept.whole[2])
        stays = [kept.whole[place] for place in (2, 5, 7)]
        kept.released = [commit for commit in kept.whole if commit not in stays]
        kept.whole = stays
    return kept


def _run(root, verb):
    getattr(verbs, verb)(root, **VERBS[verb])


def _check_all_well(root, verb, kept, where):
    """All is there now, and the verb works once nothing stands in its way."""
    kept.check(root, where)
    _run(root, verb)
    kept.check(root, f"{where}, again")
    Repo.open(root).upkeep.gc(grace_s=0)
    assert Repo.open(root).upkeep.plan_gc(grace_s=0).is_empty, where
    assert not list((root / ".mvc").rglob("*.mvc-tmp")), where


@pytest.mark.parametrize("verb", rest_slow(VERBS))
def test_disk_full(verb, tmp_path):
    origin, work = tmp_path / "origin", tmp_path / "work"
    kept = _prepare(origin, verb)
    shutil.copytree(origin, work)
    with FullDisk(work, 2**40) as disk:
        _run(work, verb)
    kept.check(work)
    taken = disk.used_bytes
    shutil.rmtree(work)
    failures = 0
    for number in range(_SIZES):
        shutil.copytree(origin, work)
        where = f"{verb}, {number} of {_SIZES} parts of {taken:,} bytes"
        with FullDisk(work, taken * number // _SIZES):
            try:
                _run(work, verb)
            except StorageError as error:
                failures += 1
                assert "no space left" in str(error).lower(), where
        _check_all_well(work, verb, kept, where)
        shutil.rmtree(work)
    assert failures or not taken


@pytest.mark.parametrize("fault", rest_slow(_FAULTS))
@pytest.mark.parametrize("verb", rest_slow(VERBS))
def test_one_fault(verb, fault, tmp_path):
    origin, work = tmp_path / "origin", tmp_path / "work"
    kept = _prepare(origin, verb)
    shutil.copytree(origin, work)
    with OneFault() as counted:
        _run(work, verb)
    assert counted.calls > 5
    shutil.rmtree(work)
    for step in range(0, counted.calls, _STRIDE):
        shutil.copytree(origin, work)
        with OneFault(_FAULTS[fault], step) as faulty:
            try:
                _run(work, verb)
            except KeyboardInterrupt:
                assert fault == "ctrl-c"
            except StorageError as error:
                assert fault == "io-error"
                assert "input/output error" in str(error)
        _check_all_well(work, verb, kept, f"{verb}: {faulty.name}, call {step}")
        shutil.rmtree(work)
