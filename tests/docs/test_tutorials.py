"""The tutorials' commands and scripts run, in the order of the page."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.torch


def follow(page, folder, home):
    """Run a page's console and python blocks; return what each command printed, and its exit code."""
    text = (ROOT / "docs" / page).read_text()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'hooks'}",
        "HOME": str(home),
        "COLUMNS": "100",
    }
    answers = {}
    for language, block in re.findall(r"```(console|python)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            run = [[sys.executable, "-c", block]]
        else:
            run = [
                shlex.split(line.removeprefix("$ "), comments=True) for line in block.splitlines()
            ]
        for words in run:
            command = [sys.executable, "-m", *words] if words[0] == "mvc" else words
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            said = "python" if language == "python" else shlex.join(words)
            assert done.returncode in (0, 1), f"{said}: {done.stdout}{done.stderr}"
            answers[said] = (done.returncode, done.stdout)
    return answers


@pytest.mark.slow
def test_a_model_and_its_variants(tmp_path):
    pytest.importorskip("transformers")
    folder = tmp_path / "llama"
    folder.mkdir()
    answers = follow("tutorial.md", folder, tmp_path / "home")
    assert {said for said, (code, _) in answers.items() if code} == {"mvc verify main"}
    assert "8 of 39 tensors differ" in answers["mvc diff HEAD"][1]
    assert "8 of 39 tensors differ" in answers["mvc verify main"][1]
    assert "LoRA, r = 8, merged" in answers["mvc log --oneline --graph --all"][1]
    assert float(answers["python"][1]) > 0
    assert answers["mvc fsck --data"][1].startswith("ok: 3 commits")
