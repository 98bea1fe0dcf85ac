"""A checkout that was cut short: every command finishes it or says so, and no dry run touches it.

And an add: the next one goes on from there.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

from mvc.workspace import transition

_JOURNAL = ".mvc/transition.json"
_LARGE_BYTES = 128 * 2**20
_WORDS = "a checkout was interrupted"


@pytest.fixture
def cut(shell, monkeypatch):
    """A switch to ``side`` that ended right after its journal was written."""

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transition, "_apply", stop)
        assert shell("switch", "side").code == 130
    assert (shell.folder / _JOURNAL).exists()
    return shell


def snapshot(folder):
    """Return what lies there; the journal's staged files, inodes and times included."""
    stats = [(path, path.lstat()) for path in sorted(folder.rglob("*"))]
    return {str(path): (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in stats}


def test_a_reader_or_dry_run_names_it_and_changes_nothing(cut):
    for command in [
        "gc -n --grace now",
        "repack -n",
        "prune -n --keep-last 1",
        "add -n .",
        "undo -n",
        "rollback -n HEAD~1",
        "log",
        "show",
        "branch",
        "tag",
        "reflog",
        "ls HEAD",
        "fsck",
        "config",
    ]:
        before = snapshot(cut.folder)
        answer = cut(*command.split())
        assert answer.err.count(_WORDS) == (2 if command == "undo -n" else 1)
        assert 'mvc status"' in answer.err
        assert answer.code == (4 if command == "undo -n" else 0)
        assert snapshot(cut.folder) == before


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "gc",
        "commit --allow-empty -m x",
    ],
)
def test_what_changes_something_finishes_it(cut, command):
    answer = cut.ok(*command.split())
    if (cut.folder / _JOURNAL).exists():
        assert _WORDS in answer.err
    else:
        assert answer.err == ""
        assert cut.json("status")["branch"] == "side"
        assert cut.json("status")["files"] == []


def test_an_add_that_ctrl_c_ended_goes_on(empty):
    (empty.folder / "large.bin").write_bytes(os.urandom(_LARGE_BYTES))
    packs = empty.folder / ".mvc" / "chunks" / "packs"
    adding = subprocess.Popen(
        [sys.executable, "-m", "mvc", "add", "large.bin"],
        cwd=empty.folder, env={**os.environ, **empty.environment}, stderr=subprocess.PIPE,
    )  # fmt: skip
    while adding.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            if sum(path.stat().st_size for path in packs.glob("*")) > _LARGE_BYTES // 8:
                adding.send_signal(signal.SIGINT)
                break
    said = adding.communicate()[1].decode()
    assert adding.returncode == 130
    stored = re.fullmatch(
        r"interrupted: (\S+) MiB of it are stored; .* from there; nothing was staged\n", said
    )
    assert empty.json("status")["files"][0]["staged"] == "unmodified"
    written = empty.json("add", "large.bin")["bytes"]
    assert written["reused"] / 2**20 == float(stored[1]) >= _LARGE_BYTES / 8 / 2**20
    assert written["written"] < _LARGE_BYTES - written["reused"] + 2**16
    assert empty.ok("fsck", "--data")
