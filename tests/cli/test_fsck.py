"""mvc fsck: damage is named with all commits it touches, and a lost index is repaired."""

import re

from support.damage import flip


def test_fsck_of_a_sound_repository(shell):
    (line,) = shell.ok("fsck").lines
    assert line.startswith("ok: 4 commits, ")
    assert "--data" in line
    assert "every byte read and hashed" in shell.ok("fsck", "--data").out
    fields = shell.json("fsck", "--data")
    assert (fields["ok"], fields["problems"], fields["data"]) == (True, [], True)
    assert fields["commits"] == 4
    assert fields["chunks"] > 0


def test_fsck_of_damage(shell):
    packs = (shell.folder / ".mvc/chunks").rglob("*.pack")
    pack = max(packs, key=lambda path: path.stat().st_mtime_ns)
    flip(pack, -60)  # in the last chunk, which is of a tensor
    for number in range(5):
        (shell.folder / "notes").write_text(f"{number}")
        shell.ok("commit", "-m", f"{number}", "notes")
    answer = shell("fsck", "--data")
    assert (answer.code, answer.err) == (1, "")
    assert answer.lines[-1].split()[1].startswith("problem")
    assert any(line.startswith("hint: ") for line in answer.lines)
    assert any(
        re.search(r"\bcommits (\w{7}, ){2}\w{7} and 3 more\)$", line) for line in answer.lines
    )
    fields = shell.json("fsck", "--data", code=1)
    assert fields["ok"] is False
    assert all({"kind", "detail"} <= set(problem) for problem in fields["problems"])
    assert any("tensor" in problem for problem in fields["problems"])
    assert any("pack" in problem and "offset" in problem for problem in fields["problems"])
    assert shell("fsck", "--data", "-q").lines == answer.lines[:-1]
