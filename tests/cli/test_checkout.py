"""checkout, switch, restore, reset, undo."""

from __future__ import annotations

from support.models import digests, write_config


def test_checkout_a_branch_and_back(shell):
    before = digests(shell.folder)
    assert shell.ok("checkout", "side").lines == ["Switched to branch 'side'", "2 files written"]
    assert digests(shell.folder) != before
    assert shell.ok("checkout", "-").lines == ["Switched to branch 'main'", "2 files written"]
    assert digests(shell.folder) == before
    assert shell.ok("checkout", "main").lines == ["Already on 'main'"]
    assert shell.ok("checkout").lines == ["Already on 'main'"]


def test_checkout_a_revision_detaches(shell):
    base = shell.json("log")[-1]["commit"]
    lines = shell.ok("checkout", "v1").lines
    assert lines[0] == f"HEAD is now at {base[:7]} base model"
    assert "mvc switch -c NAME" in lines[1]
    assert lines[2] == "1 file written"
    lines = shell.ok("checkout", "main").lines
    assert lines[0] == f"Previous HEAD position was {base[:7]} base model"


def test_checkout_by_step(shell):
    shell.ok("checkout", "-q", "main@1000")
    assert shell.json("log")[0]["subject"] == "tuned"


def test_checkout_json(shell):
    fields = shell.json("checkout", "side")
    assert fields["branch"] == "side"
    assert fields["commit"] == shell.json("log", "side")[0]["commit"]
    assert fields["written"] == ["config.json", "model.safetensors"]
    assert fields["removed"] == []
    assert shell.json("checkout", "--detach", "main")["branch"] is None


def test_checkout_a_new_branch(shell):
    assert shell.ok("checkout", "-b", "new").lines == ["Switched to a new branch 'new'"]
    lines = shell.ok("checkout", "-b", "older", "v1").lines
    assert lines == ["Switched to a new branch 'older'", "1 file written"]
    assert shell.ok("branch", "--show-current").out == "older\n"


def test_checkout_paths_from_the_index_and_a_revision(shell):
    write_config(shell.folder / "config.json", lr=1)
    before = digests(shell.folder)
    assert shell.ok("checkout", "--", "config.json").lines == ["Updated 1 path from the index"]
    assert digests(shell.folder) != before
    write_config(shell.folder / "config.json", lr=1)
    shell.ok("checkout", "config.json")
    assert shell.ok("status", "-s").out == ""
    side = shell.json("log", "side")[0]["commit"][:7]
    assert shell.ok("checkout", "side", "--", "config.json").lines == [
        f"Updated 1 path from {side}"
    ]
    assert shell.ok("checkout", "side", "config.json").code == 0
    assert shell.ok("status", "-s").lines == ["M  config.json"]


def test_checkout_of_a_removed_file(shell):
    (shell.folder / "config.json").unlink()
    shell.ok("checkout", "config.json")
    assert (shell.folder / "config.json").exists()


def test_checkout_refuses_to_overwrite_unless_forced(shell):
    write_config(shell.folder / "config.json", lr=1)
    before = digests(shell.folder)
    answer = shell("checkout", "side")
    assert answer.code == 4
    assert "config.json" in answer.error
    assert "-f" in answer.hint
    assert digests(shell.folder) == before
    shell.ok("checkout", "-f", "side")
    assert shell.ok("status", "-s").out == ""


def test_switch(shell):
    assert shell.ok("switch", "side").lines[0] == "Switched to branch 'side'"
    assert shell.ok("switch", "-").lines[0] == "Switched to branch 'main'"
    assert shell.ok("switch", "-c", "new").lines == ["Switched to a new branch 'new'"]
    assert shell.ok("switch", "--create", "older", "v1").lines[-1] == "1 file written"
    assert shell.ok("switch", "-q", "main").out == ""
    assert shell.json("switch", "side")["branch"] == "side"


def test_switch_goes_to_branches_only_unless_detached(shell):
    answer = shell("switch", "v1")
    assert answer.code == 3
    assert "--detach" in answer.hint
    assert shell.ok("switch", "--detach", "v1").lines[0].startswith("HEAD is now at ")
    answer = shell("switch", "-")
    assert answer.code == 0


def test_switch_force(shell):
    write_config(shell.folder / "config.json", lr=1)
    assert shell("switch", "side").code == 4
    shell.ok("switch", "-f", "side")


def test_restore(shell):
    write_config(shell.folder / "config.json", lr=1)
    shell.ok("add", ".")
    write_config(shell.folder / "config.json", lr=2)
    assert shell.ok("restore", "config.json").lines == ["Updated 1 path from the index"]
    assert shell.ok("status", "-s").lines == ["M  config.json"]
    shell.ok("restore", "--staged", "config.json")
    assert shell.ok("status", "-s").lines == [" M config.json"]
    shell.ok("restore", "-q", ".")
    assert shell.ok("status", "-s").out == ""
    fields = shell.json("restore", "--source", "side", "config.json")
    assert fields["written"] == ["config.json"]
    shell.ok("restore", "-s", "v1", "-S", "-W", "model.safetensors")
    assert shell.ok("status", "-s").lines == [" M config.json", "M  model.safetensors"]


def test_reset_modes(shell):
    shell.ok("reset", "--soft", "HEAD~1")
    assert shell.ok("status", "-s").lines == ["M  model.safetensors"]
    shell.ok("reset", "--hard", "HEAD@{1}")
    assert shell.ok("status", "-s").out == ""
    answer = shell.ok("reset", "HEAD~1")
    assert answer.lines == ["Unstaged changes after reset:", "M\tmodel.safetensors"]
    shell.ok("reset", "--mixed", "-q", "HEAD@{1}")
    assert shell.ok("status", "-s").out == ""
    first = shell.json("log")[-1]["commit"][:7]
    assert shell.ok("reset", "--hard", "v1").lines == [f"HEAD is now at {first} base model"]


def test_reset_paths(shell):
    write_config(shell.folder / "config.json", lr=1)
    shell.ok("add", ".")
    assert shell.ok("reset", "config.json").lines == [
        "Unstaged changes after reset:", "M\tconfig.json",
    ]  # fmt: skip
    shell.ok("reset", "side", "--", "config.json")
    assert shell.ok("status", "-s").lines == ["MM config.json"]
    assert shell.json("reset", "HEAD", "config.json")["branch"] == "main"


def test_reset_before_the_first_commit(empty):
    (empty.folder / "a.txt").write_text("1")
    empty.ok("add", ".")
    empty.ok("reset", "HEAD", "a.txt")
    assert empty.ok("status", "-s").lines == ["?? a.txt"]
    empty.ok("add", ".")
    empty.ok("reset", "--", "a.txt")
    assert empty.ok("status", "-s").lines == ["?? a.txt"]


def test_undo(shell):
    head, base = shell.json("log")[0]["commit"], shell.json("log")[1]["commit"]
    subjects = [entry["subject"] for entry in shell.json("log")]
    planned = shell.ok("undo", "--dry-run").lines
    assert planned[0] == f"Would take back: commit: {subjects[0]}"
    assert planned[1] == f"Branch 'main' would be at {base[:7]} {subjects[1]}"
    assert planned[2].startswith("Index and files would stay as they were")
    lines = shell.ok("undo").lines
    assert lines[:2] == [
        f"Took back: commit: {subjects[0]}",
        f"Branch 'main' is now at {base[:7]} {subjects[1]}",
    ]
    assert lines[2] == f"Index and files are as they were; the commit taken back is {head[:7]}"
    assert shell.ok("undo", "--redo").lines == [
        f"Redid: commit: {subjects[0]}",
        f"Branch 'main' is now at {head[:7]} {subjects[0]}",
    ]
    answer = shell("undo", "--redo")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.splitlines() == [
        "error: there is nothing to redo: the last move was not an undo"
    ]
    assert shell.ok("undo", "-q").out == ""
    assert shell.json("undo", "--redo", "-n")["dry_run"] is True


def test_undo_of_a_switch_and_a_reset(shell):
    shell.ok("switch", "side")
    assert shell.ok("undo").lines[0] == "Took back: checkout: moving from main to side"
    shell.ok("reset", "--hard", "HEAD~1")
    lines = shell.ok("undo").lines
    assert lines[0] == "Took back: reset: moving to HEAD~1"
    assert lines[-1].endswith("written")
    shell.ok("reset", "--hard", "HEAD~1")
    (shell.folder / "model.safetensors").write_bytes(b"mine")
    assert shell("undo").code == 4
    found = shell.json("undo", "--force")
    assert (found["kind"], found["written"]) == ("reset", ["model.safetensors"])
    assert shell.json("undo")["kind"] == "commit"


def test_undo_of_the_first_commit(empty):
    (empty.folder / "a.txt").write_text("a")
    empty.ok("add", ".")
    empty.ok("commit", "-m", "first")
    first = empty.json("log")[0]["commit"]
    assert empty.ok("undo").lines == [
        "Took back: commit (initial): first",
        "Branch 'main' is now without a commit",
        f"Index and files are as they were; the commit taken back is {first[:7]}",
    ]
    answer = empty("undo")
    assert (answer.code, len(answer.err.splitlines())) == (3, 2)
    assert empty.json("undo", "--redo")["commit"] == first


def test_what_is_deleted_can_be_made_again(shell):
    tip = shell.json("branch")[1]["commit"]
    (line,) = shell.ok("branch", "-D", "side").lines
    shell.ok("branch", "side", line.split("was ")[1].removesuffix(")."))
    assert shell.json("branch")[1]["commit"] == tip
    (line,) = shell.ok("tag", "-d", "v1").lines
    shell.ok("tag", "v1", line.split("was ")[1].removesuffix(")"))
