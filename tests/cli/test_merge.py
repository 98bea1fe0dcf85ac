"""mvc merge: what people see, and its exit codes."""

import numpy as np
import pytest

from support.cli import plain
from support.models import write_config, write_model


@pytest.fixture
def parted(shell):
    write_model(shell.folder / "model.safetensors", seed=5, layers=12)
    write_config(shell.folder / "config.json", lr=1)
    shell.ok("add", ".")
    shell.ok("commit", "-m", "base")
    shell.ok("switch", "-c", "away")
    write_model(
        shell.folder / "model.safetensors", seed=6, layers=12, norm=np.zeros(32, np.float32)
    )
    write_config(shell.folder / "config.json", lr=2)
    shell.ok("commit", "-am", "away")
    shell.ok("switch", "-")
    write_model(shell.folder / "model.safetensors", seed=7, layers=12)
    shell.ok("commit", "-am", "here")
    return shell


def test_conflicts_say_what_and_how_to_go_on(parted):
    answer = parted("merge", "away")
    assert answer.code == 1
    assert "37 tensors changed on both sides" in answer.lines[0]
    assert "mvc merge --abort" in answer.out
    seen = parted("status", terminal=True).lines
    assert all(len(plain(line)) <= 80 for line in seen if "CONFLICT" in line), seen
    status = parted.ok("status").out
    assert "A merge of" in status
    assert "37 tensors changed on both sides" in status
    assert "UU model.safetensors" in parted.ok("status", "-s").out
    fields = parted.json("status")
    assert fields["pending"]["kind"] == "merge"
    assert len(fields["conflicts"]) == 37
    assert parted("merge", "--continue").code == 4
    answer = parted.ok("merge", "--continue", "--rule", "layers.*=theirs", "--strategy", "linear")
    assert "Merge branch 'away'" in answer.out


def test_mistakes(parted):
    for words, code, text in [
        ("", 2, "which branch?"),
        ("away --abort", 2, "cannot be used together"),
        ("--abort", 4, "no merge is under way"),
        ("--continue", 4, "no merge is under way"),
        ("away --rule *=theirz", 3, "did you mean 'theirs'?"),
        ("away --rule lm_head", 2, "GLOB=STRATEGY"),
        ("away --preview --rule lm_haed.*=ours", 3, "matches no file and no"),
        ("away --strategy linear --param wieght=1", 2, "wieght"),
        ("away --ff-only", 4, "diverged"),
        ("away --ff-only --no-ff", 2, "cannot be used together"),
        ("--recipe r.yml away", 2, "--recipe and BRANCH cannot be used together"),
        ("--recipe no.yml", 3, "recipe 'no.yml' does not exist"),
        ("away -o x.safetensors", 2, "--output needs --recipe"),
        ("--continue --tokenizer union", 2, "--tokenizer and --continue cannot"),
        ("--replay HEAD --preview", 2, "--replay and --preview cannot be used together"),
        ("--recipe r.yml -f", 2, "--force needs --output"),
    ]:
        answer = parted("merge", *words.split())
        assert (answer.code, text in answer.err) == (code, True), answer.err
        assert parted.ok("status", "-s").out == ""


def test_cherry_pick_and_revert(parted):
    answer = parted("cherry-pick", "away")
    assert answer.code == 1
    assert "mvc cherry-pick --skip" in answer.out
    assert "A cherry-pick of" in parted.ok("status").out
    parted.ok("cherry-pick", "--continue", "--strategy", "theirs")
    assert parted.json("cherry-pick", "away")["kind"] == "up-to-date"
    assert 'Revert "away"' in parted.ok("revert", "HEAD").out
    assert parted.json("revert", "HEAD~1", "--arithmetic")["kind"] == "up-to-date"
    assert parted("revert").code == 2
    assert parted("revert", "HEAD", "--arithmetic", "--strategy", "ours").code == 2
    assert parted("revert", "--abort").code == 4
    assert parted("cherry-pick", "HEAD", "--skip").code == 2
    for name in ("one", "two"):
        (parted.folder / name).write_text(name)
        parted.ok("add", name)
        parted.ok("commit", "-m", name)
    lines = parted.ok("revert", "HEAD", "HEAD~1").lines
    assert [line.partition("] ")[2] for line in lines[:2]] == ['Revert "two"', 'Revert "one"']
    assert len(lines) == 3


RECIPE = """
merge_method: ties
base_model: main~1
models:
  - {model: main, parameters: {weight: 0.5}}
  - {model: away, parameters: {weight: 0.5}}
"""


@pytest.fixture
def recipe(parted):
    (parted.folder / "r.yml").write_text(RECIPE)
    return parted


def test_a_recipe_is_previewed_committed_and_made_again(recipe, tmp_path):
    preview = recipe.ok("merge", "--recipe", "r.yml", "--preview")
    assert "Interference of main, away over main~1:" in preview.out
    assert preview.lines[-1] == "Nothing was written"
    told = recipe.ok("merge", "--recipe", "r.yml", "-o", str(tmp_path / "out.safetensors")).out
    assert "out.safetensors: " in told
    assert (tmp_path / "out.safetensors").stat().st_size
    assert "ties" in recipe.ok("merge", "--recipe", "r.yml", "--seed", "3").out
    again = recipe.ok("merge", "--replay", "HEAD")
    assert again.lines[0].endswith("the same to the bit")
    assert recipe.json("merge", "--replay", "HEAD")["is_same"] is True


def test_branches_are_previewed(recipe):
    answer = recipe.ok("merge", "away", "--preview", "--strategy", "linear")
    assert "1 file merged: model.safetensors" in answer.lines
    assert any(line.startswith("Tensors: ") and "computed" in line for line in answer.lines)
    assert recipe.ok("merge", "HEAD", "--preview").out == "Already up to date.\n"
    recipe.ok("switch", "-c", "behind", "away~1")
    assert "Fast-forward" in recipe.ok("merge", "away", "--preview").lines[0]
    recipe.ok("switch", "main")
    found = recipe.json("merge", "away", "--preview")
    assert found["total"]["shared"] > 0
    assert found["conflicts"]


def test_stash(parted):
    assert parted.ok("stash").out == "No local changes to save\n"
    write_config(parted.folder / "config.json", lr=7)
    (parted.folder / "own").write_text("x")
    assert parted.ok("stash", "-u", "-m", "mine").out == "Saved stash@{0}: On main: mine\n"
    assert parted.ok("stash", "list").lines == ["stash@{0}: On main: mine"]
    assert "config.json" in parted.ok("stash", "show").out
    for words, code in (
        (("list", "-m", "x"), 2),
        (("pop", "1"), 3),
        (("pop", "first"), 2),
        (("save",), 2),
    ):
        assert parted("stash", *words).code == code
    assert parted.json("stash", "list")["stashes"][0]["message"] == "On main: mine"
    popped = parted.ok("stash", "pop")
    assert "2 files written" in popped.out
    assert popped.lines[-1].startswith("Dropped stash@{0} (")
    parted.ok("stash")
    write_config(parted.folder / "config.json", lr=8)
    refused = parted("stash", "pop")
    assert (refused.code, "--force" in refused.err) == (4, False)  # pop has no such option
    parted.ok("commit", "-am", "other")
    answer = parted("stash", "pop", "stash@{0}")
    assert answer.code == 1
    assert "The stash is kept" in answer.out
    assert "Undecided" in parted.ok("status").out
    parted.ok("add", "config.json")
    assert "Dropped stash@{0}" in parted.ok("stash", "drop").out
