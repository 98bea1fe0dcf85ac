"""mvc fsck: damage is named with all commits it touches, and a lost index is repaired."""

from __future__ import annotations


def test_fsck_names_all_commits_that_damage_touches(shell):
    for number in range(5):
        (shell.folder / "notes.txt").write_text(f"{number}")
        shell.ok("add", "notes.txt")
        shell.ok("commit", "-m", f"notes {number}")
    for pack in (shell.folder / ".mvc/chunks/packs").iterdir():
        pack.unlink()
    line = next(line for line in shell("fsck").lines if "'head'" in line)
    newest = [entry["commit"] for entry in shell.json("log", "-n", "6")]
    shown = ", ".join(commit[:7] for commit in newest[:3])
    assert line.endswith(f"(commits {shown} and 3 more)")
    problems = shell.json("fsck", code=1)["problems"]
    problem = next(one for one in problems if one.get("tensor") == "head")
    assert problem["commits"] == newest
    assert problem["commit"] == newest[0]


def test_fsck_of_a_sound_repository(shell):
    (line,) = shell.ok("fsck").lines
    assert line.startswith("ok: 4 commits, ")
    assert "--data" in line
    assert "every byte read and hashed" in shell.ok("fsck", "--data").out
    fields = shell.json("fsck", "--data")
    assert (fields["ok"], fields["problems"], fields["data"]) == (True, [], True)
    assert fields["commits"] == 4
    assert fields["chunks"] > 0


def _damage_a_pack(shell):
    pack = max((shell.folder / ".mvc").rglob("*.pack"), key=lambda path: path.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)


def test_fsck_of_damage(shell):
    _damage_a_pack(shell)
    answer = shell("fsck", "--data")
    assert answer.code == 1
    assert answer.err == ""
    assert answer.lines[-1].split()[1].startswith("problem")
    assert any(line.startswith("hint: ") for line in answer.lines)
    fields = shell.json("fsck", "--data", code=1)
    assert fields["ok"] is False
    assert all({"kind", "detail"} <= set(problem) for problem in fields["problems"])
    assert any("tensor" in problem for problem in fields["problems"])
    assert any("pack" in problem and "offset" in problem for problem in fields["problems"])
    assert shell("fsck", "--data", "-q").lines == answer.lines[:-1]
