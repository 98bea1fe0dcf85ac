"""log, show, reflog."""

from __future__ import annotations

import re

from support.cli import plain

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


def test_oneline_has_step_and_metrics_in_columns(shell):
    ids = [entry["commit"][:7] for entry in shell.json("log")]
    assert shell.ok("log", "--oneline").lines == [
        f"{ids[0]}  step 2,000  loss    2  acc 0.5  (HEAD -> main) grown",
        f"{ids[1]}  step 1,000  loss 2.25  tuned",
        f"{ids[2]}  step     0  loss  3.5  (tag: v1) base model",
    ]


def test_names_of_refs_can_be_left_out(shell):
    assert "main" not in shell.ok("log", "--oneline", "--no-decorate").out
    assert "main" in shell.ok("log", "--oneline", "--decorate").out


def test_oneline_without_facts_is_gits(shell):
    shell.ok("commit", "-q", "--allow-empty", "-m", "plain")
    (line,) = shell.ok("log", "--oneline", "-1").lines
    assert re.fullmatch(r"[0-9a-f]{7} \(HEAD -> main\) plain", line)


def test_metrics_that_do_not_fit_a_terminal_are_left_out(shell):
    shell.environment["COLUMNS"] = "60"
    first = plain(shell.ok("log", "--oneline", terminal=True).out).splitlines()[0]
    assert "step 2,000" in first
    assert "acc" not in first
    assert "acc" in shell.ok("log", "--oneline").out


def test_long_subjects_are_cut_on_a_terminal_only(shell):
    subject = "many words " * 20
    shell.ok("commit", "-q", "--allow-empty", "-m", subject)
    for form in (["--oneline"], ["--oneline", "--graph", "--all"]):
        first = plain(shell.ok("log", *form, terminal=True).out).splitlines()[0]
        assert len(first) == 80
        assert first.endswith("…")
        assert subject.strip() in shell.ok("log", *form).out


def test_limits(shell):
    assert [one["subject"] for one in shell.json("log", "-n", "1")] == SUBJECTS[:1]
    assert [one["subject"] for one in shell.json("log", "--max-count=2")] == SUBJECTS[:2]
    assert [one["subject"] for one in shell.json("log", "-2")] == SUBJECTS[:2]
    assert shell.json("log", "-0") == []


def test_where_to_begin_and_what_to_leave_out(shell):
    assert [one["subject"] for one in shell.json("log", "side")] == ["another config", "base model"]
    assert [one["subject"] for one in shell.json("log", "main..side")] == ["another config"]
    assert [one["subject"] for one in shell.json("log", "v1..")] == SUBJECTS[:2]
    assert [one["subject"] for one in shell.json("log", "main", "^v1")] == SUBJECTS[:2]
    both = {one["subject"] for one in shell.json("log", "main...side")}
    assert both == {"grown", "tuned", "another config"}
    assert len(shell.json("log", "--all")) == 4


def test_paths(shell):
    assert [one["subject"] for one in shell.json("log", "--", "model.safetensors")] == SUBJECTS
    assert [one["subject"] for one in shell.json("log", "config.json")] == ["base model"]
    assert [one["subject"] for one in shell.json("log", "-1", "--", "config.json")] == [
        "base model"
    ]
    found = shell.json("log", "--all", "--", "config.json")
    assert [one["subject"] for one in found] == ["another config", "base model"]


def test_graph(shell):
    ids = {entry["subject"]: entry["commit"][:7] for entry in shell.json("log", "--all")}
    lines = shell.ok("log", "--graph", "--oneline", "--all").lines
    drawing = [line.split(ids_part)[0] + name for line in lines for name, ids_part in ids.items()
               if ids_part in line]  # fmt: skip
    assert sorted(drawing, key=drawing.index) == drawing
    assert [line for line in lines if not any(one in line for one in ids.values())] == ["|/"]
    assert any(line.startswith(("| * ", "* | ")) for line in lines)


def test_graph_of_some_paths_closes_the_gaps(shell):
    lines = shell.ok("log", "--graph", "--oneline", "--all", "--", "config.json").lines
    assert [line[:2] for line in lines] == ["* ", "* "]
    lines = shell.ok("log", "--graph", "--oneline", "v1..").lines
    assert [line[:2] for line in lines] == ["* ", "* "]


def test_graph_of_the_default_form(shell):
    lines = shell.ok("log", "--graph", "-2").lines
    assert lines[0].startswith("* commit ")
    assert lines[1].startswith("| Author:")
    assert "|     grown" in lines


def test_first_parent(shell):
    assert [one["subject"] for one in shell.json("log", "--first-parent")] == SUBJECTS


def test_colours_on_a_terminal_only(shell):
    shown = shell.ok("log", terminal=True).out
    assert shown.startswith("\x1b[33mcommit ")
    assert plain(shown) == shell.ok("log").out
    shell.environment["NO_COLOR"] = "1"
    assert "\x1b" not in shell.ok("log", terminal=True).out
    del shell.environment["NO_COLOR"]
    shell.environment["FORCE_COLOR"] = "1"
    assert "\x1b[33m" in shell.ok("log").out


def test_other_trailers_and_body_are_shown_and_made_harmless(shell):
    shell.ok(
        "commit", "-q", "--allow-empty", "-m", "evil \x1b[2J", "-m", "body",
        "-m", "Signed-off-by: Ada <a@b>",
    )  # fmt: skip
    lines = shell.ok("log", "-1").lines
    assert "    evil \\x1b[2J" in lines
    assert lines[-3:] == ["    body", "", "    Signed-off-by: Ada <a@b>"]


def test_show(shell):
    lines = shell.ok("show").lines
    assert "    grown" in lines
    title = "modified: model.safetensors  safetensors, 2 of 9 tensors differ, "
    (number,) = [number for number, line in enumerate(lines) if line.startswith(title)]
    assert lines[number + 1].split() == [
        "M", "embed", "F32[64,", "32]", "->", "F32[80,", "32]", "1/1", "chunk", "10", "KiB",
    ]  # fmt: skip
    assert lines[number + 2].split() == ["A", "head", "F16[4,", "32]", "256", "B"]


def test_show_the_first_commit(shell):
    lines = shell.ok("show", "v1").lines
    assert lines[-3].startswith("new file: config.json  ")
    assert lines[-1].startswith("new file: model.safetensors  safetensors, 8 tensors, ")
    assert "  A embed" in plain(shell.ok("show", "v1", "--all").out)


def test_show_forms(shell):
    assert shell.ok("show", "--name-only", "side").lines[-1] == "config.json"
    assert shell.ok("show", "--name-status", "side").lines[-1] == "M\tconfig.json"
    assert shell.ok("show", "--stat").lines[-1].startswith(" 1 file changed, 2 tensors (")
    assert "head" not in shell.ok("show", "--tensors", "emb*").out


def test_show_json(shell):
    fields = shell.json("show")
    assert fields["subject"] == "grown"
    assert fields["step"] == 2000
    (file,) = fields["files"]
    assert [tensor["name"] for tensor in file["tensors"]] == ["embed", "head"]


def test_show_a_file(shell):
    answer = shell.ok("show", "side:config.json")
    assert b'"kind": "side"' in answer.raw
    fields = shell.json("show", "side:config.json")
    assert fields["content"] == answer.out
    assert fields["path"] == "config.json"
    listing = shell.ok("show", "v1:model.safetensors").lines
    assert listing[0].startswith("model.safetensors  safetensors, 8 tensors, ")
    assert len(listing) == 9
    fields = shell.json("show", "v1:model.safetensors")
    assert fields["content"] is None
    assert len(fields["tensors"]) == 8


def test_a_path_behind_a_revision_starts_at_the_top(shell):
    (shell.folder / "below").mkdir()
    assert shell.ok("show", "HEAD:config.json", folder="below").raw
    assert shell.ok("show", "HEAD:../config.json", folder="below").raw
    assert shell("show", "HEAD:./config.json", folder="below").code == 3


def test_reflog(shell):
    entries = shell.json("reflog")
    assert [entry["ref"] for entry in entries[:2]] == ["HEAD@{0}", "HEAD@{1}"]
    assert entries[0]["message"] == "commit: grown"
    assert entries[0]["new"] == shell.json("log")[0]["commit"]
    assert entries[0]["who"] == "Ada Lovelace <ada@example.org>"
    first = shell.ok("reflog", "-n", "1").lines
    assert first == [f"{entries[0]['new'][:7]} HEAD@{{0}}: commit: grown"]
    assert shell.json("reflog", "side")[0]["message"] == "commit: another config"
    assert shell.json("log", "HEAD@{1}", "-1")[0]["subject"] == "tuned"
