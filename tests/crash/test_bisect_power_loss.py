"""The power goes at every step of a bisection: it can go on, or be ended, and nothing is lost."""

from __future__ import annotations

import shutil

import pytest

from mvc import Repo
from support.forgetful import ForgetfulDisk, PowerLoss
from support.models import digests

pytestmark = pytest.mark.crash


def _prepare(root):
    repo, ids = Repo.init(root), []
    for number in range(6):
        (root / "a").write_text("sound" if number < 3 else "broken")
        (root / "n").write_text(str(number))
        ids.append(repo.commit(f"c{number}", paths=".").id)
    return ids


def _bisect(root):
    repo = Repo.open(root)
    repo.bisect.start("HEAD", "HEAD~5")
    repo.bisect.mark("good" if (root / "a").read_text() == "sound" else "bad")
    repo.bisect.reset()


def _go_on(root, ids):
    """Return what a bisection finds that goes on from where it was stopped."""
    repo = Repo.open(root)
    step = repo.bisect.step()
    if step is None or step.status == "waiting":
        repo.bisect.start(ids[-1], ids[0])
    return repo.bisect.run(lambda _: (root / "a").read_text() == "sound").commit


@pytest.mark.slow
def test_every_step(tmp_path, monkeypatch):
    monkeypatch.setattr("mvc.history.values.time.time", lambda: 1_700_000_000)
    origin, done = tmp_path / "origin", tmp_path / "done"
    origin.mkdir()
    ids = _prepare(origin)
    files = digests(origin)
    shutil.copytree(origin, done, symlinks=True)
    with ForgetfulDisk(done) as disk:
        _bisect(done)
    total_steps = disk.steps
    disk.close()
    assert total_steps > 50
    for at in range(0, total_steps, 7):
        work, pessimist = tmp_path / "work", tmp_path / "pessimist"
        shutil.copytree(origin, work, symlinks=True)
        disk = ForgetfulDisk(work, stop_at=at)
        with disk, pytest.raises(PowerLoss):
            _bisect(work)
        disk.survivors(pessimist)
        disk.close()
        for survivor in (pessimist, work):
            assert _go_on(survivor, ids) == ids[3], at
            repo = Repo.open(survivor)
            repo.bisect.reset()
            assert (repo.head.branch, repo.head.commit) == ("main", ids[-1]), at
            assert digests(survivor) == files, at
            assert repo.upkeep.fsck().ok, at
            assert not list(repo.git_dir.glob("BISECT_*")), at
            shutil.rmtree(survivor)
