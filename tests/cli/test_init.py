"""mvc init."""

from support.stockgit import git


def test_init(bare):
    answer = bare.ok("init")
    assert answer.lines == [f"Initialized empty mvc repository in {bare.folder.resolve()}/.mvc/"]
    assert bare.ok("init").out.startswith("Reinitialized existing mvc repository in ")
    assert bare.json("init")["created"] is False


def test_init_somewhere_with_a_branch(bare):
    fields = bare.json("init", "new/place", "-b", "trunk")
    assert fields == {
        "git_dir": str(bare.folder.resolve() / "new" / "place" / ".mvc"),
        "branch": "trunk",
        "created": True,
    }
    assert bare.ok("init", "-q", "other").out == ""
    assert bare.ok("status", folder="new/place").lines[0] == "On branch trunk"
    assert bare.ok("-C", "new/place", "branch", "--show-current").lines == ["trunk"]


def test_a_repository_hides_from_git(bare):
    """Older ones too, once something is written; a user's own rules stay."""
    outer = bare.folder / ".git"
    git(outer, "init", "-q")
    bare.ok("init")
    (bare.folder / "notes").write_text("plain")
    bare.ok("add", "notes")
    assert git(outer, "status", "--porcelain") == "?? notes"
    git(outer, "clean", "-fdxq", "-e", ".mvc")
    (bare.folder / "notes").write_text("plain")
    git(outer, "add", "notes")
    ignore = bare.folder / ".mvc" / ".gitignore"
    ignore.unlink()
    bare.ok("fsck")
    assert not ignore.exists()
    bare.ok("commit", "-m", "first")
    assert git(outer, "status", "--porcelain") == "A  notes"
    ignore.write_text("")
    bare.ok("tag", "v1")
    assert ignore.read_text() == ""


def test_a_store_has_the_content(bare, tmp_path):
    store = tmp_path / "store"
    told = bare.ok("init", "--store", str(store)).lines
    assert told[1] == f"Content goes to {store}."
    (bare.folder / "notes.txt").write_text("x")
    bare.ok("add", "notes.txt")
    assert bare.json("commit", "-m", "one")["unsent"] is None
    store.rename(tmp_path / "away")
    store.write_text("no folder")
    answer = bare.ok("commit", "--allow-empty", "-m", "two")
    assert "warning: the commit is here, but not on the store: " in answer.err
    store.unlink()
    (tmp_path / "away").rename(store)
    assert "Everything" not in bare.ok("push").out
    assert "branch main" in bare.ok("clone", "--store", str(store), "copy").out
    assert bare.ok("config", "mvc.store", folder="copy").lines == ["origin"]
