"""The tutorials' commands and scripts run, in the order of the page."""

import re
import shlex

import pytest

from support.commands import ROOT, run_python

pytestmark = pytest.mark.torch

OTHER = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


def follow(page, folder, home):
    """Run a page's console and python blocks; return what each command printed, and its exit code."""
    text = (ROOT / "docs" / page).read_text()
    answers = {}
    for language, block in re.findall(r"```(console|python)\n(.*?)```", text, re.DOTALL):
        if language == "python":
            commands = {"python": ["-c", block]}
        else:
            lines = [line.removeprefix("$ ") for line in block.splitlines()]
            words = [shlex.split(line, comments=True) for line in lines]
            commands = {
                shlex.join(line): ["-m", *line] if line[0] == "mvc" else ["-c", OTHER, *line]
                for line in words
            }
        for said, command in commands.items():
            done = run_python(*command, folder=folder, code=None, HOME=str(home), COLUMNS="100")
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
