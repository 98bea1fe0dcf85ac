"""Gates on the command line: mvc config gate.*, mvc commit, mvc diff --gate."""

import json

import numpy as np
import pytest

from support.models import write_model


@pytest.fixture
def broken(shell):
    """A worktree whose model has NaN in it, in a repository that allows none."""
    shell.ok("config", "gate.nan", "0")
    weights = np.full(32, np.nan, np.float32)
    write_model(shell.folder / "model.safetensors", seed=3, norm=weights)
    return shell


def test_a_refused_commit_is_a_negative_answer(broken):
    head = broken.ok("log", "-1", "--format=%H").out
    answer = broken("commit", "-am", "broken")
    assert answer.code == 1
    assert answer.error == "model.safetensors has 32 NaN, most in tensor 'norm'; gate.nan allows 0"
    assert answer.hint == 'nothing was committed; "--no-gate" commits anyway'
    assert broken.ok("log", "-1", "--format=%H").out == head
    (failure,) = json.loads(broken("commit", "-am", "broken", "--json").err)["error"]["gates"]
    assert failure == {
        "gate": "nan", "value": 32, "limit": 0, "path": "model.safetensors", "tensor": "norm",
    }  # fmt: skip
    broken.ok("commit", "-am", "broken", "--no-gate")
    assert broken.ok("log", "-1", "--format=%H").out != head


def test_a_marked_commit_shows_in_the_log(broken):
    broken.ok("config", "gate.mode", "mark")
    broken.ok("commit", "-am", "broken")
    assert "[gate: nan]" in broken.ok("log", "--oneline", "-1").out
    assert any(line.startswith("Gate:    failed nan: ") for line in broken.ok("log", "-1").lines)
    (entry,) = broken.json("log", "-1")
    assert entry["failed_gates"] == [
        "nan: model.safetensors has 32 NaN, most in tensor 'norm'; gate.nan allows 0"
    ]


def test_diff_asks_before(broken):
    answer = broken("diff", "--gate")
    assert answer.code == 1
    assert answer.lines == [
        "failed nan: model.safetensors has 32 NaN, most in tensor 'norm'; gate.nan allows 0"
    ]
    assert broken.ok("diff", "--gate", "--staged").lines == ["passed nan 0 (1 checkpoint)"]
    assert broken.ok("diff", "--gate", "HEAD~1", "HEAD").lines == ["passed nan 0 (1 checkpoint)"]
    assert broken.json("diff", "--gate", code=1)["failures"][0]["tensor"] == "norm"
    broken.ok("add", ".")
    assert broken("diff", "--gate", "--staged").code == 1


def test_misuse_is_an_error(shell):
    assert shell("diff", "--gate").error == "no gate is set"
    assert shell("config", "gate.nan", "none").code == 2
    shell.ok("config", "gate.nan", "0")
    for more in (["--stat"], ["--", "model.safetensors"], ["--staged", "HEAD~1", "HEAD"]):
        assert shell("diff", "--gate", *more).code == 2


@pytest.mark.parametrize("way", [("merge", "odd~1"), ("revert", "HEAD~1")])
def test_what_merges_has_the_option_that_its_hint_names(broken, way):
    start = "odd" if way[0] == "revert" else "main"
    broken.ok("switch", "-c", "odd", "-q")
    broken.ok("commit", "-am", "broken", "--no-gate")
    write_model(broken.folder / "model.safetensors", seed=3)
    broken.ok("commit", "-am", "mended")
    broken.ok("switch", start, "-q")
    (broken.folder / "other.txt").write_text("apart")
    broken.ok("add", ".")
    broken.ok("commit", "-m", "apart")
    answer = broken(*way)
    assert answer.code == 1
    assert answer.hint == 'nothing was committed; "--no-gate" commits anyway'
    assert broken(way[0], "--no-gate", "--abort").code == 2
    broken.ok(*way, "--no-gate")
    assert broken("diff", "--gate", "HEAD~1", "HEAD").code == 1
