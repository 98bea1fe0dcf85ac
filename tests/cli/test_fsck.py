"""init, config, fsck, doctor."""

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


def test_init(bare):
    answer = bare.ok("init")
    assert answer.lines == [f"Initialized empty mvc repository in {bare.folder.resolve()}/.mvc/"]
    assert bare.ok("init").out.startswith("Reinitialized existing mvc repository in ")
    assert bare.json("init")["created"] is False


def test_init_somewhere_with_a_branch(bare):
    fields = bare.json("init", "new/place", "-b", "trunk")
    assert fields == {
        "git_dir": str(bare.folder.resolve() / "new" / "place" / ".mvc"),
        "branch": "trunk",
        "created": True,
    }
    assert bare.ok("init", "-q", "other").out == ""
    assert bare.ok("status", folder="new/place").lines[0] == "On branch trunk"
    assert bare.ok("-C", "new/place", "branch", "--show-current").lines == ["trunk"]


def test_config(empty):
    assert empty.ok("config", "user.name", "Ada B").out == ""
    assert empty.ok("config", "user.name").lines == ["Ada B"]
    assert empty.ok("config", "USER.Name").lines == ["Ada B"]
    assert "user.name=Ada B" in empty.ok("config", "--list").lines
    assert "user.name=Ada B" in empty.ok("config").lines
    assert empty.json("config")["user.name"] == "Ada B"
    assert empty.json("config", "user.name") == {"user.name": "Ada B"}
    empty.ok("config", "--unset", "user.name")
    assert empty("config", "user.name").code == 3
    assert empty("config", "--unset", "user.name").code == 3


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


def test_fsck_repairs_a_lost_index(shell):
    for path in (shell.folder / ".mvc" / "chunks").rglob("*.idx"):
        path.unlink()
    answer = shell.ok("fsck", "--repair")
    assert any(line.startswith("repaired: ") for line in answer.lines)
    assert shell.json("fsck", "--data")["ok"] is True


def test_doctor(shell):
    lines = shell.ok("doctor").lines
    assert lines[0].startswith("python  ")
    fields = shell.json("doctor")
    assert {"versions", "python", "cores", "filesystem", "free_bytes", "advice"} <= set(fields)
    assert fields["versions"]["mvc-models"]
