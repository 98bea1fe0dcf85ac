"""What follows a commit: upkeep in the background where it is wanted, and never a broken commit."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from mvc import Repo
from mvc.fs import exclusive_lock
from mvc.interpreter import module_command
from mvc.operations import aftercare
from mvc.upkeep.repacked import AUTO_COMMITS, read_note
from mvc.upkeep.sweep import LOCK_NAME, upkeep_lock
from support.kept_repo import WHO, commit_step, load_exactly


@pytest.fixture
def repo(root):
    made = Repo.init(root)
    made.identity = WHO
    made.set_config("mvc.chunkbytes", "16384")
    return made


@pytest.fixture
def started(monkeypatch):
    """The command lines that would be run."""
    found = []

    class Recorded:
        def __init__(self, command, **options):
            found.append((command, options))

        def poll(self):
            return None

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.setattr(aftercare, "_running", [])
    return found


def many_commits(repo, count=AUTO_COMMITS):
    return [commit_step(repo, step) for step in range(count)]


def test_off_by_default(repo, started):
    many_commits(repo, AUTO_COMMITS + 3)
    repo.commit("one more", allow_empty=True)
    assert started == []
    for text in ("false", "no", "0", "", "yes please"):  # a user may edit the file
        with (repo.git_dir / "config").open("a") as config:
            config.write(f"[mvc]\n\tautorepack = {text}\n")
        repo.commit("one more", allow_empty=True)
    assert started == []


def test_one_at_a_time_and_only_when_due(repo, started):
    repo.set_config("mvc.autorepack", "True")
    many_commits(repo, AUTO_COMMITS - 1)
    assert started == []
    repo.commit("due now", allow_empty=True)
    repo.commit_state({"w": np.zeros(9)}, message="and still", branch="main")
    ((command, options),) = started
    assert command[0] == sys.executable
    assert "-P" in command  # the worktree is no place to import from
    assert options["start_new_session"]


@pytest.mark.parametrize("error", [FileNotFoundError("no python"), BlockingIOError("no process")])
def test_no_process_can_be_had(repo, started, monkeypatch, error):
    repo.set_config("mvc.autorepack", "true")
    many_commits(repo, AUTO_COMMITS - 1)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(subprocess, "Popen", fail)
    result = repo.commit("due now", allow_empty=True)
    assert repo.head.commit == result.commit
    monkeypatch.setattr(sys, "executable", "")
    assert repo.commit("again", allow_empty=True).commit == repo.head.commit


def test_it_really_runs(repo, root):
    """A process of its own, that ends, leaves no zombie, and did what it is for."""
    for name in ("mvc", "numpy", "types", "typing", "sitecustomize"):
        (root / f"{name}.py").write_text(f"open({str(root / 'imported')!r}, 'w').write({name!r})")
    repo.set_config("mvc.autorepack", "true")
    commits = many_commits(repo)
    (process,) = aftercare._running
    commits.append(commit_step(repo, 30))  # beside it, and nobody waits
    assert process.wait(timeout=600) == 0
    assert not (root / "imported").exists()
    with exclusive_lock(root / ".mvc" / LOCK_NAME, wait=False):
        pass
    context = Repo.open(root)._context
    assert len(context.store.packs()) <= 3
    assert (context.store.copies().bases >= 0).any()
    assert set(read_note(context)) & set(commits)
    # What is over is let go with the next commit; the kernel knows no child any more.
    repo.commit("next", allow_empty=True)
    assert process not in aftercare._running
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    assert [load_exactly(repo, one) for one in commits] == [*range(AUTO_COMMITS), 30]
    assert Repo.open(root).upkeep.fsck(data=True).ok


def test_a_command_that_ends_leaves_its_upkeep_running(repo, root):
    """The command line is back at once; the repack goes on without it and ends by itself."""
    many_commits(repo)
    repo.set_config("mvc.autorepack", "true")
    (root / "notes.txt").write_text("notes")
    command = [sys.executable, "-m", "mvc", "commit", "-m", "m", "notes.txt"]
    done = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True)
    assert "warning" not in done.stderr.lower()
    deadline_s = time.monotonic() + 600
    while not read_note(repo._context):
        # Without a look at its lock: an upkeep that finds the lock taken ends at once.
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    with exclusive_lock(root / ".mvc" / LOCK_NAME):
        pass
    assert len(Repo.open(root)._context.store.packs()) == 1
    assert Repo.open(root).upkeep.fsck(data=True).ok


def test_a_second_one_ends_at_once(repo, root):
    many_commits(repo)
    with upkeep_lock(repo._context):
        done = subprocess.run(
            module_command("mvc", *aftercare._UPKEEP),
            cwd=root,
            capture_output=True,
            check=False,
            text=True,
        )
    assert done.returncode != 0
    assert done.stderr.count("\n") <= 2
    assert "Traceback" not in done.stderr
    assert len(repo._context.store.packs()) == AUTO_COMMITS


def test_delta_beside_another_upkeep(repo, root):
    """The commit stands; that it is stored whole is for the next repack to mend."""
    from support.models import write_model

    rng = np.random.default_rng(1)
    values = rng.standard_normal((256, 64)).astype(np.float32)
    write_model(root / "model.safetensors", embed=values)
    repo.commit("one", paths=".")
    write_model(root / "model.safetensors", embed=values * np.float32(1.0001))
    repo.add(".", delta=False)
    with upkeep_lock(repo._context):
        result = repo.commit("two", delta=True)
    assert repo.head.commit == result.commit
    assert not (repo._context.store.copies().bases >= 0).any()
    repo.upkeep.repack()
    assert (repo._context.store.copies().bases >= 0).any()
    assert repo.upkeep.fsck(data=True).ok
