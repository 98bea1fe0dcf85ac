"""What a command loads: no more than it needs."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from mvc import Repo
from support.models import write_model

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


def test_looking_at_what_was_stored_in_less_needs_no_arrays(shell):
    """Differences, released commits, upkeep that is switched on: none of it is looked at."""
    repo = Repo.open(shell.folder)
    for step in (1, 2, 3):
        write_model(shell.folder / "model.safetensors", seed=9, norm=np.full(32, step, np.float32))
        repo.commit(f"step {step}", paths=".", step=step, delta=True)
    assert repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1)).plan.releases
    repo.upkeep.repack()
    repo.set_config("mvc.autorepack", "true")
    loaded = _modules(shell, ["log"], ["log", "--oneline", "--all"], ["branch"], ["status"])
    assert not loaded & {"torch", "numpy", "pydantic", "zstandard"}


def test_nothing_ever_loads_torch(shell):
    write_model(shell.folder / "model.safetensors", seed=9)
    loaded = _modules(
        shell, ["--help"], ["log"], ["add", "."], ["commit", "-m", "x"], ["checkout", "side"],
        ["status"], ["diff", "main"], ["cat", "model.safetensors", "embed"], ["fsck", "--data"],
        ["doctor"], ["diff", "--stats", "v1", "main"],
    )  # fmt: skip
    assert not loaded & {"torch", "pydantic"}


_THREADS = """
import json, os, sys
from mvc.cli.main import run
code = max(run(arguments) for arguments in json.loads(sys.argv[1]))
assert "numpy" in sys.modules
for _ in range(10_000):  # one that was joined may still be on its way out
    threads = os.listdir("/proc/self/task")
    if len(threads) == 1:
        break
    os.sched_yield()
print("\\n" + json.dumps([code, threads]))
"""


@pytest.mark.skipif(
    sys.platform != "linux" or (os.cpu_count() or 1) < 2,
    reason="counts threads where Linux does",
)
def test_no_thread_waits_for_linear_algebra(shell, monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    write_model(shell.folder / "model.safetensors", seed=9)
    assert len(_modules(shell, ["add", "."], probe=_THREADS)) == 1


_EVERYDAY = 154
_COUNT = """
import sys
bare = set(sys.modules)
from mvc.cli.main import run
code = max(run(arguments) for arguments in eval(sys.argv[1]))
loaded = sorted(set(sys.modules) - bare)
sys.stdout.flush()
import json
print("\\n" + json.dumps([code, loaded]))
"""


@pytest.mark.parametrize(
    ("change", "lines", "ours", "in_all"),
    [
        ("nothing", [["status"]], 49, 116),
        ("nothing", [["completion", "--", "log", "--si"], ["completion", "--", "switch", ""]], 52, 120),
        ("nothing", [["log"]], 48, 117),
        ("nothing", [["branch"], ["tag"]], 44, 109),
        ("nothing", [["diff", "--name-only"]], 57, 126),
        ("a text", [["status"], ["diff", "--name-only"]], 65, 134),
        ("a model", [["status"]], 62, _EVERYDAY),
        ("a model", [["diff", "--name-only"]], 63, _EVERYDAY),
        ("a text", [["add", "."]], 65, 157),
        ("a text", [["commit", "-m", "x", "notes"]], 85, 177),
        ("staged", [["commit", "-m", "x"]], 72, 165),  # looks its health up: sqlite3
    ],
)  # fmt: skip
def test_a_command_loads_few_modules(shell, change, lines, ours, in_all):
    """Each module costs start-up time: these bounds may go down, and up only for a reason.

    Counted is what a process has imported beyond what a bare interpreter has, also of a commit that
    stored a new model.
    """
    if change != "nothing":
        (shell.folder / "notes").write_text("plain")
    if change in ("a model", "staged"):
        write_model(shell.folder / "model.safetensors", seed=9)
    if change == "staged":
        shell.ok("add", ".")
    loaded = _modules(shell, *lines, probe=_COUNT)
    assert not loaded & {"numpy", "zstandard", "dulwich", "rich", "subprocess"}
    assert len([name for name in loaded if name.split(".")[0] == "mvc"]) <= ours
    assert len(loaded) <= in_all
