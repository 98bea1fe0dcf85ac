"""A killed training leaves its newest state in memory; the next run goes on from there, and trusts no byte of it."""

from __future__ import annotations

import logging
import mmap
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from mvc import Identity, Repo  # noqa: E402
from mvc_hooks import Checkpointer, lingering  # noqa: E402
from mvc_hooks.lingering import find_folder  # noqa: E402
from mvc_hooks.tiers.images import find_remembered  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(
        "ignore:This process:DeprecationWarning"
    ),  # it forks, and has threads
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory does not outlive a run"),
]

ME = Identity("Ada", "ada@example.org")


@pytest.fixture(autouse=True)
def private(tmp_path, monkeypatch):
    """A folder of sockets of its own, so that the runs of other tests are not in the way."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder / "mvc"


def train(folder, *, steps, **options):
    model = torch.nn.Linear(300, 100)
    options = {"every": 1, "identity": ME, "signals": False, "detectors": (), **options}
    ckpt = Checkpointer(folder, model=model, **options)
    for _ in ckpt.steps(steps):
        with torch.no_grad():
            model.weight += 1
        ckpt.step(loss=1.0)
    return model, ckpt


def train_and_die(folder):
    """Train three steps in a child that is killed, and wait for what it leaves."""
    pid = os.fork()
    if not pid:
        _, ckpt = train(folder, steps=3)
        ckpt.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    return wait_for_remembered(folder)


def wait_for_remembered(folder):
    """Return what is held; the writer becomes what holds it once its training is gone."""
    git_dir = Repo.open(folder).git_dir
    while not (found := find_remembered(git_dir, "main")):
        os.sched_yield()  # ended by the timeout of the test run, if it never comes
    return found


def lose_packs(folder):
    for path in (Path(folder) / ".mvc/chunks").rglob("*"):
        if path.is_file():
            path.unlink()


def tell_resumed(caplog):
    return [one.getMessage() for one in caplog.records if "resumed at" in one.getMessage()]


def test_nothing_is_read_from_the_store(tmp_path, caplog):
    folder = tmp_path / "models"
    (held,) = train_and_die(folder)
    assert held.held.rank == 0
    held.close(is_done=False)
    wanted = Repo.open(folder).load_state()["model"]["weight"]
    lose_packs(folder)
    with caplog.at_level(logging.INFO, logger="mvc_hooks"):
        model, ckpt = train(folder, steps=0)
    assert torch.equal(model.weight, wanted)
    (line,) = tell_resumed(caplog)
    assert line.startswith("resumed at step 3 from memory in ")
    ckpt.close()


def test_it_is_let_go_once_the_next_run_has_it(tmp_path, private):
    folder = tmp_path / "models"
    (held,) = train_and_die(folder)
    _, ckpt = train(folder, steps=0)
    assert held.link.recv(1) == b"", "the process that held it is still there"
    held.close(is_done=False)
    ckpt.close()
    assert find_remembered(Repo.open(folder).git_dir, "main") == []


def test_a_lie_is_told(tmp_path, caplog):
    folder = tmp_path / "models"
    (held,) = train_and_die(folder)
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (path,) = find_folder().iterdir()
    with lingering.short_name(path) as name:
        link.connect(name)
    _, (told, memory), _, _ = socket.recv_fds(link, 16, 2)
    start, size = held.held.places["model.safetensors"]
    with mmap.mmap(memory, held.held.size_bytes) as view:
        view[start + size - 1] ^= 1
    for one in (memory, told):
        os.close(one)
    link.close()
    held.close(is_done=False)
    wanted = Repo.open(folder).load_state()["model"]["weight"]
    with caplog.at_level(logging.INFO, logger="mvc_hooks"):
        model, ckpt = train(folder, steps=0)
    assert torch.equal(model.weight, wanted)
    (line,) = tell_resumed(caplog)
    assert line.startswith("resumed at step 3 from memory and the local store in ")
    assert any(
        "memory was wrong" in one.getMessage() and "model" in one.getMessage()
        for one in caplog.records
    )
    ckpt.close()


def test_a_run_that_ends_leaves_nothing(tmp_path, private):
    folder = tmp_path / "models"
    _, ckpt = train(folder, steps=2)
    ckpt.close()
    assert find_remembered(Repo.open(folder).git_dir, "main") == []


def test_another_branch_is_none_of_its_business(tmp_path):
    folder = tmp_path / "models"
    (held,) = train_and_die(folder)
    held.close(is_done=False)
    _, ckpt = train(folder, steps=1, branch="other")
    ckpt.close()
    (held,) = find_remembered(Repo.open(folder).git_dir, "main")
    held.close(is_done=True)


def test_what_is_held_ends_with_the_repository(tmp_path, monkeypatch):
    folder = tmp_path / "models"
    (held,) = train_and_die(folder)
    (folder / ".mvc").rename(tmp_path / "gone")
    assert held.link.recv(1) == b""
    held.close(is_done=False)


def test_a_folder_that_others_can_enter_is_not_used(private):
    private.mkdir(mode=0o755)
    private.chmod(0o755)
    assert find_folder() is None
    assert find_remembered(private, "main") == []


def test_one_that_asks_and_dies_takes_nothing_with_it(tmp_path):
    folder = tmp_path / "models"
    (held,) = train_and_die(folder)
    (path,) = find_folder().iterdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hasty:
        with lingering.short_name(path) as name:
            hasty.connect(name)
        assert hasty.recv(1, socket.MSG_PEEK), "it was answered, and leaves before it reads that"
    with Repo.open(folder) as repo:
        (again,) = find_remembered(repo.git_dir, "main")
    assert again.held == held.held
    held.close(is_done=False)
    again.close(is_done=True)


def test_a_dead_socket_is_harmless(tmp_path):
    folder = tmp_path / "models"
    (held,) = train_and_die(folder)
    (path,) = find_folder().iterdir()
    held.close(is_done=True)
    while path.exists():
        os.sched_yield()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        with lingering.short_name(path) as name:
            dead.bind(name)
    model, ckpt = train(folder, steps=4)
    assert ckpt.commits[-1].step == 4 or ckpt.step_count == 4
    ckpt.close()
    assert model is not None
