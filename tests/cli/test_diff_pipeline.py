"""diff and show: the nodes of a run's data pipeline."""

import re
from pathlib import Path

import numpy as np
import pytest

from mvc import Repo

PAGE = Path(__file__).parents[2] / "docs/json.md"


def make_node(version, code, **parts):
    empty = {"inputs": [], "params": {}, "libraries": {}, "is_declared": True}
    return {
        "version": version * 16,
        "own": version,
        "code": {"prepare.clean": code},
        **empty,
        **parts,
    }


@pytest.fixture
def trained(bare):
    repo = Repo.init(bare.folder)
    sides = [
        {"clean": make_node("1", "def clean(x):\n    return x\n", params={"size": "8"})},
        {
            "clean": make_node(
                "2", "def clean(x):\n    return x\x1b[31m\n", params={"size": "\x1b[9"}
            )
        },
    ]
    sides[0]["pack"] = make_node("3", "", inputs=["clean"])
    sides[1]["pack"] = {**sides[0]["pack"], "version": "4" * 16}
    for step, pipeline in enumerate(sides):
        state = {"model": {"w": np.zeros(2, np.float32)}, "data_record": {"pipeline": pipeline}}
        repo.commit_state({**state, "step": step}, message="x")
    return bare


def test_nodes_and_their_lines_are_shown(trained):
    for words in [("diff", "HEAD~1", "HEAD"), ("show",)]:
        said = trained.ok(*words).out
        shown = said[said.index("pipeline: ") :].splitlines()
        assert shown[0] == "pipeline: 2 nodes changed"
        assert shown[1] == "  M clean  11111111 -> 22222222"
        assert shown[2].startswith("      size: 8 -> ")
        assert shown[3] == "      prepare.clean"
        assert shown[-2].startswith("        +    return x")
        assert shown[-1] == "  M pack  33333333 -> 44444444  (a node before it changed)"
        assert "\x1b" not in said
        assert '"own"' not in said, "state.json does not say it once more"


def test_json_has_what_the_page_says(trained):
    clean, pack = trained.json("diff", "HEAD~1", "HEAD")["pipeline"]
    text = PAGE.read_text(encoding="utf-8")
    shape = re.search(r'```\n(\{"pipeline".*?)```', text, re.DOTALL)[1]
    names = {*clean, *clean["params"][0], *clean["code"][0], "pipeline"}
    assert set(re.findall(r'"(\w+)"', shape)) == names
    assert pack["is_own"] is False
    assert not trained.json("diff", "HEAD", "HEAD").get("pipeline")


def test_names_alone_have_no_nodes(trained):
    assert trained.ok("diff", "--name-only", "HEAD~1", "HEAD").out == "state.json\n"
