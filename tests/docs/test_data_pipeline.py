"""The program of the page on data pipelines runs, is refused as the page says, and goes on if allowed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mvc import Repo

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/data-pipeline.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def start(folder, *words):
    paths = f"{ROOT}{os.pathsep}{ROOT / 'hooks'}"
    name = {
        f"GIT_{who}_{what}": "a@b.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    return subprocess.run(
        [sys.executable, "train.py", *words],
        cwd=folder,
        env={**os.environ, **name, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_page_says_what_happens(tmp_path):
    program = re.search(r"```python\n# train.py\n(.*?)```", PAGE, re.DOTALL)[1]
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    assert start(tmp_path, "10").returncode == 0
    (tmp_path / "train.py").write_text(program.replace("c.isalpha() or", "c.isalnum() or"))
    refused = start(tmp_path, "20")
    assert refused.returncode == 1
    for line in re.search(r"\$ python train.py 20\n(.*?)```", PAGE, re.DOTALL)[1].splitlines():
        assert line in refused.stderr
    assert start(tmp_path, "20", "pipeline").returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "mvc", "diff", "main@10", "main@20"],
        cwd=tmp_path / "run",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = re.search(r"\$ mvc diff main@10 main@20\n(.*?)```", PAGE, re.DOTALL)[1]
    libraries = re.compile(r"(tokenize|lines)  \w+ -> \w+")  # have other versions elsewhere
    assert libraries.sub(r"\1", shown) in libraries.sub(r"\1", done.stdout)
    assert Repo.open(tmp_path / "run").show("main").annotations.meta["new_nodes"] == "clean"
