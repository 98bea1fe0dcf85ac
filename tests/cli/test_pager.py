"""Long results on a terminal go through the user's pager, and nowhere else."""

import shutil

import pytest

from support.screen import Screen


@pytest.fixture
def long(shell):
    """A shell in a repository whose log is longer than the terminal."""
    for number in range(30):
        shell.ok("commit", "-q", "--allow-empty", "-m", f"commit {number}")
    shell.environment["MVC_PAGER"] = "cat > shown; echo the pager ended"
    return shell


def show(shell, *arguments):
    """Run a command on a terminal; return its exit code, what the terminal and the pager showed."""
    (shell.folder / "shown").unlink(missing_ok=True)
    with Screen(shell, *arguments) as screen:
        code = screen.end()
    shown = shell.folder / "shown"
    return code, screen.text, shown.read_text() if shown.exists() else None


def test_what_lists_goes_through_the_pager(shell):
    for line, text in [
        (["log", "--oneline"], "\x1b[33m"),
        (["show", "HEAD:config.json"], "width"),
        (["branch"], "side"),
        (["config", "--list"], "core."),
    ]:
        shell.environment["MVC_PAGER"] = "cat > shown; echo the pager ended"
        code, terminal, shown = show(shell, *line)
        assert (code, terminal) == (0, "the pager ended\r\n")
        assert text in shown


def test_only_where_someone_reads(long):
    for line in (["-P", "log"], ["--no-pager", "log"], ["log", "--json"], ["status"]):
        code, terminal, shown = show(long, *line)
        assert (code, shown) == (0, None)
        assert "the pager" not in terminal
        assert terminal
    assert b"commit 29" in long.process("log").stdout
    for variable, value in (("TERM", "dumb"), ("MVC_PAGER", "cat"), ("MVC_PAGER", "")):
        kept = dict(long.environment)
        long.environment[variable] = value
        code, terminal, shown = show(long, "log")
        assert (code, shown) == (0, None)
        assert "commit 0" in terminal
        long.environment.update(kept)


def test_the_first_that_is_set_counts(long):
    long.environment["PAGER"] = "cat > shown; echo PAGER"
    assert show(long, "log")[1] == "the pager ended\r\n"
    del long.environment["MVC_PAGER"]
    assert show(long, "log")[1] == "PAGER\r\n"
    assert long("config", "core.pager", "less").code == 2  # no repository runs programs
    long.ok("config", "--global", "core.pager", "cat > shown; echo setting")
    assert show(long, "log")[1] == "setting\r\n"
    long.environment["MVC_PAGER"] = "no-such-pager -R"
    code, terminal, _ = show(long, "log")
    assert code == 0
    assert "warning" in terminal
    assert "'no-such-pager -R' was not found" in terminal
    assert "commit 0" in terminal


def test_quitting_it_early_is_no_error(long):
    long.ok("commit", "-q", "--allow-empty", "-m", "x" * 200_000)
    long.environment["MVC_PAGER"] = "head -n 1 > shown"
    code, terminal, shown = show(long, "log")
    assert (code, terminal) == (0, "")
    assert shown.startswith("\x1b[33mcommit ")


def test_ctrl_c_is_the_pagers(long):
    long.environment["MVC_PAGER"] = "cat > shown; kill -INT $PPID"
    assert show(long, "log")[:2] == (0, "")


def test_an_error_after_it_is_seen(long):
    code, terminal, shown = show(long, "log", "nope")
    assert (code, shown) == (3, None)
    assert "error:" in terminal


def test_without_less_the_terminal_gets_it_all(long, tmp_path):
    del long.environment["MVC_PAGER"]
    long.environment["PATH"] = str(tmp_path)
    code, terminal, _ = show(long, "log")
    assert code == 0
    assert "commit 29" in terminal
    assert "commit 0" in terminal


@pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
def test_less_in_earnest(long):
    del long.environment["MVC_PAGER"]
    with Screen(long, "log", "--oneline", rows=10) as screen:
        screen.wait_for("commit 22")
        assert "commit 12" not in screen.text
        screen.press(b" ")
        screen.wait_for("commit 14")
        screen.press(b"q")
        assert screen.end() == 0
    with Screen(long, "log", "-n", "2", "--oneline") as screen:
        assert screen.end() == 0  # it fits
    assert "commit 28" in screen.text
