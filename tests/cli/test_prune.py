"""prune and what other commands say of released commits, as whole commands."""

import os
import pty
import re
import subprocess
import sys

import pytest

from support.cli import plain
from support.models import digest, write_model


@pytest.fixture
def run(empty):
    """Commits of steps 0 to 4000, a model and an optimizer each."""
    shell = empty
    for number in range(5):
        for place, name in enumerate(("model", "optimizer")):
            write_model(shell.folder / f"{name}.safetensors", seed=2 * number + place)
        shell.ok(
            *("commit", "-m", f"epoch {number}", "--step", f"{number * 1000}"),
            *("--metric", f"loss={abs(2.5 - number)}", "."),
        )
    return shell


def steps(shell):
    return [entry["step"] for entry in shell.json("log") if entry["released"] is not None]


def on_terminal(shell, answer, *options):
    """Run prune where someone answers; return its exit code, its output and what it asked."""
    outer, inner = pty.openpty()
    os.write(outer, answer)
    done = subprocess.run(
        [sys.executable, "-m", "mvc", "prune", "--keep-last", "2", *options],
        cwd=shell.folder, env={**os.environ, **shell.environment}, stdin=inner, stderr=inner,
        stdout=subprocess.PIPE, timeout=300, check=False,
    )  # fmt: skip
    os.write(inner, b"end\n")
    asked = b""
    while b"end" not in asked:
        asked += os.read(outer, 65536)
    os.close(inner)
    os.close(outer)
    return done.returncode, done.stdout.decode(), asked.decode()


class TestQuestion:
    def test_asked_on_a_terminal(self, run):
        for answer in (b"n\n", b"\n", b"\x04"):
            code, out, asked = on_terminal(run, answer)
            assert code == 1
            assert re.search(r"release 6 files of 3 commits and free \S+ KiB\? \[y/N\] ", asked)
            assert "nothing was released" in asked
            assert "released" not in out
        assert steps(run) == []
        assert on_terminal(run, b"y\n")[0] == 0
        assert steps(run) == [2000, 1000, 0]
        assert "?" not in on_terminal(run, b"n\n")[2]  # nothing is left to release

    def test_not_asked(self, run):
        assert "?" not in on_terminal(run, b"n\n", "--dry-run")[2]
        assert steps(run) == []
        assert "?" not in on_terminal(run, b"n\n", "--yes")[2]
        assert steps(run) == [2000, 1000, 0]


class TestPlan:
    def test_table_and_sum(self, run):
        answer = run.ok("prune", "--keep-last", "2", "--dry-run")
        verbs = [line.split()[0] for line in answer.lines]
        assert verbs == ["keep", "keep", "release", "release", "release", "would"]
        assert "HEAD, tip of main, last 2 of main" in answer.lines[0]
        assert re.search(r"step 2,000 +epoch 2 +\S+ KiB +model\S+, optimizer\S+$", answer.lines[2])
        assert re.fullmatch(
            r"would release 6 files of 3 commits and free \S+ KiB", answer.lines[-1]
        )
        assert steps(run) == []

    def test_nothing_to_do(self, run):
        assert run.ok("prune", "--keep-within", "7d").lines[-1] == "nothing to release"

    def test_wrong(self, run):
        for arguments, code, error in [
            ((), 2, "the policy keeps nothing"),
            (("--keep-last", "0"), 2, "a rule with 0 keeps nothing"),
            (("--keep-best", "3"), 2, "takes both a number and a metric"),
            (("--keep-within", "soon"), 2, "'soon' is not a span of time"),
        ]:
            answer = run("prune", *arguments)
            assert (answer.code, answer.out) == (code, "")
            assert error in answer.error
            assert answer.hint


class TestRun:
    def test_fsck_and_log(self, run):
        run.ok("prune", "--keep-last", "3")
        assert ", 4 released, " in run.ok("fsck", "--data").out
        assert run.json("fsck")["released"] == 4
        lines = run.ok("log", "--oneline").lines
        assert ["[released]" in line for line in lines] == [False, False, False, True, True]
        graph = plain(run.ok("log", "--oneline", "--graph", terminal=True).out)
        assert graph.count("[released] epoch") == 2
        full = run.ok("show", "main@1000").out
        assert re.search(
            r"^Content: 2 files released on 20..-..-.. by --keep-last 3$", full, re.MULTILINE
        )
        (released,) = [one["released"] for one in run.json("log") if one["step"] == 1000]
        assert released["policy"] == "--keep-last 3"
        assert released["files"] == ["model.safetensors", "optimizer.safetensors"]
        assert run.json("show", "HEAD")["released"] is None
        assert "released" not in run.ok("log", "--all").out.replace("Content: 2 files released", "")

    def test_weights_only(self, run):
        answer = run.ok("prune", "--keep-last", "1", "--weights-only")
        assert "the model always stays" in answer.out
        assert "[model only]" in run.ok("log", "--oneline").lines[1]
        run.ok("restore", "--source", "main@1000", "model.safetensors")
        answer = run("checkout", "main@1000")
        assert answer.code == 9
        assert "optimizer.safetensors" in answer.error


def test_a_rerun_is_recognised(run):
    run.ok("prune", "--keep-last", "1")
    for place, name in enumerate(("model", "optimizer")):
        write_model(run.folder / f"{name}.safetensors", seed=2 + place)
    answer = run.ok("commit", "-am", "again")
    assert re.search(
        r"bit-identical to released commit [0-9a-f]{7} \(step 1,000\): 2 files of it restored",
        answer.out,
    )
    assert steps(run) == [3000, 2000, 0]
    run.ok("checkout", "main@1000")
    assert run.json("fsck")["problems"] == []


def test_what_is_gone_is_an_error_that_says_where_to_go(run):
    answer = run.ok("prune", "--keep-best", "1", "--metric", "loss", "--keep-last", "1")
    assert re.fullmatch(r"released 6 files of 3 commits, \S+ KiB freed", answer.lines[-1])
    before = digest(run.folder / "model.safetensors")
    answer = run("checkout", "main@1000")
    assert (answer.code, answer.out) == (9, "")
    assert "(step 1,000) was released on 20" in answer.error
    assert "'epoch 3' (step 3,000) is the nearest that still has it" in answer.hint
    assert digest(run.folder / "model.safetensors") == before
    run.ok(*re.search(r'"mvc (.*)"', answer.hint)[1].split())
    assert run.ok("log", "--oneline", "-1").out.endswith("epoch 3\n")
