"""Differences as text: rows of tensors, rolled up and cut on a terminal only."""

from __future__ import annotations

import numpy as np

from support.cli import plain
from support.models import write_model


def test_rows(shell):
    lines = shell.ok("diff", "v1..main").lines
    assert lines[0].startswith("modified: model.safetensors  safetensors, 3 of 9 tensors differ, ")
    assert lines[1:] == [
        "  M embed       F32[64, 32] -> F32[80, 32]  1/1 chunk  10 KiB",
        "  M layers.1.q  F32[32, 32]                 1/1 chunk   4 KiB",
        "  A head        F16[4, 32]                              256 B",
    ]


def test_header_and_mode(shell):
    import json

    path = shell.folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    text = json.dumps({"__metadata__": {"by": "hand"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    path.chmod(0o755)
    lines = shell.ok("diff").lines
    assert lines[1:] == [
        "  the file mode differs",
        "  bytes outside of tensors differ (header, metadata)",
    ]
    (file,) = shell.json("diff")["files"]
    assert (file["tensors"], file["other_changed"], file["mode_changed"]) == ([], True, True)


def test_stat(shell):
    assert shell.ok("diff", "v1", "main", "--stat").lines == [
        " model.safetensors | 3 of 9 tensors (+1 ~2), 3 new chunks",
        " 1 file changed, 3 tensors (1 added, 2 modified)",
    ]
    lines = shell.ok("diff", "main", "side", "--stat").lines
    assert lines[0].startswith(" config.json       | modified, ")


def test_long_lists_are_rolled_up_on_a_terminal_only(empty):
    names = {f"t{number:03d}": np.zeros(2, np.float32) for number in range(120)}
    write_model(empty.folder / "m.safetensors", layers=0, **names)
    empty.ok("commit", "-m", "x", ".")
    changed = {name: values + 1 for name, values in names.items()}
    write_model(empty.folder / "m.safetensors", layers=0, **changed)
    shown = plain(empty.ok("diff", terminal=True).out).splitlines()
    assert len(shown) == 41
    assert shown[-1] == "  … and 81 more (81 modified; --all shows them)"
    assert len(empty.ok("diff", "--all", terminal=True).lines) == 121
    assert len(empty.ok("diff").lines) == 121


def test_long_names_are_cut_on_a_terminal_only(empty):
    name = "a_very_long_name." * 8
    write_model(empty.folder / "m.safetensors", layers=0, **{name: np.zeros(2, np.float32)})
    empty.ok("commit", "-m", "x", ".")
    write_model(empty.folder / "m.safetensors", layers=0, **{name: np.ones(2, np.float32)})
    (line,) = plain(empty.ok("diff", terminal=True).out).splitlines()[1:]
    assert "…" in line
    assert len(line) <= 80
    assert name in empty.ok("diff").out


def test_colours(shell):
    shown = shell.ok("diff", "v1", "main", terminal=True).out
    assert "\x1b[1mmodified: model.safetensors\x1b[0m" in shown
    assert "\x1b[32mA\x1b[0m" in shown
    assert "\x1b[33mM\x1b[0m" in shown
