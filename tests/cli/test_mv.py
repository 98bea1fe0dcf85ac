"""mvc mv."""


def test_mv(shell):
    assert shell.ok("mv", "config.json", "settings.json").out == ""
    assert shell.ok("status", "--porcelain").lines == ["R  config.json -> settings.json"]
    answer = shell.ok("mv", "-v", "settings.json", "config.json")
    assert answer.lines == ["settings.json -> config.json"]
    assert shell.ok("status", "--porcelain").lines == []
