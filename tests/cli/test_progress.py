"""The progress bar: there where somebody looks and the work takes a while, nowhere else."""

import io
import threading

from mvc.cli.progress import ByteBar, byte_progress


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


def test_every_command_with_a_bar_goes_without(shell):
    for command in [
            ["add", "."], ["commit", "--allow-empty", "-m", "x"], ["diff", "v1"], ["checkout", "side"],
            ["switch", "side"], ["restore", "."], ["reset", "--hard", "v1"], ["fsck", "--data"],
            ["export", "HEAD", "-o", "x"],
        ]:  # fmt: skip
        assert shell.ok(*command, "--no-progress", terminal=True).err == ""
