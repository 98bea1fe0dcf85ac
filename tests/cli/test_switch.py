"""mvc switch: to branches only, unless it is said otherwise."""


def test_switch(shell):
    assert shell.ok("switch", "side").lines[0] == "Switched to branch 'side'"
    assert shell.ok("switch", "-").lines[0] == "Switched to branch 'main'"
    assert shell.ok("switch", "-c", "new").lines == ["Switched to a new branch 'new'"]
    assert shell.ok("switch", "--create", "older", "v1").lines[-1] == "1 file written"
    assert shell.ok("switch", "-q", "main").out == ""
    assert shell.json("switch", "side")["branch"] == "side"
