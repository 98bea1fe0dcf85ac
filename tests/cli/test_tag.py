"""mvc tag."""

from support.stockgit import git


def test_tags(shell):
    assert shell.ok("tag").lines == ["v1"]
    assert shell.ok("tag", "v2").out == ""
    tip, base = (shell.json("log", name)[0]["commit"] for name in ("main", "v1"))
    assert shell.json("tag", "-a", "v3", "-m", "third", "v1") == {
        "created": {"name": "v3", "commit": base}
    }
    assert shell.json("tag") == [
        {"name": "v1", "commit": base, "subject": "base model", "alias": False, "message": None},
        {"name": "v2", "commit": tip, "subject": "grown", "alias": False, "message": None},
        {"name": "v3", "commit": base, "subject": "base model", "alias": False, "message": "third"},
    ]
    assert shell.ok("tag", "-l", "*2").lines == ["v2"]
    assert shell.ok("tag", "--list", "*2", "v3").lines == ["v2", "v3"]
    assert shell.ok("tag", "-l").lines == ["v1", "v2", "v3"]
    assert shell("tag", "-l", "-d", "v2").code == 2
    for name in ("HEAD", "@", "a b"):
        assert "is not a valid tag name" in shell("tag", name).error
    assert shell("tag", "v2", "v1").code == 4
    shell.ok("tag", "-f", "v2", "v1")
    assert shell.json("log", "v2")[0]["commit"] == base
    assert shell.ok("tag", "-d", "v2").lines == [f"Deleted tag 'v2' (was {base[:7]})"]
    assert shell.ok("tag", "-d", "-q", "v3").out == ""
    assert shell.json("tag", "--delete", "v1") == {"deleted": [{"name": "v1", "commit": base}]}


def test_an_annotated_tag_needs_a_message(shell):
    answer = shell("tag", "-a", "v2")
    assert answer.code == 2
    assert "-m" in answer.error


def test_the_message_of_an_annotated_tag(shell):
    shell.ok("tag", "-a", "v2", "-m", "second\n\nwith a note")
    lines = shell.ok("show", "v2").lines
    assert lines[:5] == ["tag v2", "", "second", "", "with a note"]
    assert lines[6].startswith("commit ")
    assert shell.json("show", "v2")["tag_message"] == "second\n\nwith a note"
    assert shell.ok("show", "v1").lines[0].startswith("commit ")
    assert [tag["message"] for tag in shell.json("tag")] == [None, "second\n\nwith a note"]


def test_a_tag_that_moves_is_an_alias(shell):
    ids = [entry["commit"] for entry in shell.json("log")]
    assert shell.ok("tag", "-f", "champion", "HEAD~1").out == ""
    (line,) = shell.ok("tag", "-f", "champion").lines
    moved, _, back = line.partition(" (")
    assert moved == f"Moved @champion from {ids[1][:7]} to {ids[0][:7]}"
    assert back == '"mvc tag -f champion champion@{1}" takes it back)'
    assert "(HEAD -> main, @champion)" in shell.ok("log", "--oneline", "-1").out
    assert f"main {ids[0][:7]} (@champion) grown" in shell.ok("branch", "-v").out
    for revision, commit in (
        ("@champion", ids[0]), ("@champion~1", ids[1]), ("@champion@{1}", ids[1]),
        ("champion@{1}", ids[1]), ("@v1", ids[2]), ("@2000", ids[0]), ("@champion@1000", ids[1]),
    ):  # fmt: skip
        assert shell.json("log", "-1", revision)[0]["commit"] == commit, revision
    assert len(shell.json("log", "v1..@champion")) == 2
    assert len(shell.ok("reflog", "@champion").lines) == 2
    shell.ok("tag", "-f", "champion", "champion@{1}")
    assert shell.json("show", "@champion")["commit"] == ids[1]
    assert shell.ok("tag", "-f", "champion", "@champion").lines == [
        f"@champion is at {ids[1][:7]} already"
    ]
    assert len(shell.ok("reflog", "@champion").lines) == 3
    assert shell("log", "@runner-up").code == 3
    shell.ok("switch", "-c", "@v1")  # what is named so goes before the alias
    assert shell.json("log", "-1", "@v1", "--")[0]["commit"] == ids[0]
    assert git(shell.folder / ".mvc", "rev-parse", "champion@{1}") == ids[0]


def test_an_alias_may_be_named_as_the_log_shows_it(shell):
    ids = [entry["commit"] for entry in shell.json("log")]
    shell.ok("tag", "@champion", "HEAD~1")
    assert shell("tag", "@champion").code == 4
    assert "Moved @champion from" in shell.ok("tag", "-f", "@champion").out
    assert "(HEAD -> main, @champion)" in shell.ok("log", "--oneline", "-1").out
    shell.ok("tag", "@champion", "--by", "loss", "--max")
    assert shell.json("tag") == [
        {**one, "alias": one["name"] == "champion"} for one in shell.json("tag")
    ]
    git(shell.folder / ".mvc", "tag", "@odd", ids[0])  # a name of its own
    assert shell.ok("tag", "-d", "@odd", "@champion").lines[0].startswith("Deleted tag '@odd'")
    assert shell.ok("tag").lines == ["v1"]


def test_the_best_commit_by_a_metric(shell):
    ids = {entry["subject"]: entry["commit"] for entry in shell.json("log")}
    lines = shell.ok("tag", "best", "--by", "loss").lines
    assert lines == [f"@best is {ids['grown'][:7]} (step 2,000): loss 2 is the lowest of 3 commits"]
    shell.ok("commit", "--allow-empty", "-m", "as good", "--metric", "loss=2")
    shell.ok("commit", "--allow-empty", "-m", "broken", "--metric", "loss=nan")
    shell.ok("commit", "--allow-empty", "-m", "better", "--metric", "loss=1.5")
    fields = shell.json("tag", "best", "--by", "loss", "HEAD~1")["created"]
    assert (fields["commit"], fields["before"]) == (ids["grown"], ids["grown"])  # the earliest
    assert (fields["value"], fields["compared"], fields["left_out"]) == (2, 4, 1)
    lines = shell.ok("tag", "best", "--by", "loss").lines
    assert lines[0].endswith("loss 1.5 is the lowest of 5 commits, 1 more do not count")
    assert lines[1].startswith(f"Moved @best from {ids['grown'][:7]} to ")
    fields = shell.json("tag", "worst", "--by", "loss", "--max", "--among", "v1..HEAD")["created"]
    assert fields["commit"] == ids["tuned"]
    assert shell("tag", "v1", "--by", "loss").code == 4
    assert shell("tag", "new", "--by", "los").code == 3
    assert shell("tag", "--by", "loss").code == 2
    assert shell("tag", "new", "--max").code == 2
    assert shell("tag", "new", "main", "--by", "loss", "--among", "v1..main").code == 2
    assert "new" not in shell.ok("tag").lines
