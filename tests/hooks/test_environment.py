"""The record of everything that bits depend on beside the state."""

import random
import subprocess

import numpy as np
import pytest
import torch

from mvc_hooks import environment
from mvc_hooks.environment import compare_environments, read_environment

pytestmark = pytest.mark.torch


def test_it_names_versions_machine_and_switches():
    record = read_environment()
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["numpy"] == np.__version__
    assert record["machine"]["threads"] == torch.get_num_threads()
    assert record["determinism"]["deterministic_algorithms"] is False
    assert record["world"] == {"size": 1, "rank": 0, "backend": None}


def test_reading_it_starts_nothing():
    before = torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())
    was_used = torch.cuda.is_initialized()
    read_environment()
    after = torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())
    assert after == before
    assert torch.cuda.is_initialized() is was_used


def test_variables_that_matter_are_in_it_and_secrets_are_not(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("TORCH_API_TOKEN", "hidden")
    monkeypatch.setenv("NCCL_SECRET_KEY", "hidden")
    monkeypatch.setenv("HOME_SWEET_HOME", "hidden")
    found = read_environment()["variables"]
    assert (found["NCCL_ALGO"], found["PYTHONHASHSEED"]) == ("Ring", "0")
    assert "hidden" not in found.values()


def test_differences_are_named_item_by_item():
    old = read_environment()
    try:
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("high")
        new = read_environment()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
    found = {item: (then, now) for item, then, now in compare_environments(old, new)}
    assert found["determinism.deterministic_algorithms"] == (False, True)
    assert found["determinism.matmul_precision"] == ("highest", "high")
    assert compare_environments(old, old) == []
    assert compare_environments({"a": {"b": 1}}, {"c": 2}) == [
        ("a.b", 1, "absent"), ("c", "absent", 2),
    ]  # fmt: skip


@pytest.fixture
def ask_git(monkeypatch):
    """Ask Git each time, as outside of the tests."""
    monkeypatch.setattr(environment, "_ask_git", environment._ask_git.__wrapped__)


def _git(folder, *arguments):
    name = ["-c", "user.name=A", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *name, *arguments], check=True, capture_output=True)


@pytest.mark.usefixtures("ask_git")
def test_the_code_is_the_commit_of_the_scripts_folder(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("1\n")
    monkeypatch.setattr("__main__.__file__", str(script), raising=False)
    assert read_environment()["code"]["commit"] is None
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", "train.py")
    _git(tmp_path, "commit", "-qm", "x")
    code = read_environment()["code"]
    assert (code["script"], len(code["commit"]), code["dirty"]) == ("train.py", 40, False)
    script.write_text("2\n")
    assert read_environment()["code"]["dirty"] is True


@pytest.mark.usefixtures("ask_git")
def test_without_git_the_code_is_unknown(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert read_environment()["code"]["commit"] is None


@pytest.mark.usefixtures("ask_git")
def test_a_git_that_hangs_is_not_waited_for(monkeypatch, tmp_path):
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(environment, "_GIT_TIMEOUT_S", 0.05)
    assert read_environment()["code"]["commit"] is None
