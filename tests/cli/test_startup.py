"""What a command loads, and what it is like as a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from typer import core

from mvc import Repo
from mvc.cli import commands
from support.models import write_model

ROOT = Path(__file__).resolve().parents[2]
_PROBE = """
import json, sys
from mvc.cli.main import run
code = max(run(arguments) for arguments in json.loads(sys.argv[1]))
sys.stdout.flush()
print("\\n" + json.dumps([code, sorted({name.split(".")[0] for name in sys.modules})]))
"""


def _modules(shell, *lines, probe=_PROBE):
    found = subprocess.run(
        [sys.executable, "-c", probe, json.dumps(lines)],
        cwd=shell.folder,
        env={**os.environ, **shell.environment},
        capture_output=True,
        check=True,
    )
    code, modules = json.loads(found.stdout.splitlines()[-1])
    assert code == 0, found.stderr
    return set(modules)


def test_help_loads_next_to_nothing(shell):
    loaded = _modules(shell, ["--help"])
    heavy = {"torch", "numpy", "dulwich", "rich", "msgspec", "pydantic", "zstandard", "blake3"}
    assert not loaded & heavy


def test_looking_at_history_needs_no_arrays(shell):
    loaded = _modules(
        shell, ["log"], ["log", "--oneline", "--graph"], ["branch"], ["tag"], ["reflog"], ["status"]
    )
    assert not loaded & {"torch", "numpy", "rich", "pydantic", "zstandard"}


def test_looking_at_what_was_stored_in_less_needs_no_arrays(shell):
    """Differences, released commits, upkeep that is switched on: none of it is looked at."""
    repo = Repo.open(shell.folder)
    for step in (1, 2, 3):
        write_model(shell.folder / "model.safetensors", seed=9, norm=np.full(32, step, np.float32))
        repo.commit(f"step {step}", paths=".", step=step, delta=True)
    assert repo.prune(repo.plan_prune(keep_last=1)).plan.releases
    repo.repack()
    repo.set_config("mvc.autorepack", "true")
    loaded = _modules(shell, ["log"], ["log", "--oneline", "--all"], ["branch"], ["status"])
    assert not loaded & {"torch", "numpy", "pydantic", "zstandard"}


def test_nothing_ever_loads_torch(shell):
    write_model(shell.folder / "model.safetensors", seed=9)
    loaded = _modules(
        shell, ["--help"], ["log"], ["add", "."], ["commit", "-m", "x"], ["checkout", "side"],
        ["status"], ["diff", "main"], ["cat", "model.safetensors", "embed"], ["fsck", "--data"],
        ["doctor"],
    )  # fmt: skip
    assert not loaded & {"torch", "pydantic"}


@pytest.mark.parametrize(
    ("line", "ours", "in_all"),
    [(["status"], 51, 245), (["log"], 55, 245), (["commit", "-m", "x", "notes"], 115, 440)],
)
def test_a_command_loads_few_modules(shell, line, ours, in_all):
    """Each module costs start-up time: these bounds may go down, and up only for a reason."""
    (shell.folder / "notes").write_text("plain")
    probe = _PROBE.replace('{name.split(".")[0] for name in sys.modules}', "sys.modules")
    loaded = _modules(shell, line, probe=probe)
    assert len([name for name in loaded if name.split(".")[0] == "mvc"]) <= ours
    assert len(loaded) <= in_all


def test_the_table_of_commands_is_true():
    folder = Path(commands.__file__).parent
    assert sorted([*commands.NAMES, "__init__"]) == sorted(
        path.stem for path in folder.glob("*.py")
    )
    assert len(commands.NAMES) == 30
    for name in commands.NAMES:
        assert callable(getattr(importlib.import_module(f"mvc.cli.commands.{name}"), name))


def test_the_pinned_typer_has_what_the_group_replaces():
    """Without this method every command would import pydantic; look at group.py for a new typer."""
    assert metadata.version("typer").startswith("0.29.")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "typer>=0.29,<0.30" in project["dependencies"]
    assert callable(core.TyperOption.get_runtime_param)
    assert callable(core.TyperArgument.get_runtime_param)


def test_help_and_version_as_processes(shell):
    helped = shell.process("--help")
    assert helped.returncode == 0
    assert b"Exit codes: 0 done" in helped.stdout
    for name in commands.NAMES:
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
