"""mvc export."""


def test_export_of_a_whole_revision(shell):
    shell.ok("checkout", "-q", "v1")
    expected = {
        name: (shell.folder / name).read_bytes() for name in ("model.safetensors", "config.json")
    }
    shell.ok("checkout", "-q", "main")
    answer = shell.ok("export", "v1", "../out/v1/")
    assert answer.out.startswith("../out/v1: 2 files, ")
    out = shell.folder.parent / "out" / "v1"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == expected
    assert shell("export", "v1", "../out/v1/").code == 4
    assert shell.json("export", "v1", "-o", "../out/v1/", "-f")["files"] == 2
    assert shell("export", "v1", "model.safetensors", "-o", "x/").code == 2
    assert shell("export", "v1").code == 2
    assert shell.ok("status", "-s").out == ""


def test_export_in_other_formats(shell):
    fields = shell.json("export", "HEAD", "-o", "x.pt")
    assert (fields["format"], fields["tensors"], fields["left_out"]) == ("torch", 9, [])
    answer = shell.ok("export", "HEAD", "model.safetensors", "--format", "dcp", "-o", "shards")
    assert answer.out.startswith("shards: 2 files, 9 tensors, ")
    assert {path.name for path in (shell.folder / "shards").iterdir()} == {
        ".metadata", "__0_0.distcp",
    }  # fmt: skip
    assert shell("export", "HEAD", "--format", "dcp", "-o", "shards").code == 4
    assert shell.ok("export", "HEAD", "hub/", "--format", "safetensors").out.startswith("hub: 1 ")
    assert shell("export", "HEAD", "--format", "onnx", "-o", "x").code == 2
    assert shell("export", "HEAD", "--format", "torch", "-o", "x.safetensors").code == 2
