"""mvc blame: one line for each tensor, folded on a terminal."""

import numpy as np
import pytest

from support.cli import plain
from support.models import write_model


@pytest.fixture
def ids(shell):
    return {entry["subject"]: entry["commit"] for entry in shell.json("log")}


def test_one_line_for_each_tensor(shell, ids):
    found = {one["name"]: one for one in shell.json("blame", "--stats")["tensors"]}
    shown = {
        name: line for line in shell.ok("blame").lines for name in found if f" {name} " in line
    }
    assert len(shown) == len(found) == 9
    assert shown["embed"].startswith(ids["grown"][:7])
    assert "2,000" in shown["embed"]
    assert "Ada Lovelace" in shown["embed"]
    assert shown["layers.1.q"].endswith("tuned")
    assert list(shown).index("layers.1.mlp") < list(shown).index("norm")
    assert found["layers.1.q"]["drift"] == [0.0, 1.0, 1.0]  # all zeros now
    assert found["layers.1.q"]["since"] == ids["base model"]
    assert "▁██  100 %" in shell.ok("blame", "layers.1.q").out


def test_revision_wildcard_and_path(shell, ids):
    assert shell.ok("blame", "v1", "norm").lines[0].startswith(ids["base model"][:7])
    assert len(shell.ok("blame", "layers.0").lines) == 3
    assert len(shell.ok("blame", "main~1", "--tensors", "layers.*.q").lines) == 2
    assert len(shell.ok("blame", "model.safetensors").lines) == 9
    assert len(shell.ok("blame", "--", "model.safetensors").lines) == 9
    assert shell("blame", "nothing").code == 3
    assert shell("blame", "norm", "embed").code == 2
    assert shell("blame", "norm", "--tensors", "embed").code == 2
    assert shell("blame", "--by", "file").code == 2


def test_a_terminal_gets_what_fits(shell):
    write_model(shell.folder / "model.safetensors", layers=40)
    shell.ok("commit", "-am", "deep")
    write_model(shell.folder / "model.safetensors", layers=40, layers__39__q=np.ones(3, np.float32))
    shell.ok("commit", "-am", "one of them")
    lines = [plain(line) for line in shell.ok("-P", "blame", terminal=True).lines]
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    assert any("layers.2-39.mlp (38)" in line for line in lines)
    assert lines[-1] == '("mvc blame --stats" compares what the dots stand for)'
    assert len(shell.ok("-P", "blame", "--all", terminal=True).lines) == 123
    shell.environment["COLUMNS"] = "40"
    assert max(len(plain(line)) for line in shell.ok("-P", "blame", terminal=True).lines[:-1]) <= 40
