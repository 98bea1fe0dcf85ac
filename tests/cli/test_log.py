"""mvc log."""

import re

import numpy as np

from mvc import Identity, Repo
from mvc.history.values import Stamp
from support.cli import plain
from support.models import write_model
from support.stockgit import git

SUBJECTS = ["grown", "tuned", "base model"]


def test_default_form(shell):
    commit, tuned, _ = (entry["commit"] for entry in shell.json("log"))
    lines = shell.ok("log").lines
    assert lines[0] == f"commit {commit} (HEAD -> main)"
    assert lines[1] == "Author:  Ada Lovelace <ada@example.org>"
    assert re.fullmatch(r"Date:    \w{3} \w{3} \d+ \d\d:\d\d:\d\d \d{4} [+-]\d{4}", lines[2])
    assert lines[3:8] == ["Step:    2,000", "Metrics: loss 2, acc 0.5", "", "    grown", ""]
    assert lines[8] == f"commit {tuned}"
    assert "Meta:    by = hand" in lines
    assert "    base model" in lines


def test_json(shell):
    entries = shell.json("log")
    assert [entry["subject"] for entry in entries] == SUBJECTS
    assert [entry["step"] for entry in entries] == [2000, 1000, 0]
    assert [entry["metrics"] for entry in entries] == [
        {"loss": 2, "acc": 0.5}, {"loss": 2.25}, {"loss": 3.5},
    ]  # fmt: skip
    assert entries[1]["meta"] == {"by": "hand"}
    assert entries[0]["refs"] == ["HEAD -> main"]
    assert entries[2]["refs"] == ["tag: v1"]
    assert entries[0]["parents"] == [entries[1]["commit"]]
    assert entries[2]["parents"] == []
    assert entries[0]["author"] == "Ada Lovelace <ada@example.org>"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", entries[0]["date"])


def test_only_merges_or_none(shell):
    shell.ok("switch", "-c", "apart", "main~1")
    shell.ok("commit", "--allow-empty", "-m", "aside")
    shell.ok("switch", "main")
    shell.ok("merge", "apart", "-m", "both")
    assert _subjects(shell, "--merges") == ["both"]
    assert sorted(_subjects(shell, "--no-merges")) == sorted(["aside", *SUBJECTS])
    assert _subjects(shell, "--no-merges", "--grep", "aside|both") == ["aside"]


def _subjects(shell, *options):
    return [one["subject"] for one in shell.json("log", *options)]


def test_which_commits(shell):
    shell.ok("commit", "--allow-empty", "-m", "later\n\nlr was 0.1", "--metric", "loss=nan")
    assert _subjects(shell, "--grep", "^lr was") == ["later"]
    assert _subjects(shell, "--grep", "tun", "--grep", "base", "-1") == ["tuned"]
    assert _subjects(shell, "--grep", "base", "--author", "Turing") == []
    assert _subjects(shell, "--author", "^Ada .*example.org") == ["later", *SUBJECTS]
    assert _subjects(shell, "--metric", "acc") == ["grown"]
    assert _subjects(shell, "--metric", "loss>=2.25", "--reverse") == ["base model", "tuned"]
    assert _subjects(shell, "--since", "1h") == ["later", *SUBJECTS]
    assert _subjects(shell, "--since", "2000-01-01", "--until", "2 weeks ago") == []
    assert _subjects(shell, "--until", "2000-01-01 12:30") == []
    lines = shell.ok("log", "--oneline", "--graph", "--grep", "grown", "--grep", "base").lines
    assert [line[0] for line in lines] == ["*", "*"]


def test_messages_as_git_finds_them(shell):
    assert _subjects(shell, "--grep", "TUNED") == []
    assert _subjects(shell, "--grep", "TUNED", "-i") == ["tuned"]
    assert _subjects(shell, "--author", "ada lovelace", "-i", "-1") == ["grown"]
    assert _subjects(shell, "--grep", "base", "--grep", "model", "--all-match") == ["base model"]
    assert _subjects(shell, "--grep", "base", "--grep", "tuned", "--all-match") == []
    assert _subjects(shell, "--grep", "base", "--grep", "tuned", "--invert-grep") == ["grown"]
    assert shell("log", "--grep", "(", "-i").code == 2


def test_dates_as_git_writes_them(shell):
    history = Repo(shell.folder)._context.history
    tip = history.read_commit(history.resolve("main"))
    who = Identity("Ada Lovelace", "ada@example.org")
    parents = []
    stamps = [*[Stamp(who, 1_500_000_000, 0)] * 3, Stamp.now(who)]
    for subject, stamp in zip([*reversed(SUBJECTS), "later"], stamps, strict=True):
        tree = tip.tree
        parents = [history.write_commit(tree=tree, parents=parents, message=subject, author=stamp)]
    for text in (
        "1 month ago", "last month", "3.weeks.2.days ago", "yesterday", "last friday", "1 hour",
        "2020/05/01", "2020-05-01T12:00:00+02:00",
    ):  # fmt: skip
        assert _subjects(shell, "--since", text, *parents) == ["later"]
    for text in ("40 years ago", "@1"):
        assert _subjects(shell, "--since", text, *parents) == ["later", *SUBJECTS]
    assert shell("log", "--since", "the other day").code == 2


def test_order(shell):
    assert set(_subjects(shell, "--sort-by", "date")) == set(SUBJECTS)
    assert _subjects(shell, "--sort-by", "-step") == SUBJECTS
    assert _subjects(shell, "--sort", "loss") == SUBJECTS
    assert _subjects(shell, "--sort", "-loss", "-n", "1") == ["base model"]
    assert _subjects(shell, "--sort", "step", "-2") == ["base model", "tuned"]
    assert _subjects(shell, "--sort", "acc", "--all")[0] == "grown"
    assert shell("log", "--sort", "los").code == 2


def test_what_each_changed(shell):
    stat = shell.ok("log", "--stat", "-1").lines
    assert stat[-2].startswith(" model.safetensors | 2 of ")
    assert stat[-1].startswith(" 1 file changed, 2 tensors")
    assert stat[-2:] == shell.ok("show", "--stat").lines[-2:]
    patch = shell.ok("log", "-p", "--graph", "-2", "--", "model.safetensors").lines
    assert any(line.startswith("|   M embed ") for line in patch)
    entry = shell.json("log", "--stat", "-1")[0]
    assert [file["path"] for file in entry["files"]] == ["model.safetensors"]


def test_format(shell):
    ids = [entry["commit"] for entry in shell.json("log")]
    lines = shell.ok("log", "--format=%h|%s|%an|%(step)|%(metric:loss)|%(meta:by)%%").lines
    assert lines == [
        f"{ids[0][:7]}|grown|Ada Lovelace|2000|2|%",
        f"{ids[1][:7]}|tuned|Ada Lovelace|1000|2.25|hand%",
        f"{ids[2][:7]}|base model|Ada Lovelace|0|3.5|%",
    ]
    plain = "--format=format:%H %P %T %D%n%ae %at %aI"
    git_lines = git(shell.folder / ".mvc", "log", "-2", plain).split("\n")
    assert shell.ok("log", "-2", plain).lines == git_lines
    only = shell.ok("log", "--oneline", "--metric", "acc").lines
    assert only == [f"{ids[0][:7]}  step 2,000  acc 0.5  (HEAD -> main) grown"]


def test_health_along_a_run(shell):
    broken = np.full(32, np.nan, np.float32)
    write_model(shell.folder / "model.safetensors", seed=3, norm=broken)
    shell.ok("commit", "-am", "broken", "--step", "3000")
    head, broken, *rest = shell.ok("log", "--health").lines
    assert head.split() == ["commit", "step", "nan", "inf", "max", "norm", "change", "subject"]
    assert re.fullmatch(r"\w{7}  3,000   32    0  [\d.]+  [\d.]+ +[+-]?[\d.]+ %  !  broken", broken)
    assert len(rest) == 3
    assert all(" !" not in line for line in rest)
    found = shell.json("log", "--health")[0]["health"]
    assert [one["path"] for one in found] == ["model.safetensors"]
    assert found[0]["nan"] == 32
    assert found[0]["norm"] > 0
    assert any("Health:  model.safetensors holds 32 NaN" in line for line in shell.ok("log").lines)
    assert "Health: model.safetensors nan=32 " in git(shell.folder / ".mvc", "log", "-1")


def test_health_is_alone(shell):
    for option in ("--graph", "--oneline", "--stat", "--format=%h"):
        assert shell("log", "--health", option).code == 2


def test_a_metric_is_drawn(shell):
    lines = shell.ok("log", "--plot", "--metric", "loss").lines
    assert lines[0] == "loss  lowest 2 at step 2,000, highest 3.5 at step 0"
    assert len(lines) == 19
    assert max(map(len, lines)) <= 80
    assert lines[-1].split() == ["step", "0", "1,000", "2,000"]
    assert lines == shell.ok("log", "--plot").lines
    lines = shell.ok("log", "--plot", "--metric", "loss", "--metric", "acc").lines
    assert [line for line in lines if line.startswith("acc")] == [
        "acc  lowest 0.5 at step 2,000, highest 0.5 at step 2,000"
    ]


def test_each_branch_is_a_curve(shell):
    shell.ok("switch", "-c", "exp", "main~1")
    for step, loss in ((1500, "2.5"), (2500, "nan"), (3000, "4")):
        line = ["--allow-empty", "-m", "x", "--step", str(step), "--metric", f"loss={loss}"]
        shell.ok("commit", *line)
    lines = shell.ok("log", "--plot", "--all", "--metric", "loss").lines
    assert lines[1] == "a exp  b main"
    drawn = "".join(lines[2:-2])
    assert "a" in drawn
    assert "b" in drawn
    assert "!" in lines[-3]
    answer = shell.ok("-P", "log", "--plot", "--all", "--log-scale", terminal=True)
    assert "highest 4 at step 3,000" in plain(answer.lines[0])
    assert len(answer.lines) <= 24


def test_what_cannot_be_drawn(shell):
    for options in (
        ["--graph"],
        ["--oneline"],
        ["--json"],
        ["--sort", "loss"],
        ["-p"],
        ["--reverse"],
    ):
        assert shell("log", "--plot", *options).code == 2
    assert shell("log", "--log-scale").code == 2
    assert "'los'" in shell("log", "--plot", "--metric", "los").error
    shell.ok("commit", "--allow-empty", "-m", "x", "--metric", "loss=-1")
    assert "above zero" in shell("log", "--plot", "-1", "--log-scale").error
    shell.ok("commit", "--allow-empty", "-m", "x", "--metric", "loss=nan")
    assert "finite" in shell("log", "--plot", "-1").error


def test_where_to_begin_and_which_paths(shell):
    for words, subjects in [
        (("main..side",), ["another config"]),
        (("main", "^v1"), SUBJECTS[:2]),
        (("--", "model.safetensors"), SUBJECTS),
        (("config.json",), ["base model"]),
        (("--all", "--", "config.json"), ["another config", "base model"]),
    ]:
        assert _subjects(shell, *words) == subjects
    assert len(shell.json("log", "--all")) == 4
