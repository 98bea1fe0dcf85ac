"""The program of the page on data pipelines runs, is refused as the page says, and goes on if allowed."""

import re

import pytest

from mvc import Repo
from support.commands import ROOT, run_python

PAGE = (ROOT / "docs/data-pipeline.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.torch, pytest.mark.slow]


WHO = {
    f"GIT_{who}_{what}": "a@b.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


def test_the_page_says_what_happens(tmp_path):
    program = re.search(r"```python\n# train.py\n(.*?)```", PAGE, re.DOTALL)[1]
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    run_python("train.py", "10", folder=tmp_path, **WHO)
    (tmp_path / "train.py").write_text(program.replace("c.isalpha() or", "c.isalnum() or"))
    refused = run_python("train.py", "20", folder=tmp_path, code=1, **WHO)
    for line in re.search(r"\$ python train.py 20\n(.*?)```", PAGE, re.DOTALL)[1].splitlines():
        assert line in refused.stderr
    run_python("train.py", "20", "pipeline", folder=tmp_path, **WHO)
    done = run_python("-m", "mvc", "diff", "main@10", "main@20", folder=tmp_path / "run")
    shown = re.search(r"\$ mvc diff main@10 main@20\n(.*?)```", PAGE, re.DOTALL)[1]
    libraries = re.compile(r"(tokenize|lines)  \w+ -> \w+")  # have other versions elsewhere
    assert libraries.sub(r"\1", shown) in libraries.sub(r"\1", done.stdout)
    assert Repo.open(tmp_path / "run").show("main").annotations.meta["new_nodes"] == "clean"
