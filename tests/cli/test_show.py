"""mvc show."""

from support.cli import plain


def test_show(shell):
    lines = shell.ok("show").lines
    assert "    grown" in lines
    title = "modified: model.safetensors  safetensors, 2 of 9 tensors differ, "
    (number,) = [number for number, line in enumerate(lines) if line.startswith(title)]
    assert lines[number + 1].split() == [
        "M", "embed", "F32[64,", "32]", "->", "F32[80,", "32]", "1/1", "chunk", "10", "KiB",
    ]  # fmt: skip
    assert lines[number + 2].split() == ["A", "head", "F16[4,", "32]", "256", "B"]


def test_show_the_first_commit(shell):
    lines = shell.ok("show", "v1").lines
    assert lines[-2].startswith("new file: config.json  ")
    assert lines[-1].startswith("new file: model.safetensors  safetensors, 8 tensors, ")
    assert "  A embed" in plain(shell.ok("show", "v1", "--all").out)


def test_show_forms(shell):
    assert shell.ok("show", "--name-only", "side").lines[-1] == "config.json"
    assert shell.ok("show", "--name-status", "side").lines[-1] == "M\tconfig.json"
    assert shell.ok("show", "--stat").lines[-1].startswith(" 1 file changed, 2 tensors (")
    assert "head" not in shell.ok("show", "--tensors", "emb*").out


def test_show_a_file(shell):
    answer = shell.ok("show", "side:config.json")
    assert b'"kind": "side"' in answer.raw
    fields = shell.json("show", "side:config.json")
    assert fields["content"] == answer.out
    assert fields["path"] == "config.json"
    listing = shell.ok("show", "v1:model.safetensors").lines
    assert listing[0].startswith("model.safetensors  safetensors, 8 tensors, ")
    assert len(listing) == 9
    fields = shell.json("show", "v1:model.safetensors")
    assert fields["content"] is None
    assert len(fields["tensors"]) == 8
