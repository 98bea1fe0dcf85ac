"""mvc add."""

from support.models import write_model


def test_add_stages_and_tells_what_it_did(empty):
    write_model(empty.folder / "model.safetensors")
    answer = empty.ok("add", "model.safetensors")
    assert answer.out.startswith("added 1 file, ")
    assert " read, " in answer.out
    assert " written, 0 B reused in " in answer.out
    assert empty.ok("status", "--porcelain").lines == ["A  model.safetensors"]


def test_add_dry_run_changes_nothing(shell):
    (shell.folder / "new.txt").write_text("1")
    (shell.folder / "config.json").unlink()
    answer = shell.ok("add", "-n", ".")
    assert answer.lines == ["add 'new.txt'", "remove 'config.json'", "would read 1 file, 1 B"]
    plan = shell.json("add", "--dry-run", ".")
    assert (plan["add"], plan["remove"], plan["size_bytes"]) == (["new.txt"], ["config.json"], 1)
    assert shell.ok("status", "--porcelain").lines == [" D config.json", "?? new.txt"]


def test_add_of_an_ignored_file_needs_force(empty):
    (empty.folder / ".mvcignore").write_text("*.log\n")
    (empty.folder / "run.log").write_text("x")
    answer = empty("add", "run.log")
    assert answer.code == 2
    assert answer.error == "'run.log' is ignored by .mvcignore, line 1: *.log"
    assert "-f" in answer.hint
    empty.ok("add", "-f", "run.log")
    assert "A  run.log" in empty.ok("status", "--porcelain").lines


def test_commit_of_paths_reports_their_warnings(empty):
    (empty.folder / "broken.safetensors").write_bytes(b"\xff" * 64)
    answer = empty.ok("commit", "-m", "x", "broken.safetensors")
    assert answer.err.startswith("warning: broken.safetensors: ")
