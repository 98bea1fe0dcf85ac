"""What stands where a file of the repository belongs stops commands; fsck says so, repair mends it."""

import os
import time

import pytest

from mvc import MvcError, Repo
from support.models import write_model

_NAMES = [
    "mvc.lock",
    "sweep.lock",
    "sweep.gate",
    "upkeep.lock",
    "index.lock",
    "packed-refs.lock",
    "logs/HEAD",
    "logs/refs/heads/main",
    "chunks/packs/INDEX",
    "transition.json",
    "tmp",
    "refs/tags/odd",
]


def put(path, kind):
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("nowhere")
    else:
        path.mkdir()
        (path / "kept").write_text("a user's")


def use(repo, root):
    """Add, commit and sweep: what needs all locks, logs and packs."""
    write_model(root / "m.safetensors", seed=len(list(repo.log())))
    repo.commit("more", paths=".")
    repo.checkout("HEAD~1", force=True)
    repo.switch("main")
    repo.upkeep.gc(grace_s=0)


@pytest.fixture
def one(repo, root):
    write_model(root / "m.safetensors", seed=9)
    repo.commit("one", paths=".")
    return repo


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_it_is_named_and_mended(one, root, name, kind):
    if kind == "folder" and name in ("tmp", "refs/tags/odd"):
        return  # as it may be
    (index,) = (root / ".mvc/chunks/packs").glob("*.idx")
    name = name.replace("INDEX", index.name)
    one.upkeep.fsck(repair=True)  # makes the locks
    put(root / ".mvc" / name, kind)
    opened = Repo.open(root)
    (problem,) = [item for item in opened.upkeep.fsck().problems if item.kind == "misplaced"]
    assert problem.detail.startswith(f"{name} is a ")
    assert "repair" in problem.hint
    report = opened.upkeep.fsck(data=True, repair=True)
    assert report.problems == ()
    assert any(name in notice for notice in report.notices)
    if kind == "folder":
        (aside,) = (root / ".mvc/damaged").iterdir()
        assert (aside / "kept").read_text() == "a user's"
    use(Repo.open(root), root)
    assert Repo.open(root).upkeep.fsck(data=True).ok


@pytest.mark.parametrize("name", ["index", "HEAD", "refs/heads/main"])
def test_locks_of_a_git_that_was_killed(one, root, name):
    lock = root / f".mvc/{name}.lock"
    lock.touch()
    assert one.upkeep.fsck(repair=True).ok  # it may be at work
    hours_ago = time.time() - 2 * 3600
    os.utime(lock, (hours_ago, hours_ago))
    (problem,) = one.upkeep.fsck().problems
    assert problem.kind == "stale-lock"
    assert str(lock) in problem.detail
    report = one.upkeep.fsck(repair=True)
    assert report.ok
    assert f"{name}.lock" in report.notices[0]
    assert not lock.exists()


def test_without_a_repair_it_does_stop_commands(one, root):
    for name in ("mvc.lock", "sweep.gate", "logs/HEAD"):
        put(root / ".mvc" / name, "folder")
        with pytest.raises(MvcError):
            use(Repo.open(root), root)
    report = one.upkeep.fsck(repair=True)
    assert report.ok
    assert len(report.notices) == 3
    use(Repo.open(root), root)


def test_links_that_people_make_are_no_intruders(one, root, tmp_path):
    """Chunks on another disk, say."""
    os.rename(root / ".mvc/chunks", tmp_path / "chunks")
    (root / ".mvc/chunks").symlink_to(tmp_path / "chunks")
    assert Repo.open(root).upkeep.fsck(data=True, repair=True).notices == ()
    assert (root / ".mvc/chunks").is_symlink()
    use(Repo.open(root), root)


def test_a_pack_that_is_a_pipe_is_not_waited_for(one, root):
    (pack,) = (root / ".mvc/chunks/packs").glob("*.pack")
    put(pack, "pipe")
    (root / "m.safetensors").unlink()
    with pytest.raises(MvcError):
        Repo.open(root).restore("m.safetensors", source="HEAD")


def test_twice_set_aside(one, root):
    for number in (1, 2):
        one.upkeep.fsck(repair=True)
        put(root / ".mvc/mvc.lock", "folder")
        one.upkeep.fsck(repair=True)
        assert len(list((root / ".mvc/damaged").iterdir())) == number
