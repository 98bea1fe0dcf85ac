import pytest

from mvc import NotFoundError, Repo
from mvc.history.notes import write_notes
from mvc.history.values import Stamp
from mvc.workspace.context import ManifestReader
from support.stockgit import git, run_git


def subjects(entries):
    return [entry.info.subject for entry in entries]


@pytest.fixture
def forked(repo):
    """main: base, m1, m2; side (from base): s1, s2; merge joins m1 and s1."""
    time_s = iter(range(1_700_000_000, 1_800_000_000, 60))

    def commit(text, **options):
        return repo.commit(text, allow_empty=True, time_s=next(time_s), **options).commit

    commit("base", step=1)
    repo.tags.create("v1", message="the first")
    repo.branches.create("side")
    m1 = commit("m1", step=2, metrics={"loss": 0.5})
    repo.switch("side")
    s1 = commit("s1")
    commit("s2")
    repo.switch("main")
    commit("m2", step=3)
    history, who = repo._context.history, repo.identity
    merge = history.write_commit(
        tree=repo.show().info.tree, parents=[m1, s1], message="merge",
        author=Stamp(who, next(time_s), 0),
    )  # fmt: skip
    history.update_ref("refs/heads/joined", merge, expected=None, message="x", stamp=Stamp.now(who))
    return repo


@pytest.mark.parametrize(
    "revisions",
    [
        [], ["HEAD"], ["side"], ["main", "side"], ["side..main"], ["main..side"], ["main...side"],
        ["side.."], ["..side"], ["v1..joined"], ["^v1", "joined"], ["joined", "^side", "^main"],
        ["joined...side"], ["main..main"], ["joined"], ["v1"], ["main~1"], ["joined^2"],
    ],
)  # fmt: skip
def test_the_same_commits_in_the_same_order_as_git(forked, root, revisions):
    expected = git(root / ".mvc", "log", "--date-order", "--format=%s", *revisions, "--")
    assert subjects(forked.log(*revisions)) == expected.splitlines()


@pytest.mark.parametrize("options", [["--all"], ["--first-parent"], ["-n", "2"], ["-n", "0"]])
def test_options(forked, root, options):
    expected = git(root / ".mvc", "log", "--date-order", "--format=%s", *options, "joined", "--")
    found = forked.log(
        "joined",
        everything="--all" in options,
        first_parent="--first-parent" in options,
        limit=int(options[1]) if "-n" in options else None,
    )
    assert subjects(found) == expected.splitlines()


def test_annotations_and_refs(forked):
    entries = {entry.info.subject: entry for entry in forked.log(everything=True)}
    assert entries["m1"].annotations.step == 2
    assert entries["m1"].annotations.metrics == {"loss": 0.5}
    assert entries["s1"].annotations.step is None
    assert entries["m2"].refs == ("HEAD -> main",)
    assert entries["s2"].refs == ("side",)
    assert entries["base"].refs == ("tag: v1",)
    forked.checkout("v1")
    entries = {entry.info.subject: entry for entry in forked.log(everything=True)}
    assert entries["base"].refs == ("HEAD", "tag: v1")
    assert entries["m2"].refs == ("main",)


def test_a_revision_that_does_not_exist(forked):
    for revision in ("nope", "nope..main", "main..nope", "nope...main", "^nope", "main@99"):
        with pytest.raises(NotFoundError, match=r"nope|99"):
            next(forked.log(revision))


def test_before_the_first_commit(repo):
    assert list(repo.log()) == list(repo.log(everything=True)) == []
    with pytest.raises(NotFoundError, match="no commit yet"):
        repo.show()


def test_a_stock_git_tagged_something_else(forked, root):
    run_git(root / ".mvc", "tag", "tree", "main^{tree}")
    run_git(root / ".mvc", "tag", "-a", "-m", "x", "note", "main^{tree}")
    assert len(list(forked.log(everything=True))) == 6
    assert {tag.name: tag.subject for tag in forked.tags.list()} == {
        "note": "", "tree": "", "v1": "base",
    }  # fmt: skip
    with pytest.raises(NotFoundError, match="not a commit"):
        forked.show("tree")


class TestReflog:
    def test_what_has_none(self, forked):
        with pytest.raises(NotFoundError, match="nope"):
            forked.reflog("nope")
        assert forked.reflog("v1") == []


def test_merge_base(forked):
    assert forked.merge_base("main", "side") == forked.resolve("v1")
    assert forked.merge_base("joined", "side") == forked.resolve("side~1")
    assert forked.merge_base("main", "main") == forked.resolve("main")
    with pytest.raises(NotFoundError):
        forked.merge_base("main", "nope")


@pytest.mark.slow
def test_five_thousand_commits_and_no_manifest(repo, root, monkeypatch):
    who, lines = repo.identity, []
    for number in range(5_000):
        lines += [
            "commit refs/heads/main",
            f"committer {who.name} <{who.email}> {1_700_000_000 + number} +0000",
            "data <<END",
            f"commit {number}\n\nStep: {number}\nEND",
        ]
    run_git(root / ".mvc", "fast-import", "--quiet", data="\n".join(lines).encode() + b"\n")
    opened = Repo.open(root)
    loads = []
    monkeypatch.setattr(ManifestReader, "read", lambda *arguments: loads.append(arguments))
    entries = list(opened.log())
    assert len(entries) == 5_000
    assert [entry.annotations.step for entry in entries] == list(range(4_999, -1, -1))
    assert opened.show("main@17").info.subject == "commit 17"
    assert loads == []
    assert "store" not in vars(opened._context)


def test_notes_are_not_shown(forked, root):
    history = forked._context.history
    head = forked.head.commit
    before = [(entry.info.id, entry.refs) for entry in forked.log(everything=True)]
    write_notes(
        history,
        "refs/notes/released",
        {head: b"x"},
        message="notes",
        stamp=Stamp.now(forked.identity),
    )
    assert [(entry.info.id, entry.refs) for entry in forked.log(everything=True)] == before
    assert "    x" in git(root / ".mvc", "log", "-1", "--notes=released").splitlines()
    forked.reset("HEAD~1")  # the reflogs, which --all does not read, know both
    assert forked.show("refs/notes/released").info.subject == "notes"
