"""verify: text, JSON, exit codes, and the process that replays."""

import importlib.util
import json
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mvc.cli import training_code as module
from mvc.repo import Repo
from support.cli import plain
from support.models import write_config


def change(shell, **tensors):
    path = shell.folder / "model.safetensors"
    values = {name: value.copy() for name, value in load_file(path).items()}
    save_file({**values, **tensors}, path)


def test_another_header_is_the_same(shell):
    assert shell.ok("verify").lines == [
        f"the same: 2 files, 9 tensors as in HEAD ({shell.json('verify')['commit'][:7]})"
    ]
    path = shell.folder / "model.safetensors"
    values = {name: value.copy() for name, value in load_file(path).items()}
    path.unlink()
    for number, name in enumerate(values):
        save_file({name: values[name]}, shell.folder / f"m-{number:05d}-of-00009.safetensors")
    names = ", ".join(f"m-{number:05d}-of-00009.safetensors" for number in range(3))
    said = f"(in {names} and 6 more; the same 9 tensors in other files)"
    assert shell.ok("verify").lines[0] == f"same tensors: model.safetensors  {said}"
    assert len(shell.json("verify")["files"][1]["found_in"]) == 9
    assert shell.ok("verify", "-q").out == ""
    hostile = "a\x1b[2J"
    (shell.folder / hostile).write_text("x")
    shell.ok("add", ".")
    shell.ok("commit", "-m", "x")
    (shell.folder / hostile).write_text("y")
    assert "\x1b" not in shell("verify").out


def test_what_differs(shell):
    write_config(shell.folder / "config.json", lr=1)
    embed = np.zeros((80, 32), np.float32)
    embed[0, :3] = [1, -0.0, 2.5]
    norm = np.ones(32, np.float32)
    norm[0] = np.nan
    q = np.zeros((32, 32), np.float32)
    q[3, 3] = -0.0
    head = np.ones((2, 64), np.float16)
    change(shell, embed=embed, norm=norm, layers__more=embed, head=head, **{"layers.1.q": q})
    answer = shell("verify")
    assert answer.code == 1
    assert [" ".join(line.split()) for line in answer.lines[:-1]] == [
        "different: config.json (its bytes differ)",
        "different: model.safetensors (4 of 9 tensors differ)",
        "M embed F32[80, 32] 3 of 2,560 elements, by up to 2.5",
        "M layers.1.q F32[32, 32] 1 of 1,024 elements, equal as numbers (-0 or another NaN)",
        "M norm F32[32] 1 of 32 elements, NaN on one side only",
        "M head F16[4, 32] -> F16[2, 64]",
        "A layers__more F32[80, 32] only in the file",
    ]
    assert answer.lines[-1].startswith("not the same: 2 of 2 files differ from HEAD (")
    assert shell("verify", "-q").lines == answer.lines[:-1]
    fields = shell.json("verify", code=1)
    assert fields["same"] is False
    tensors = {tensor["name"]: tensor for tensor in fields["files"][1]["tensors"]}
    assert tensors["norm"]["largest_difference"] == "nan"
    assert tensors["embed"]["elements"] == {"changed": 3, "total": 2560}
    assert tensors["head"]["old_shape"] == [4, 32]
    assert tensors["head"]["elements"]["changed"] is None


def test_a_long_list_on_a_terminal(empty):
    path = empty.folder / "m.safetensors"
    save_file({f"w{number:02}": np.zeros(2, np.float32) for number in range(40)}, path)
    empty.ok("add", ".")
    empty.ok("commit", "-m", "x")
    save_file({f"w{number:02}": np.ones(2, np.float32) for number in range(40)}, path)
    lines = plain(empty("verify", terminal=True).out).splitlines()
    assert len(lines) == 1 + 19 + 1 + 1
    assert lines[-2] == "  … and 21 more (--json has all)"
    assert len(empty("verify").lines) == 1 + 40 + 1


FAKE_REPLAY = """
import json, os, sys
assert "OPENBLAS_NUM_THREADS" not in os.environ
print(json.dumps(sys.argv[1:]))
print("to stderr", file=sys.stderr)
sys.exit(1 if sys.argv[3] == "2" else 0)
"""


class TestReplay:
    def test_wrong_use(self, shell):
        for arguments, code, message in [
            (["--replay", "3"], 2, "needs --entry"),
            (["--entry", "train.py:build"], 2, "needs --entry"),
            (["--replay", "0", "--entry", "train.py:build"], 2, "at least one step"),
            (["--replay", "3", "--entry", "train.py:build", "HEAD", "config.json"], 2, "path"),
            (["--replay", "3", "--entry", "train.py"], 3, "names no function"),
            (["--replay", "3", "--entry", "none.py:build"], 3, "'none.py' does not exist"),
            (["--replay", "3", "--entry", "train.py:build", "nope"], 3, "'nope'"),
            (["--replay", "x", "--entry", "train.py:build"], 2, "whole number"),
        ]:
            (shell.folder / "train.py").write_text("")
            answer = shell("verify", *arguments)
            assert answer.code == code
            assert message in answer.error

    def test_hooks_that_are_not_there(self, shell, monkeypatch):
        (shell.folder / "train.py").write_text("")
        for missing in ("torch", "mvc_lab", "mvc_lab.replay"):
            known = {"torch", "mvc_lab", "mvc_lab.replay"} - {missing}
            monkeypatch.setattr(
                importlib.util,
                "find_spec",
                lambda name, known=known: name if name in known else None,
            )
            answer = shell("verify", "--replay", "3", "--entry", "train.py:build")
            message = f"--replay needs {missing}, which is not installed"
            assert (answer.code, answer.error) == (7, message)

    @pytest.mark.parametrize(("steps", "code"), [("2", 1), ("3", 0)])
    def test_what_it_says_goes_through(self, shell, steps, code, monkeypatch):
        (shell.folder / "train.py").write_text("")
        package = shell.folder / "other" / "mvc_lab"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "replay.py").write_text(FAKE_REPLAY)
        (package.parent / "torch.py").write_text("")
        monkeypatch.setenv("PYTHONPATH", str(package.parent))
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        arguments = ["verify", "--replay", steps, "--entry", "train.py:build", "v1"]
        commit = Repo.open(shell.folder).resolve("v1")
        expected = [str(shell.folder.resolve()), commit, steps, "train.py:build"]
        done = shell.process(*arguments)
        assert done.returncode == code
        assert json.loads(done.stdout) == expected
        assert done.stderr == b"to stderr\n"
        assert json.loads(shell.process(*arguments, "--json").stdout) == [*expected, "--json"]
        assert shell.process(*arguments, "-q").stdout == b""


def test_the_interpreter_is_the_same(shell, monkeypatch):
    seen = []

    def run(command, **_):
        seen.append(command)
        return type("Done", (), {"returncode": -9})

    (shell.folder / "train.py").write_text("")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(module.subprocess, "run", run)
    assert shell("verify", "--replay", "3", "--entry", "train.py:build").code == 137
    assert seen[0][:3] == [sys.executable, "-m", "mvc_lab.replay"]
