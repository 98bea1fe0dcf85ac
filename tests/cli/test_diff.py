"""diff in all its directions and forms."""

from support.cli import plain
from support.models import write_config


def _paths(fields):
    return [(file["path"], file["status"]) for file in fields["files"]]


def test_worktree_and_index(shell):
    write_config(shell.folder / "config.json", lr=1)
    assert _paths(shell.json("diff")) == [("config.json", "modified")]
    assert shell.json("diff", "--staged") == {"files": []}
    shell.ok("add", ".")
    assert shell.json("diff") == {"files": []}
    assert _paths(shell.json("diff", "--staged")) == [("config.json", "modified")]
    assert _paths(shell.json("diff", "--cached", "HEAD")) == [("config.json", "modified")]
    assert shell("diff", "--staged", "--exit-code").code == 1
    assert shell("diff", "--staged", "--exit-code", "--json").code == 1


def test_revisions(shell):
    both = [("config.json", "modified"), ("model.safetensors", "modified")]
    for words, paths in [
        (("v1",), both[1:]),
        (("v1", "side"), both[:1]),
        (("main..side",), both),
        (("main...side",), both[:1]),
        (("side..",), both),
    ]:
        assert _paths(shell.json("diff", *words)) == paths, words


def test_paths_and_tensors(shell):
    assert shell.ok("diff", "main", "side", "--name-only", "--", "config.json").lines == [
        "config.json"
    ]
    assert shell.ok("diff", "main..side", "--name-only", "config.json").lines == ["config.json"]
    (file,) = shell.json("diff", "v1", "main", "--tensors", "layers.*")["files"]
    assert [tensor["name"] for tensor in file["tensors"]] == ["layers.1.q"]
    assert shell.ok("diff", "v1", "main", "--tensors", "nothing*", "--name-only").out == ""
    assert shell.ok("diff", "v1", "main", "--tensors", "hea*", "--name-only").out != ""


def test_changed_lines_of_texts(shell):
    note = shell.folder / "note.txt"
    note.write_text("".join(f"line {number}\n" for number in range(100)))
    shell.ok("add", "note.txt")
    shell.ok("commit", "-m", "note")
    note.write_text(note.read_text().replace("line 50\n", "line fifty\x1b[31m\n"))
    lines = shell.ok("diff").lines
    assert lines[1:6] == [
        "  @@ -48,7 +48,7 @@",
        "   line 47",
        "   line 48",
        "   line 49",
        "  -line 50",
    ]
    assert lines[6] == "  +line fifty\\x1b[31m"
    assert shell.json("diff")["files"][0]["lines"][4] == "-line 50"
    shell.ok("commit", "-am", "one line")
    assert "  +line fifty\\x1b[31m" in shell.ok("show").lines
    assert "  -line 50" in shell.ok("log", "-p", "-1").lines
    note.write_text("other\n" * 70)
    short = plain(shell.ok("diff", terminal=True).out).splitlines()
    assert short[-1].endswith("more lines (--all shows them)")
    assert len(short) == 1 + 40
    note.write_bytes(b"\0binary")
    assert len(shell.ok("diff").lines) == 1
