"""A folder, a repository with some history in it, and a shell for both."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from support.browser import Browser, find_browser
from support.cli import IDENTITY, Shell
from support.models import write_config, write_model

_MEMORY = "/dev/shm"


@pytest.fixture(scope="session")
def scratch():
    """A folder in memory where there is one, so that synced writes do not wait for a disk."""
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mvc-cli-", dir=place) as folder:
        yield Path(folder)


@pytest.fixture
def folder(scratch, request):
    path = Path(tempfile.mkdtemp(dir=scratch))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def environment(folder, monkeypatch):
    """Nothing of the user's own settings is seen."""
    home = folder / "home"
    home.mkdir()
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "EMAIL", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return {"HOME": str(home), "TERM": "xterm", "COLUMNS": "80", **IDENTITY}


@pytest.fixture
def bare(folder, environment):
    """A shell in an empty folder without a repository."""
    (folder / "work").mkdir()
    return Shell(folder / "work", environment)


@pytest.fixture
def empty(bare):
    """A shell in a repository without a commit."""
    bare.ok("init")
    return bare


@pytest.fixture(scope="session")
def template(scratch):
    """main: base (v1), tuned, grown; side: base, other."""
    path = scratch / "template"
    path.mkdir()
    shell = Shell(path, {"HOME": str(scratch), **IDENTITY})
    shell.ok("init")
    write_model(path / "model.safetensors")
    write_config(path / "config.json")
    shell.ok("add", ".")
    shell.ok("commit", "-m", "base model", "--step", "0", "--metric", "loss=3.5")
    shell.ok("tag", "v1")
    shell.ok("switch", "-c", "side")
    write_config(path / "config.json", kind="side")
    shell.ok("commit", "-am", "another config")
    shell.ok("switch", "main")
    write_model(path / "model.safetensors", layers__1__q=np.zeros((32, 32), np.float32))
    shell.ok("commit", "-am", "tuned", "--step", "1000", "--meta", "loss=2.25", "--meta", "by=hand")
    write_model(
        path / "model.safetensors",
        layers__1__q=np.zeros((32, 32), np.float32),
        embed=np.zeros((80, 32), np.float32),
        head=np.ones((4, 32), np.float16),
    )
    shell.ok(
        "commit", "-am", "grown", "--step", "2000", "--metric", "loss=2", "--metric", "acc=0.5"
    )
    return path


@pytest.fixture
def shell(template, bare):
    """A shell in a copy of the template's repository, on main."""
    shutil.copytree(template, bare.folder, dirs_exist_ok=True, symlinks=True)
    bare.ok("status")  # the copies have other inodes: let the index learn of them
    return bare


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if find_browser() is None:
        pytest.skip("needs Chromium, which is not installed")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
