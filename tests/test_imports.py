"""What is imported when: start-up has to feel instant, and no torch comes unasked."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import mvc
from support.commands import run_python

HEAVY = ("torch", "numpy", "dulwich", "rich", "msgspec", "zstandard", "safetensors")

SCRIPT = """
import json, sys
def heavy():
    return sorted(name for name in {heavy!r} if name in sys.modules)
seen = {{}}
import mvc
seen["import"] = heavy()
repo = mvc.Repo.init({root!r})
seen["init"] = heavy()
list(mvc.Repo.open({root!r}).log())
repo.branches.list()
seen["log"] = heavy()
import numpy as np
with open(repo.worktree / "m.npz", "wb") as file:
    np.savez(file, w=np.arange(5000.0))
(repo.worktree / "m.pt").write_bytes(bytes.fromhex({torch_file!r}))
repo.add(".")
first = repo.commit("first", step=1).commit
repo.commit_state({{"model": {{"w": np.ones(9)}}, "step": 2}}, message="state", step=2)
repo.checkout("HEAD~1")
repo.checkout("main")
assert repo.load_state(framework="numpy")["step"] == 2
repo.status(), repo.diff("HEAD~1", "HEAD"), list(repo.log()), repo.ls()
assert repo.tensor("HEAD", "m.npz", repo.ls()[0].tensors[0].name)[7] == 7
assert repo.ls(paths="m.pt")[0].tensors[0].name == "w"
repo.tensor("HEAD", "m.pt", "w")
repo.export("HEAD", repo.worktree / "out.safetensors", path="m.npz")
assert repo.upkeep.fsck(data=True).ok
seen["everything"] = heavy()
print(json.dumps(seen))
"""


def run(script):
    return json.loads(run_python("-W", "error", "-c", script).stdout)


@pytest.mark.torch
def test_what_each_step_imports(tmp_path):
    import torch

    torch.save({"w": torch.arange(12.0)}, tmp_path / "m.pt")
    script = SCRIPT.format(
        heavy=HEAVY,
        root=str(tmp_path / "work"),
        torch_file=(tmp_path / "m.pt").read_bytes().hex(),
    )
    seen = run(script)
    assert seen["import"] == []
    assert not {"torch", "numpy", "rich", "zstandard"} & set(seen["init"])
    assert not {"torch", "numpy", "rich", "zstandard"} & set(seen["log"])
    assert not {"torch", "rich"} & set(seen["everything"])


@pytest.mark.torch
def test_a_run_without_data_pays_for_no_data_feature(tmp_path):
    script = f"""
import json, sys, torch, mvc
from mvc_hooks import Checkpointer
identity = mvc.Identity("Ada", "ada@example.org")
with Checkpointer({str(tmp_path / "run")!r}, model=torch.nn.Linear(1, 1), identity=identity) as ckpt:
    ckpt.commit("one")
rooms = ("mvc.sampling.", "mvc.shards.", "mvc.operations.pipeline_diff", "mvc_data", "mvc_lab")
print(json.dumps(sorted(name for name in sys.modules if name.startswith(rooms))))
"""
    assert run(script) == []


def test_operations_are_loaded_when_a_method_is_asked_for(tmp_path):
    """Also by a subclass that overrides it, by ``help`` and by what lists attributes."""
    script = f"""
import json, sys, mvc
def verbs():
    return sorted(name for name in sys.modules if name.startswith(("mvc.repo", "mvc.operations.")))
calls = []
class Mine(mvc.Repo):
    def log(self, *revisions, **options):
        calls.append("log")
        return super().log(*revisions, **options)
seen = [verbs(), "merge" in dir(mvc.Repo)]
repo = Mine.init({str(tmp_path)!r})
seen.append(verbs())
seen.append([calls, list(repo.log())])
seen.append(verbs())
seen.append(mvc.Repo.merge.__doc__.splitlines()[0])
import pydoc
seen.append("compare_commit(self, revision" in pydoc.plain(pydoc.render_doc(mvc.Repo)))
seen.append("add(self, source" in pydoc.plain(pydoc.render_doc(type(repo.data))))
print(json.dumps(seen))
"""
    before, is_listed, opened, found, after, line, is_helped, is_part_helped = run(script)
    assert before == opened == ["mvc.repo", "mvc.repo.opening"]
    assert set(after) - set(opened) == {"mvc.operations.log"}
    assert line.startswith("Merge branches")
    assert is_listed
    assert found == [["log"], []]  # the override was called once
    assert is_helped
    assert is_part_helped


def test_nothing_is_printed_read_or_configured():
    """Only the command line talks to people; only it, and who asks for the user's name or settings, reads the environment."""
    offenders = []
    root = Path(mvc.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if "cli" in path.relative_to(root).parts or path.name == "__main__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                name = node.func.id
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
            if name in {
                "print", "input", "breakpoint", "os.environ", "os.getenv", "os.putenv",
                "sys.stdout", "sys.stderr", "sys.argv", "Path.home", "logging.basicConfig",
            }:  # fmt: skip
                offenders.append(f"{path.relative_to(root)}:{node.lineno} {name}")
    places = [(one.partition(":")[0], one.rpartition(" ")[2]) for one in offenders]
    assert places == [
        ("history/config.py", "os.environ"),
        ("history/host_clients.py", "os.environ"),  # which ssh Git is to use
        ("history/host_clients.py", "os.environ"),  # what Git's credential helpers run with
        ("remotes/settings.py", "os.environ"),  # which server a check was of
        ("workspace/settings.py", "os.environ"),
    ]


def test_the_hooks_say_what_is_missing():
    script = (
        "import sys, json; sys.modules['torch'] = None\n"
        "try:\n    from mvc_hooks import Checkpointer\n"
        "except ImportError as error:\n    print(json.dumps(str(error)))\n"
    )
    assert "pip install" in run(script)


@pytest.mark.torch
def test_without_torch_a_torch_state_says_what_to_do(tmp_path):
    script = f"""
import sys, json
import numpy as np, mvc
repo = mvc.Repo.open({str(tmp_path)!r})
sys.modules["torch"] = None
try:
    repo.load_state()
except mvc.UnsupportedError as error:
    loaded = repo.load_state(framework="numpy")
    print(json.dumps([str(error), error.hint, float(loaded["model"]["w"][1])]))
"""
    import torch

    repo = mvc.Repo.init(tmp_path)
    repo.commit_state({"model": {"w": torch.arange(3.0)}}, message="torch")
    text, hint, value = run(script)
    assert "torch is not installed" in text
    assert 'framework="numpy"' in hint
    assert value == 1.0
