"""mvc rm."""


def test_rm(shell):
    assert shell.ok("rm", "config.json").lines == ["rm 'config.json'"]
    assert not (shell.folder / "config.json").exists()
    assert shell.ok("status", "--porcelain").lines == ["D  config.json"]
