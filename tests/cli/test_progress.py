"""The progress bar: there where somebody looks and the work takes a while, nowhere else."""

from __future__ import annotations

import io
import threading

import pytest

from mvc.cli.progress import ByteBar, byte_progress
from support.models import write_model


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_nothing_without_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with byte_progress("adding") as bar:
        assert bar is None


def test_nothing_where_it_is_not_wanted(monkeypatch):
    monkeypatch.setattr("sys.stderr", _Terminal())
    with byte_progress("adding", wanted=False) as bar:
        assert bar is None


def test_quick_work_shows_no_bar(monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)  # quick, however busy the machine is
    with byte_progress("adding") as bar:
        bar.expect(10)
        bar(10)
    assert terminal.getvalue() == ""


def test_long_work_shows_bytes_speed_and_time_left(monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("mvc.cli.progress.REDRAW_S", 0)
    bar, threads = ByteBar("adding", quiet_s=0), threading.active_count()
    bar.expect(4 * 2**20)
    bar(2**20)
    bar(2**20)
    assert threading.active_count() == threads
    bar.stop()
    shown = terminal.getvalue()
    assert "adding" in shown
    assert "2.0/4.0 MiB" in shown
    assert ":" in shown
    bar.stop()


def test_any_thread_may_report(monkeypatch):
    monkeypatch.setattr("sys.stderr", _Terminal())
    bar = ByteBar("adding", quiet_s=0)
    threads = [threading.Thread(target=lambda: [bar(1) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bar._done_bytes == 800
    bar.stop()


@pytest.mark.parametrize(
    "command",
    [
        ["add", "."], ["commit", "--allow-empty", "-m", "x"], ["diff", "v1"], ["checkout", "side"],
        ["switch", "side"], ["restore", "."], ["reset", "--hard", "v1"], ["fsck", "--data"],
        ["export", "HEAD", "-o", "x"],
    ],
)  # fmt: skip
def test_every_command_with_a_bar_goes_without(shell, command):
    assert shell.ok(*command, "--no-progress", terminal=True).err == ""


def test_operations_say_how_much_is_to_come(shell, tmp_path):
    from mvc.repo import Repo

    class Counter:
        def __init__(self):
            self.expected = self.done = 0

        def expect(self, size_bytes):
            self.expected += size_bytes

        def __call__(self, size_bytes):
            self.done += size_bytes

    repo = Repo.open(shell.folder)
    write_model(shell.folder / "model.safetensors", seed=5)
    size_bytes = (shell.folder / "model.safetensors").stat().st_size
    for action in (
        lambda progress: repo.diff(progress=progress),
        lambda progress: repo.add("model.safetensors", progress=progress),
        lambda progress: repo.reset("HEAD", mode="hard", progress=progress),
    ):
        counter = Counter()
        action(counter)
        assert counter.expected == counter.done > 0, (action, size_bytes)
    for action in (
        lambda progress: repo.export("HEAD", tmp_path / "x", progress=progress),
        lambda progress: repo.fsck(data=True, progress=progress),
    ):
        counter = Counter()
        action(counter)
        assert counter.expected == counter.done > 0
