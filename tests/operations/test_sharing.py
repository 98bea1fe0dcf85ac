"""doctor --shared: several processes meet in the folder and test it against each other."""

import fcntl
import threading

import pytest

from mvc import Repo
from mvc.operations.sharing import known_traps, meet


def test_all_who_come_in_time_take_part(repo):
    found = []
    others = [Repo.open(repo.worktree) for _ in range(2)]
    threads = [
        threading.Thread(
            target=lambda one=one, s=s: found.append(one.upkeep.probe_sharing(wait_s=s))
        )
        for one, s in zip(others, (5, 4.5), strict=True)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [report.problems for report in found] == [(), ()]
    assert found[0].members == found[1].members
    assert (len(found[0].members), found[0].machines) == (4, 1)  # each has a process of its own
    assert "only this machine" in found[0].warnings[-1]
    assert not list((repo.git_dir / "meeting").glob("room-*"))


def test_locks_that_do_not_exclude_are_found(repo, monkeypatch):
    """As where a file system takes every lock and tells nobody."""
    real = fcntl.flock
    monkeypatch.setattr(
        fcntl,
        "flock",
        lambda descriptor, how: None if how & fcntl.LOCK_SH else real(descriptor, how),
    )
    report = repo.upkeep.probe_sharing(wait_s=1)
    assert any("lock that another process holds was given" in one for one in report.problems)


@pytest.mark.parametrize(
    ("filesystem", "options", "word"),
    [
        ("nfs", "rw,vers=3,nolock", "nolock"),
        ("nfs4", "rw,local_lock=flock", "this machine alone"),
        ("lustre", "rw,localflock", "-o flock"),
        ("cifs", "rw,cache=strict", "SMB"),
        ("fuse.sshfs", "rw", "sshfs"),
        ("overlay", "rw", "no other machine"),
        ("lustre", "rw,flock", ""),
        ("nfs4", "rw,local_lock=none", ""),
    ],
)
def test_what_is_known_of_file_systems(filesystem, options, word):
    traps = known_traps(filesystem, options, is_tested=True)
    assert len(traps) == bool(word)
    assert word in "".join(traps)


def test_a_meeting_whose_opener_is_gone_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("mvc.operations.sharing._GONE_S", 0.1)
    (tmp_path / "room-0").mkdir()
    members, results = meet(tmp_path, 0)
    assert len(members) == len(results) == 1
