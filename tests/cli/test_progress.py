"""The progress bar: there where somebody looks and the work takes a while, nowhere else."""

import io
import threading

import pytest

from mvc.cli.progress import ByteBar, byte_progress
from mvc.progress import announce, current_progress, report


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "wanted"), [(io.StringIO, True), (_Terminal, False)])
def test_nothing_where_it_is_not_seen_or_wanted(monkeypatch, stream, wanted):
    monkeypatch.setattr("sys.stderr", stream())
    with byte_progress("adding", wanted=wanted):
        assert current_progress() is None


def test_quick_work_shows_no_bar(monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)  # quick, however busy the machine is
    with byte_progress("adding"):
        assert current_progress() is not None
        announce(10)
        report(10)
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
