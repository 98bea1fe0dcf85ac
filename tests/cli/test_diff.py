"""diff in all its directions and forms."""

from __future__ import annotations

import numpy as np

from support.cli import plain
from support.models import write_config, write_model


def _paths(fields):
    return [(file["path"], file["status"]) for file in fields["files"]]


def test_nothing_differs(shell):
    assert shell.ok("diff").out == ""
    assert shell.json("diff") == {"files": []}
    assert shell("diff", "--exit-code").code == 0


def test_worktree_and_index(shell):
    write_config(shell.folder / "config.json", lr=1)
    assert _paths(shell.json("diff")) == [("config.json", "modified")]
    assert shell.json("diff", "--staged") == {"files": []}
    shell.ok("add", ".")
    assert shell.json("diff") == {"files": []}
    assert _paths(shell.json("diff", "--staged")) == [("config.json", "modified")]
    assert _paths(shell.json("diff", "--cached", "HEAD")) == [("config.json", "modified")]
    assert shell("diff", "--staged", "--exit-code").code == 1
    assert shell("diff", "--staged", "--exit-code", "--json").code == 1


def test_revisions(shell):
    assert _paths(shell.json("diff", "v1")) == [("model.safetensors", "modified")]
    assert _paths(shell.json("diff", "v1", "side")) == [("config.json", "modified")]
    both = [("config.json", "modified"), ("model.safetensors", "modified")]
    assert _paths(shell.json("diff", "main..side")) == both
    assert _paths(shell.json("diff", "main...side")) == [("config.json", "modified")]
    assert _paths(shell.json("diff", "side..")) == both


def test_json_of_tensors(shell):
    (file,) = shell.json("diff", "v1", "main")["files"]
    assert (file["path"], file["format"], file["tensors_total"]) == (
        "model.safetensors", "safetensors", 9,
    )  # fmt: skip
    tensors = {tensor["name"]: tensor for tensor in file["tensors"]}
    assert tensors["head"] == {
        "name": "head", "status": "added", "dtype": "F16", "shape": [4, 32], "size_bytes": 256,
        "chunks": {"changed": 1, "total": 1},
    }  # fmt: skip
    assert tensors["embed"]["old_shape"] == [64, 32]
    assert tensors["embed"]["status"] == tensors["layers.1.q"]["status"] == "modified"
    (file,) = shell.json("diff", "main", "v1")["files"]
    assert {tensor["name"]: tensor["status"] for tensor in file["tensors"]}["head"] == "removed"


def test_renamed_tensors_and_files(shell):
    write_model(
        shell.folder / "model.safetensors",
        layers__1__q=np.zeros((32, 32), np.float32),
        embed=np.zeros((80, 32), np.float32),
        lm_head=np.ones((4, 32), np.float16),
    )
    (file,) = shell.json("diff")["files"]
    (tensor,) = file["tensors"]
    assert (tensor["status"], tensor["old_name"], tensor["name"]) == ("renamed", "head", "lm_head")
    (line,) = [line for line in shell.ok("diff").lines if line.startswith("  R")]
    assert "head -> lm_head" in line
    shell.ok("reset", "--hard")
    shell.ok("mv", "model.safetensors", "m.safetensors")
    (file,) = shell.json("diff", "--staged")["files"]
    assert (file["status"], file["old_path"]) == ("renamed", "model.safetensors")
    assert shell.ok("diff", "--staged", "--name-status").lines == [
        "R100\tmodel.safetensors\tm.safetensors"
    ]
    assert (
        shell.ok("diff", "--staged")
        .lines[0]
        .startswith("renamed: model.safetensors -> m.safetensors")
    )


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


def test_paths_and_tensors(shell):
    assert shell.ok("diff", "main", "side", "--name-only", "--", "config.json").lines == [
        "config.json"
    ]
    assert shell.ok("diff", "main..side", "--name-only", "config.json").lines == ["config.json"]
    (file,) = shell.json("diff", "v1", "main", "--tensors", "layers.*")["files"]
    assert [tensor["name"] for tensor in file["tensors"]] == ["layers.1.q"]
    assert shell.ok("diff", "v1", "main", "--tensors", "nothing*", "--name-only").out == ""
    assert shell.ok("diff", "v1", "main", "--tensors", "hea*", "--name-only").out != ""


def test_stat(shell):
    assert shell.ok("diff", "v1", "main", "--stat").lines == [
        " model.safetensors | 3 of 9 tensors (+1 ~2), 3 new chunks",
        " 1 file changed, 3 tensors (1 added, 2 modified)",
    ]
    lines = shell.ok("diff", "main", "side", "--stat").lines
    assert lines[0].startswith(" config.json       | modified, ")


def test_a_removed_file_is_seen(shell):
    (shell.folder / "config.json").unlink()
    assert shell.ok("diff", "--name-status").lines == ["D\tconfig.json"]
    assert shell.ok("diff", "--name-status", "config.json").lines == ["D\tconfig.json"]
    assert shell.ok("diff").lines[0].startswith("deleted: config.json")


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
