"""status in its four forms."""

import numpy as np

from support.cli import Shell, plain
from support.models import write_model


def _disturb(shell):
    (shell.folder / "config.json").write_text("changed")
    (shell.folder / "new.txt").write_text("staged")
    shell.ok("add", "new.txt")
    (shell.folder / "new.txt").write_text("and changed")
    (shell.folder / "model.safetensors").unlink()
    (shell.folder / "other file.txt").write_text("untracked")


def test_long_form_names_everything_with_hints(shell):
    _disturb(shell)
    assert shell.ok("status").lines == [
        "On branch main",
        "",
        "Changes to be committed:",
        '  (use "mvc restore --staged <file>..." to unstage)',
        "\tnew file:   new.txt",
        "",
        "Changes not staged for commit:",
        '  (use "mvc add/rm <file>..." to update what will be committed)',
        '  (use "mvc restore <file>..." to discard changes in the worktree)',
        "\tmodified:   config.json",
        "\tdeleted:    model.safetensors",
        "\tmodified:   new.txt",
        "",
        "Untracked files:",
        '  (use "mvc add <file>..." to include in what will be committed)',
        "\tother file.txt",
    ]


def test_short_porcelain_and_json(shell):
    _disturb(shell)
    expected = [" M config.json", " D model.safetensors", "AM new.txt", '?? "other file.txt"']
    assert shell.ok("status", "-s").lines == shell.ok("status", "--porcelain").lines == expected
    fields = shell.json("status")
    assert (fields["branch"], len(fields["commit"]), fields["clean"]) == ("main", 40, False)
    assert [(file["path"], file["staged"], file["worktree"]) for file in fields["files"]] == [
        ("config.json", "unmodified", "modified"),
        ("model.safetensors", "unmodified", "removed"),
        ("new.txt", "added", "modified"),
        ("other file.txt", "unmodified", "untracked"),
    ]


def test_porcelain_is_never_coloured_and_counts_from_the_top(shell):
    (shell.folder / "below").mkdir()
    (shell.folder / "config.json").write_text("changed")
    answer = shell.ok("status", "--porcelain", folder="below", terminal=True)
    assert answer.lines == [" M config.json"]
    answer = shell.ok("status", "-s", folder="below", terminal=True)
    assert "\x1b[31mM" in answer.out
    assert plain(answer.out) == " M ../config.json\n"


def test_branch_line(shell):
    assert shell.ok("status", "-sb").lines == ["## main"]
    shell.ok("checkout", "-q", "--detach")
    assert shell.ok("status", "-s", "--branch").lines == ["## HEAD (no branch)"]


def test_a_lost_manifest_does_not_stop_it(empty):
    write_model(empty.folder / "a.safetensors")
    empty.ok("commit", "-qm", "a", ".")
    (blob,) = (file["blob"] for file in empty.json("ls")["files"])
    (empty.folder / "a.safetensors").unlink()
    write_model(empty.folder / "b.safetensors", head=np.ones(3, np.float32))
    empty.ok("add", ".")
    assert "\t(the same 8 tensors are in other files)" in empty.ok("status").lines
    (empty.folder / ".mvc/objects" / blob[:2] / blob[2:]).unlink()
    assert empty("diff", "--staged").code == 5
    assert "\tdeleted:    a.safetensors" in empty.ok("status").lines


def test_untracked_folders_and_the_size_of_the_terminal(empty):
    (empty.folder / "runs/a").mkdir(parents=True)
    for number in range(130):
        (empty.folder / f"runs/a/{number}").touch()
        (empty.folder / f"{number:03d}.txt").touch()
    lines = empty.ok("status").lines
    assert '\t… and 31 more ("mvc status -s" lists all)' in lines
    assert len(empty.json("status")["files"]) == len(empty.ok("status", "-s").lines) == 260
    shown = empty.ok("status", terminal=True).lines
    assert len(shown) <= 24
    for path in empty.folder.glob("*.txt"):
        path.unlink()
    assert "\t../" in empty.ok("status", folder="runs/a").lines


def test_strange_names_are_quoted_and_never_reach_the_terminal(empty):
    name = 'a\x1b[31m"\n.txt'
    (empty.folder / name).write_text("1")
    assert empty.ok("status", "--porcelain").out == '?? "a\\033[31m\\"\\n.txt"\n'
    assert '\ta\\x1b[31m"\\x0a.txt' in empty.ok("status").out
    assert empty.json("status")["files"][0]["path"] == name


def test_ignored(shell):
    (shell.folder / ".mvcignore").write_text("*.log\nout/\n")
    (shell.folder / "out").mkdir()
    for name in ("run.log", "out/a", "out/b"):
        (shell.folder / name).write_text("x")
    assert shell.ok("status", "-s").lines == ["?? .mvcignore"]
    lines = ["?? .mvcignore", "!! out/", "!! run.log"]
    assert shell.ok("status", "--porcelain", "--ignored").lines == lines
    assert shell.ok("status", "--porcelain", "--ignored", "--no-untracked").lines == lines[1:]
    long = shell.ok("status", "--ignored").lines
    assert long[long.index("Ignored files:") + 2 :][:2] == ["\tout/", "\trun.log"]
    assert shell.json("status", "--ignored")["clean"] is True
    shell.ok("add", "-f", "run.log")
    assert "!! run.log" not in shell.ok("status", "-s", "--ignored").lines


def test_what_a_clone_leaves_out_is_named(shell, folder, environment):
    shell.ok("remote", "add", "origin", "../store")
    shell.ok("push", "-q")
    shell.ok("clone", "-q", "--no-content", "../store", "../part")
    part = Shell(folder / "part", environment)
    lines = part.ok("status").lines
    assert lines[-1] == "nothing to commit, working tree clean"
    assert lines[-5:-2] == [
        "Not written here:",
        '  (use "mvc checkout HEAD -- <file>..." to write what you need)',
        "\tmodel.safetensors",
    ]
    assert part.json("status")["left_out"] == ["model.safetensors"]
    part.ok("checkout", "-q", "HEAD", "--", "model.safetensors")
    assert "left_out" not in part.json("status")
    assert part.json("status")["clean"]


def test_long_form_of_nothing(empty):
    lines = empty.ok("status").lines
    assert lines[:3] == ["On branch main", "", "No commits yet"]
    assert lines[-1].startswith("nothing to commit (create or copy files and use ")
    empty.ok("commit", "--allow-empty", "-m", "x")
    assert empty.ok("status").lines == ["On branch main", "nothing to commit, working tree clean"]
