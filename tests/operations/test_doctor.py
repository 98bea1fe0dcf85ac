import platform

import pytest

from mvc import Repo
from mvc.operations import doctor as doctors
from mvc.workspace import transition


def test_what_it_finds(repo, root, monkeypatch):
    monkeypatch.setattr(doctors, "_PROBE_BYTES", 2**20)
    report = repo.upkeep.doctor()
    assert report.python == platform.python_version()
    assert report.versions["numpy"] != "missing"
    assert set(report.versions) >= {"dulwich", "blake3", "zstandard", "torch", "safetensors"}
    assert report.cores >= 1
    assert report.filesystem not in ("", "unknown")
    assert report.free_bytes > 0
    assert min(report.write_bytes_per_s, report.sync_s, report.hash_bytes_per_s) > 0
    assert list((root / ".mvc/tmp").iterdir()) == []  # it cleaned up


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (("nfs4", 1e12, 1e9, 0.001), "network"),
        (("fuse.sshfs", 1e12, 1e9, 0.001), "network"),
        (("tmpfs", 1e12, 1e9, 0.001), "reboot"),
        (("ext4", 1e9, 1e9, 0.001), "1.0 GB are free"),
        (("ext4", 1e12, 1e7, 0.001), "10 MB/s"),
        (("ext4", 1e12, 1e9, 0.2), "200 ms"),
    ],
)
def test_advice(facts, word):
    (advice,) = doctors._advice(*facts)
    assert word in advice


def test_it_does_not_sweep_up_what_a_crash_left(repo, root, monkeypatch):
    """Files that a journal waits for look like garbage of a dead process: they are not."""
    monkeypatch.setattr(doctors, "_PROBE_BYTES", 2**20)
    for text in ("one", "two"):
        (root / "a").write_text(text)
        repo.commit(text, paths=".")
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(transition, "_apply", lambda *_: 1 // 0)
        repo.checkout("HEAD~1")
    Repo.open(root).upkeep.doctor()
    opened = Repo.open(root)
    assert opened.status().recovered
    assert (root / "a").read_text() == "one"
    assert opened.status().is_clean


def test_where_nothing_can_be_written(repo, root, monkeypatch):
    monkeypatch.setattr(doctors, "_PROBE_BYTES", 2**20)
    (root / ".mvc/mvc.lock").unlink(missing_ok=True)
    (root / ".mvc/mvc.lock").mkdir()
    report = repo.upkeep.doctor()
    assert (report.write_bytes_per_s, report.sync_s) == (None, None)
    assert report.hash_bytes_per_s > 0
    assert any("nothing can be written here" in advice for advice in report.advice)


def test_beside_an_interrupted_checkout_it_leaves_nothing(repo, root, monkeypatch):
    """A journal keeps scratch folders, and the measured file would be among them."""
    monkeypatch.setattr(doctors, "_PROBE_BYTES", 2**20)
    (root / ".mvc/transition.json").write_text("waiting")
    repo.upkeep.doctor()
    assert list((root / ".mvc/tmp").iterdir()) == []


def test_a_gate_that_no_commit_passes_is_named(repo, monkeypatch):
    monkeypatch.setattr(doctors, "_PROBE_BYTES", 2**20)
    with (repo.git_dir / "config").open("a") as file:
        file.write("[gate]\n\tnan = none\n")
    assert any("gate.nan must be a whole number" in text for text in repo.upkeep.doctor().advice)


def test_what_is_under_way(repo, root, monkeypatch):
    monkeypatch.setattr(doctors, "_PROBE_BYTES", 2**20)
    commits = []
    for text in ("one", "two", "three"):
        (root / "a").write_text(text)
        repo.add(".")
        commits.append(repo.commit(text).commit)
    assert repo.upkeep.doctor().under_way == ()
    assert repo.revert("HEAD~1").conflicts
    assert repo.upkeep.doctor().under_way == ("revert",)
    repo.abort("revert")
    repo.bisect.start("HEAD", "HEAD~2", checkout=False)
    assert repo.upkeep.doctor().under_way == ("bisect",)
    assert repo.status().bisecting
    (root / ".mvc/CHERRY_PICK_HEAD").write_text("torn")
    (advice,) = (one for one in repo.upkeep.doctor().advice if "CHERRY_PICK_HEAD" in one)
    assert advice.startswith("what is under way cannot be told")
