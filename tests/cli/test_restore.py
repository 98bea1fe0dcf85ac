"""mvc restore."""

from support.models import write_config


def test_restore(shell):
    write_config(shell.folder / "config.json", lr=1)
    shell.ok("add", ".")
    write_config(shell.folder / "config.json", lr=2)
    assert shell.ok("restore", "config.json").lines == ["Updated 1 path from the index"]
    assert shell.ok("status", "-s").lines == ["M  config.json"]
    shell.ok("restore", "--staged", "config.json")
    assert shell.ok("status", "-s").lines == [" M config.json"]
    shell.ok("restore", "-q", ".")
    assert shell.ok("status", "-s").out == ""
    fields = shell.json("restore", "--source", "side", "config.json")
    assert fields["written"] == ["config.json"]
    shell.ok("restore", "-s", "v1", "-S", "-W", "model.safetensors")
    assert shell.ok("status", "-s").lines == [" M config.json", "M  model.safetensors"]


def test_a_revision_in_place_of_a_path(shell):
    answer = shell("restore", "v1", "config.json")
    assert (answer.code, answer.error) == (3, "path 'v1' matches no file")
    assert answer.hint == '"mvc restore -s v1 PATH" takes files from that revision'
