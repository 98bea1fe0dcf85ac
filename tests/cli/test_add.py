"""mvc add."""

from __future__ import annotations

from support.models import write_model


def test_add_stages_and_tells_what_it_did(empty):
    write_model(empty.folder / "model.safetensors")
    answer = empty.ok("add", "model.safetensors")
    assert answer.out.startswith("added 1 file, ")
    assert " read, " in answer.out
    assert " written, 0 B reused in " in answer.out
    assert empty.ok("status", "--porcelain").lines == ["A  model.safetensors"]


def test_add_quiet_says_nothing(empty):
    write_model(empty.folder / "model.safetensors")
    answer = empty.ok("add", "-q", "--no-progress", "model.safetensors")
    assert (answer.out, answer.err) == ("", "")


def test_add_of_what_is_there_says_nothing(shell):
    assert shell.ok("add", ".").out == ""


def test_add_json(empty):
    write_model(empty.folder / "model.safetensors")
    (empty.folder / "note.txt").write_text("hello")
    fields = empty.json("add", ".")
    assert [file["path"] for file in fields["added"]] == ["model.safetensors", "note.txt"]
    assert [file["format"] for file in fields["added"]] == ["safetensors", None]
    assert fields["added"][1]["size_bytes"] == 5
    assert fields["chunks"]["total"] == fields["chunks"]["new"] > 0
    assert fields["bytes"]["plain"] > fields["bytes"]["written"] > 0
    assert (fields["removed"], fields["unchanged"], fields["warnings"]) == ([], [], [])


def test_add_all_from_a_folder_below(empty):
    (empty.folder / "below").mkdir()
    (empty.folder / "top.txt").write_text("1")
    (empty.folder / "below" / "low.txt").write_text("2")
    empty.ok("add", "low.txt", folder="below")
    assert empty.ok("status", "--porcelain").lines == ["A  below/low.txt", "?? top.txt"]
    empty.ok("add", "-A", folder="below")
    assert empty.ok("status", "--porcelain").lines == ["A  below/low.txt", "A  top.txt"]


def test_add_dry_run_changes_nothing(shell):
    (shell.folder / "new.txt").write_text("1")
    (shell.folder / "config.json").unlink()
    answer = shell.ok("add", "-n", ".")
    assert answer.lines == ["add 'new.txt'", "remove 'config.json'", "would read 1 file, 1 B"]
    plan = shell.json("add", "--dry-run", ".")
    assert (plan["add"], plan["remove"], plan["size_bytes"]) == (["new.txt"], ["config.json"], 1)
    assert shell.ok("status", "--porcelain").lines == [" D config.json", "?? new.txt"]


def test_add_takes_removed_files_out(shell):
    (shell.folder / "config.json").unlink()
    assert shell.ok("add", ".").out.startswith("removed 1 file in ")
    assert shell.ok("status", "--porcelain").lines == ["D  config.json"]


def test_add_of_an_ignored_file_needs_force(empty):
    (empty.folder / ".mvcignore").write_text("*.log\n")
    (empty.folder / "run.log").write_text("x")
    answer = empty("add", "run.log")
    assert answer.code == 2
    assert answer.error == "'run.log' is ignored by .mvcignore, line 1: *.log"
    assert "-f" in answer.hint
    empty.ok("add", "-f", "run.log")
    assert "A  run.log" in empty.ok("status", "--porcelain").lines


def test_add_warns_of_a_malformed_checkpoint_and_keeps_it(empty):
    (empty.folder / "broken.safetensors").write_bytes(b"\xff" * 64)
    answer = empty.ok("add", "broken.safetensors")
    assert answer.err.startswith("warning: broken.safetensors: ")
    (warning,) = empty.json("commit", "-m", "x")["warnings"] or [{"path": "broken.safetensors"}]
    assert warning["path"] == "broken.safetensors"


def test_commit_of_paths_reports_their_warnings(empty):
    (empty.folder / "broken.safetensors").write_bytes(b"\xff" * 64)
    answer = empty.ok("commit", "-m", "x", "broken.safetensors")
    assert answer.err.startswith("warning: broken.safetensors: ")


def test_add_update_takes_only_tracked_files(shell):
    (shell.folder / "config.json").write_text("{}")
    (shell.folder / "new.txt").write_text("new")
    (shell.folder / "model.safetensors").unlink()
    assert shell.json("add", "-u", "-n")["add"] == ["config.json"]
    shell.ok("add", "-u", "config.json")
    assert shell.ok("status", "-s").lines == [
        "M  config.json",
        " D model.safetensors",
        "?? new.txt",
    ]
    shell.ok("add", "-u")
    assert shell.ok("status", "-s").lines == [
        "M  config.json",
        "D  model.safetensors",
        "?? new.txt",
    ]
    assert shell("add", "-u", "new.txt").code == 3
    assert shell("add", "-u", "-A").code == 2
