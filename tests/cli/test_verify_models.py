"""verify A B: what names two models, the three layers as text and JSON, and what is refused."""

import re
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mvc.repo import Repo
from support.cli import plain

ENTRY = """
import torch
def build():
    print("hello")
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
def broken():
    raise RuntimeError("no config")
"""


def weights(seed=0, **changed):
    random = np.random.default_rng(seed)
    shapes = {"0.weight": (8, 4), "0.bias": (8,), "2.weight": (3, 8), "2.bias": (3,)}
    values = {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    return values | changed


@pytest.fixture
def files(bare):
    """Two checkpoints, an entry and inputs, without a repository."""
    other = weights()["2.bias"] + np.array([0, 0.5, 0], "f4")
    worse = weights()["2.bias"] + np.array([0, 9, 0], "f4")
    save_file(weights(**{"2.bias": worse}), bare.folder / "c.safetensors")
    save_file(weights(), bare.folder / "a.safetensors")
    save_file(weights(**{"2.bias": other}), bare.folder / "b.safetensors")
    (bare.folder / "net.py").write_text(ENTRY)
    np.save(bare.folder / "in.npy", np.random.default_rng(1).normal(size=(30, 4)).astype("f4"))
    return bare


RUN = ("--entry", "net.py:build", "--inputs", "in.npy")


class TestUnit:
    def test_revisions(self, shell):
        assert shell.ok("verify", "main", "HEAD").lines == [
            "unit passed: 9 tensors of HEAD the same to the bit, compared with main"
        ]
        answer = shell("verify", "v1", "main")
        assert answer.code == 1
        assert answer.lines[0].startswith("unit failed: 3 of 9 tensors of main are not the same")
        assert answer.lines[-1].startswith("  first difference: layers.1.q[0, 0] was ")
        assert shell("verify", "-q", "main", "HEAD").out == ""
        assert shell("verify", "v1..main").lines == answer.lines
        assert shell.ok("verify", "main..").lines[0].startswith("unit passed: 9 tensors of HEAD")

    def test_files_without_a_repository(self, files):
        answer = files("verify", "a.safetensors", "b.safetensors")
        assert answer.code == 1
        assert re.fullmatch(r"  first difference: 2.bias\[1\] was .* ULPs", answer.lines[-1])
        (line,) = files.ok("verify", "a.safetensors", "b.safetensors", "--atol", "0.6").lines
        told, _, worst = line.partition("; ")
        compared = "compared with a.safetensors"
        assert told == f"unit passed: 4 tensors of b.safetensors within 0.6, {compared}"
        assert worst.startswith("3 to the bit, the others by up to 0.5 (")
        assert worst.endswith(" of the old value) in 2.bias")
        values = weights()
        values["0.weight"] += np.linspace(0, 1, 32, dtype="f4").reshape(8, 4)
        values["more"] = values.pop("2.bias") + 1
        values["moved"] = values.pop("0.bias")
        save_file(values, files.folder / "c.safetensors")
        lines = files("verify", "a.safetensors", "c.safetensors", "--atol=0.5").lines[1:]
        rows = sorted(" ".join(line.split()) for line in lines if not line.startswith("  first"))
        assert rows[:2] == ["A more F32[3] only in c.safetensors", "D 2.bias F32[3] missing"]
        assert rows[2].startswith("M 0.weight F32[8, 4] 16 of 32 elements, by up to 1")
        assert rows[3] == "R moved F32[8] was 0.bias"
        found = files.json("verify", "a.safetensors", "b.safetensors", code=1)
        assert (found["passed"], found["module"], found["system"]) == (False, None, None)
        assert found["unit"]["tensors"][0]["largest"]["index"] == [1]
        alone = files("verify", "a.safetensors")
        assert (
            alone.code,
            alone.hint.endswith("or name two checkpoints or folders to compare"),
        ) == (10, True)

    def test_one_of_the_repository_and_a_file_elsewhere(self, shell, tmp_path):
        values = {
            name: one.copy() for name, one in load_file(shell.folder / "model.safetensors").items()
        }
        save_file(values, tmp_path / "copy.safetensors")
        assert shell("verify", "main", str(tmp_path / "copy.safetensors")).code == 0
        assert shell("verify", "HEAD:model.safetensors").code == 0
        assert shell("verify", "v1:model.safetensors").code == 1
        # A tolerance asks for numbers; the path of REV PATH stays that of a file of both.
        assert shell("verify", "HEAD", "model.safetensors", "--atol", "0").code == 0
        assert shell("verify", "model.safetensors", "--atol", "0").code == 0
        assert shell("verify", "--rtol", "1e-3").code == 0
        values["norm"][3] += 1
        save_file(values, shell.folder / "model.safetensors")
        for names in ([], ["HEAD"], ["model.safetensors"], ["HEAD", "model.safetensors"]):
            assert shell("verify", *names, "--atol", "0.5").code == 1, names
            assert shell("verify", *names, "--atol", "1.5").code == 0, names
        assert shell("verify", "HEAD", "config.json").out.startswith("the same: 1 file")

    def test_wrong_use(self, files):
        two = ["a.safetensors", "b.safetensors"]
        for line, code, said in [
            (["a.safetensors", "none"], 3, "'none' does not exist"),
            (["a.safetensors", "net.py"], 5, "no tensor can be found"),
            ([*two, "a.safetensors"], 10, "repository"),
            ([*two, "--atol", "nan"], 2, "not a tolerance"),
            ([*two, "--layers", "unit,moduel"], 2, "choose of"),
            ([*two, "--layers", "module"], 2, "needs --entry"),
            ([*two, "--inputs", "in.npy"], 2, "needs --entry"),
            ([*two, *RUN[:2], "--atol", "1"], 2, "needs --inputs"),
            ([*two, "--cosine", "0.9"], 2, "needs --entry"),
            ([*two, "--atol", "1", "--replay", "3"], 2, "--replay"),
            (["a.safetensors", *RUN, "--dtypes", "fp32,bf16", "--layers", "module"], 2, "--layers"),
            ([*two, *RUN, "--dtypes", "fp32,bf16"], 10, "repository"),
        ]:
            answer = files("verify", *line)
            assert (answer.code, said in answer.error) == (code, True), answer

    def test_names_that_mean_nothing(self, shell):
        assert shell("verify", "v1", "main", "HEAD").code == 2
        assert shell("verify", "v1", "nope").error == "'nope' is neither a revision nor a file"
        assert shell("verify", "v1", "--atol", "1", "--", "config.json").code == 2
        assert shell("verify", "v1:nope").code == 3


@pytest.mark.torch
class TestBehaviour:
    @pytest.mark.slow
    def test_all_layers(self, files):
        done = files.process("verify", "a.safetensors", "c.safetensors", *RUN)
        assert done.returncode == 1
        lines = done.stdout.decode().splitlines()
        assert lines[0].startswith("unit failed: 1 of 4 tensors")
        module = next(line for line in lines if line.startswith("module"))
        assert module.startswith(
            "module failed: cosine at least 0.9999 for 30 samples; 2 of 4 modules"
        )
        assert "first 2 (Linear)" in module
        assert any(
            line.startswith("system failed: 30 samples, significance 0.01") for line in lines
        )
        assert done.stderr.count(b"hello") == 2

    def test_an_error_comes_first_and_once(self, files):
        answer = files(
            "verify", "a.safetensors", "b.safetensors", *RUN[2:], "--entry=net.py:broken"
        )
        assert answer.error == "the entry failed: RuntimeError: no config"
        assert (answer.code, answer.out) == (2, "")

    @pytest.mark.slow
    def test_a_revision_and_the_worktree(self, empty):
        folder = empty.folder
        (folder / "net.py").write_text(ENTRY)
        np.save(folder / "in.npy", np.ones((3, 4), "f4"))
        save_file(weights(), folder / "m.safetensors")
        Repo.open(folder).commit("x", paths="m.safetensors")
        lines = plain(empty.ok("verify", *RUN, terminal=True).out).splitlines()
        assert [line.partition(":")[0] for line in lines[:3]] == [
            "unit passed", "module passed", "system not judged",
        ]  # fmt: skip

    @pytest.mark.slow
    def test_a_process_that_dies_is_no_success(self, files, monkeypatch):
        line = ("verify", "a.safetensors", "b.safetensors", *RUN)
        for code, said in (
            ("os._exit(0)", "the entry's code ended the process with 0"),
            ("os.kill(os.getpid(), 9)", "the process that runs the models was killed by signal 9"),
        ):
            (files.folder / "net.py").write_text(f"import os\n{code}\n")
            assert files(*line).error == said

    def test_without_torch(self, files, monkeypatch):
        import importlib.util

        found = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name, *rest: None if name == "torch" else found(name, *rest),
        )
        answer = files("verify", "a.safetensors", "b.safetensors", *RUN)
        assert (answer.code, answer.error) == (7, "--entry needs torch, which is not installed")


def test_the_first_layer_loads_no_torch(files):
    probe = "import sys; from mvc.cli.main import run; code = run(sys.argv[1:]); print(code, 'torch' in sys.modules, 'scipy' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", probe, "verify", "a.safetensors", "a.safetensors"],
        cwd=files.folder, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == b"0 False False"
