"""mvc ls."""

import numpy as np
from safetensors.numpy import save_file

from support.cli import plain


def test_ls(shell):
    lines = shell.ok("ls").lines
    assert lines[0].startswith("config.json  ")
    assert lines[1].startswith("model.safetensors  safetensors, 9 tensors, ")
    assert "  embed         F32[80, 32]  10 KiB" in lines
    assert len(lines) == 11
    assert len(shell.ok("ls", "v1").lines) == 10
    assert shell.ok("ls", "--name-only").lines == ["config.json", "model.safetensors"]
    assert len(shell.ok("ls", "v1", "--", "config.json").lines) == 1
    assert len(shell.ok("ls", "config.json").lines) == 1


def test_ls_long_and_filtered(shell):
    (line,) = shell.ok("ls", "-l", "--tensors", "head").lines[1:]
    assert line.split()[:4] == ["head", "F16[4,", "32]", "256"]
    assert line.split()[5:7] == ["1", "chunk"]
    assert len(line.split()[-1]) == 12
    assert shell.ok("ls", "--tensors", "nothing").out == ""
    assert plain(shell.ok("ls", "-l", "config.json", terminal=True).out).startswith("config.json")


def _commit(shell, **tensors):
    save_file(tensors, shell.folder / "t.safetensors")
    shell.ok("commit", "-q", "-m", "x", "t.safetensors")


def test_hostile_tensor_names_do_not_reach_the_terminal(empty):
    _commit(empty, **{"a\x1b]0;owned\x07": np.zeros(3, np.float32)})
    out = empty.ok("ls", terminal=True).out
    assert "\x1b]" not in out
    assert "a\\x1b]0;owned\\x07" in plain(out)
