"""What killed processes left goes; what a live one uses, or a journal waits for, stays."""

import os
import subprocess
import sys

import pytest

from mvc import Repo
from mvc.fs import DurableFile
from mvc.workspace import transition
from mvc.workspace.staging import staging_folder
from support.machine import die, killed
from support.models import write_model


@pytest.fixture
def two(repo, root):
    for seed in (1, 2):
        write_model(root / "m.safetensors", seed=seed)
        repo.commit(f"seed {seed}", paths=".")
    repo.upkeep.gc(grace_s=0)
    return repo


def bytes_in(root):
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("where", ["_check_unmoved", "write_durable"])
def test_a_killed_checkout_costs_nothing_after_gc(two, root, monkeypatch, where):
    """Killed once all is staged, and once space for the journal is reserved as well."""
    before, model_bytes = bytes_in(root), (root / "m.safetensors").stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(transition, where, die)
        killed(lambda: Repo.open(root).checkout("HEAD~1"))
    assert bytes_in(root) >= before + model_bytes
    plan = two.upkeep.plan_gc()
    assert plan.leftover_bytes >= model_bytes
    assert plan.freed_bytes >= model_bytes
    assert two.upkeep.gc(plan).removed_leftovers == plan.leftovers > 0
    assert abs(bytes_in(root) - before) < 200  # a mark in mvc.lock
    assert two.upkeep.plan_gc().is_empty


NAME = "0123456789abcdef.mvc-tmp"


@pytest.mark.parametrize("place", [".mvc", ".mvc/chunks/packs", ".mvc/logs/refs/heads", ".", "sub"])
def test_temporary_files_of_dead_writers(two, root, place):
    (root / place).mkdir(exist_ok=True)
    (root / place / NAME).write_bytes(b"x" * 1000)
    (root / place / "mine.mvc-tmp").write_bytes(b"a user's")
    assert two.upkeep.plan_gc().leftover_bytes == 1000
    two.upkeep.gc()
    assert not (root / place / NAME).exists()
    assert (root / place / "mine.mvc-tmp").exists()


def test_what_lives_stays(two, root):
    with DurableFile(root) as file, staging_folder(two.git_dir) as folder:
        file.write([b"half an export"])
        (folder / "staged").write_text("x")
        assert two.upkeep.plan_gc(grace_s=0).is_empty
        two.upkeep.gc(grace_s=0)
        assert file.path.exists()
        assert (folder / "staged").exists()


def test_what_another_process_writes_stays(two, root):
    script = (
        "import sys; from pathlib import Path; from mvc.fs import DurableFile\n"
        "with DurableFile(Path(sys.argv[1])) as file:\n"
        "    print(file.path, flush=True); sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script, root], stdin=pipe, stdout=pipe) as child:
        path = os.fsdecode(child.stdout.readline().strip())
        two.upkeep.gc(grace_s=0)
        assert os.path.exists(path)
        child.kill()
        child.wait()
        two.upkeep.gc(grace_s=0)
        assert not os.path.exists(path)


def test_those_of_another_repository_are_its_own(two, root):
    Repo.init(root / "inner")
    for place in (root / "inner", root / "inner/.mvc"):
        (place / NAME).write_text("x")
    two.upkeep.gc(grace_s=0)
    assert (root / "inner" / NAME).exists()
    assert (root / "inner/.mvc" / NAME).exists()
