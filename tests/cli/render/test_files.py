"""Differences as text: rows of tensors, rolled up and cut on a terminal only."""

import json

import numpy as np
from safetensors.numpy import load_file, save_file

from support.cli import plain
from support.models import write_model


def test_header_and_mode(shell):
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


def test_tensors_in_place_of_others(empty):
    path = empty.folder / "model.safetensors"
    for version in range(2):
        save_file({f"w{n}": np.arange(9.0) + n for n in range(version, 4 * version + 2)}, path)
        empty.ok("commit", "-m", f"version {version}", ".")
    said = empty.ok("show", "--stat").lines[-2]
    assert "| 5 of 6 tensors (+4 -1), " in said


def test_a_model_in_other_shards(empty):
    path = empty.folder / "model.safetensors"
    write_model(path)
    empty.ok("commit", "-m", "one", ".")
    model = load_file(path)
    path.unlink()
    model["layers.1.q"] += 1
    names = sorted(model)
    for number, part in enumerate((names[:4], names[4:])):
        save_file({name: model[name] for name in part}, empty.folder / f"m-{number}.safetensors")
    index = json.dumps(dict.fromkeys(names, "m-0.safetensors"), indent=1)
    (empty.folder / "m.safetensors.index.json").write_text(index)
    empty.ok("add", ".", "-A")
    said = "the same 7 tensors are in other files"
    assert f"\t({said})" in empty.ok("status").lines
    lines = empty.ok("diff", "--staged").lines
    assert "4 of 4 tensors from other files" in lines[0]
    assert [line for line in lines if line.startswith("  ")] == [
        "  M layers.1.q  F32[32, 32]  1/1 chunk  4 KiB"
    ]
    deleted = "deleted: model.safetensors  safetensors, 7 of 8 tensors now in other files"
    assert lines[-3].startswith(deleted)
    assert lines[-1] == said
    assert empty.json("commit", "-m", "shards")["tensors"] == {"total": 8, "new": 1}
    stat = empty.ok("show", "--stat").lines
    assert stat[-2].endswith(" KiB, 8 tensors (=7)")
    assert stat[-4].endswith(" KiB, 4 tensors (=3 ~1)")
    assert stat[-1] == f" 4 files changed, 1 tensor (1 modified); {said}"
    files = {file["path"]: file for file in empty.json("show")["files"]}
    assert files["model.safetensors"]["moved_to"] == {"m-0.safetensors": 4, "m-1.safetensors": 3}
    (tensor,) = files["m-1.safetensors"]["tensors"]
    assert (tensor["status"], tensor["old_path"]) == ("modified", "model.safetensors")
    # Of an index that changed, a terminal gets the number of its lines only.
    (empty.folder / "m.safetensors.index.json").write_text(index.replace("m-0", "m-1"))
    shown = plain(empty.ok("diff", terminal=True).out).splitlines()[1:]
    assert len(shown) == 1
    assert shown[0].endswith("more lines (--all shows them)")


def _train(empty, *names):
    """Commit a model of these tensors, then change them all by one."""
    names = {name: np.full((2, 3), float(number)) for number, name in enumerate(names)}
    save_file(names, empty.folder / "m.safetensors")
    empty.ok("commit", "-m", "x", ".")
    save_file(
        {name: values + 0.5 for name, values in names.items()}, empty.folder / "m.safetensors"
    )


MODULES = ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj", "mlp.down_proj")
LAYERS = [f"model.layers.{layer}.{one}.weight" for layer in range(32) for one in MODULES]


def test_long_lists_are_rolled_up_on_a_terminal_only(empty):
    _train(empty, *LAYERS, "head")
    shown = plain(empty.ok("diff", terminal=True).out).splitlines()[1:]
    assert " ".join(shown[0].split()) == "M head F64[2, 3] 1/1 chunk 48 B"
    second = "M model.…yers.0-31.mlp.down_proj.weight F64[2, 3] x 32 32/32 chunks 1.5 KiB"
    assert " ".join(shown[1].split()) == second
    assert shown[5:] == ["  (129 tensors in 5 rows; --all lists each)"]
    for everything, terminal in (((), False), (("--all",), True)):
        assert len(empty.ok("diff", *everything, terminal=terminal).lines) == 1 + 129
    assert len(empty.json("diff")["files"][0]["tensors"]) == 129
    empty.ok("commit", "-am", "two")
    assert '; "mvc show --all ' in empty.ok("log", "-p", "-1", terminal=True).lines[-1]
    empty.environment["LINES"] = "14"
    assert "; --all lists each)" in empty.ok("diff", "HEAD~1", "HEAD", terminal=True).lines[-1]
    shown = plain(empty.ok("show", terminal=True).out).splitlines()
    assert len(shown) <= 14
    assert shown[-1].endswith("; --all lists each)")
    empty.environment["LINES"] = "200"
    assert len(empty.ok("show", terminal=True).lines) > 129


def test_lists_that_cannot_be_rolled_up_are_cut_on_a_terminal_only(empty):
    _train(empty, *(f"t{chr(65 + one % 26)}{chr(65 + one // 26)}" for one in range(120)))
    shown = plain(empty.ok("diff", terminal=True).out).splitlines()
    assert len(shown) == 22
    assert shown[-1] == "  … and 100 more (100 modified; --all lists each)"
    assert len(empty.ok("diff", "--all", terminal=True).lines) == 121
    assert len(empty.ok("diff").lines) == 121


def test_sixty_columns_keep_layer_and_size(empty):
    _train(empty, *LAYERS[:8])
    empty.environment["COLUMNS"] = "60"
    lines = plain(empty.ok("diff", terminal=True).out).splitlines()[2:]
    assert "  M mod…s.1.…_attn.q_proj.weight  F64[2, 3]  1/1 chunk  48 B" in lines
    assert all(len(line) <= 60 for line in lines)
