"""mvc repack."""


def test_what_is_done_and_then_nothing(shell):
    before = shell.json("ls", "--json")
    planned = shell.json("repack", "-n")
    assert planned["dry_run"] is True
    assert planned["deltas"] is None
    assert planned["packs"] > 1
    assert shell.json("repack", "--dry-run") == planned
    lines = shell.ok("repack").lines
    assert lines[0].startswith(f"{planned['rewrite_packs']} packs rewritten")
    assert lines[-1].startswith("1 pack, ")
    assert lines[-1].endswith(" now")
    assert shell.ok("repack").lines[0].startswith("nothing to do: 1 pack, ")
    assert shell.json("ls", "--json") == before
    assert shell.json("fsck", "--data")["ok"] is True


def test_auto_only_when_due(shell):
    packs = shell.json("repack", "-n")["packs"]
    assert shell.ok("repack", "--auto").out == ""
    assert shell.json("repack", "--auto") is None
    assert shell.json("repack", "-n")["packs"] == packs
