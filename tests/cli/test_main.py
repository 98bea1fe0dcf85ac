"""The program as a process: help, version, a whole job, and a reader that goes away."""

import json
import os
import subprocess
import sys

import pytest

from mvc.cli import NAMES
from mvc.cli.main import run
from support.models import write_model


def test_help_and_version_as_processes(shell):
    helped = shell.process("--help")
    assert helped.returncode == 0
    assert b"Exit codes: 0 done" in helped.stdout
    for name in NAMES:
        assert f"  {name} ".encode() in helped.stdout
    assert shell.process().stdout == helped.stdout
    assert shell.process("--version").stdout.startswith(b"mvc ")
    assert shell.process("-h").stdout == helped.stdout


def test_help_as_a_command(bare):
    assert bare.ok("help").out == bare.ok("--help").out
    assert bare.ok("help", "commit").out == bare.ok("commit", "-h").out
    assert bare("help", "comit").code == 2


def test_a_whole_job_as_processes(bare):
    write_model(bare.folder / "model.safetensors")
    for arguments in (["init"], ["commit", "-m", "base", "."], ["log", "--json"]):
        result = bare.process(*arguments)
        assert result.returncode == 0, result.stderr
        assert result.stderr == b""
    assert json.loads(result.stdout)[0]["subject"] == "base"
    assert bare.process("diff", "nope").returncode == 3


_ENDS = """
import atexit, sys, threading
from mvc.cli.main import main
atexit.register(print, "taken apart")
if sys.argv.pop() == "busy":
    threading.Thread(target=lambda: print(threading.main_thread().join() or "thread")).start()
main()
"""


@pytest.mark.parametrize(("state", "last"), [("idle", b""), ("busy", b"thread\ntaken apart\n")])
def test_the_process_ends_at_once_unless_a_thread_is_at_work(bare, state, last):
    def end(*arguments):
        return subprocess.run(
            [sys.executable, "-c", _ENDS, *arguments, state],
            cwd=bare.folder, capture_output=True, check=False, env={**os.environ, **bare.environment},
        )  # fmt: skip

    assert end("help", "commit").stdout == bare.process("help", "commit").stdout + last
    assert (end("nope").returncode, end("status").returncode) == (2, 10)


def test_a_closed_stream_is_no_error(shell):
    for line, code in [("status >&-", 0), ("nope 2>&-", 2)]:
        done = subprocess.run(
            ["sh", "-c", f"exec {sys.executable} -m mvc {line}"],
            cwd=shell.folder,
            env={**os.environ, **shell.environment},
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_a_reader_that_goes_away_is_no_error(shell):
    for number in range(3):
        shell.ok("commit", "-q", "--allow-empty", "-m", "x" * 40_000 + str(number))
    command = f"{sys.executable} -m mvc log | head -n 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=shell.folder,
        env={**os.environ, **shell.environment},
        capture_output=True,
        check=True,
    )
    assert result.stderr == b""
    assert result.stdout.splitlines()[-1] in (b"141", b"0")


def test_an_encoding_without_our_signs_does_not_fail(shell):
    shell.ok("commit", "-q", "--allow-empty", "-m", "naïve 模型")
    shell.environment["PYTHONIOENCODING"] = "ascii"
    result = shell.process("log", "-n1", "--oneline")
    assert result.returncode == 0
    assert b"na\\xefve" in result.stdout


def test_an_internal_error_is_told_as_such(monkeypatch, capsys):
    def fail(arguments):
        raise ZeroDivisionError("odd")

    monkeypatch.setattr("mvc.cli.main._invoke", fail)
    monkeypatch.delenv("MVC_DEBUG", raising=False)
    assert run(["log"]) == 8
    err = capsys.readouterr().err
    assert err.startswith("error: internal error: ZeroDivisionError: odd\nhint: ")
    assert "MVC_DEBUG=1" in err
    assert "Traceback" not in err
    monkeypatch.setenv("MVC_DEBUG", "1")
    assert run(["log"]) == 8
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c(monkeypatch, capsys):
    def stop(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("mvc.cli.main._invoke", stop)
    assert run(["log"]) == 130
    assert capsys.readouterr().err == ""
