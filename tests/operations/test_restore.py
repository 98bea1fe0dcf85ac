"""restore and reset; ``test_git_oracle`` compares their effect on every state of a path."""

import shutil

import pytest

from mvc import ConflictError, CorruptionError, NotFoundError, Repo, UsageError
from support.models import write_model
from support.opened_repo import write
from support.transitions import codes


@pytest.fixture
def two(repo, root):
    write_model(root / "m.safetensors", seed=1)
    write(root, "a", "one")
    write(root, "d/b", "one")
    write(root, "only-first", "one")
    repo.commit("first", paths=".")
    write_model(root / "m.safetensors", seed=2)
    write(root, "a", "two")
    (root / "only-first").unlink()
    write(root, "only-second", "two")
    repo.commit("second", paths=".")
    return repo


class TestRestore:
    def test_what_was_deleted_or_edited(self, two, root):
        before = (root / "m.safetensors").read_bytes()
        (root / "m.safetensors").unlink()
        shutil.rmtree(root / "d")
        write(root, "a", "edited")
        result = two.restore(["m.safetensors", "d"])
        assert result.written == ("d/b", "m.safetensors")
        assert (root / "m.safetensors").read_bytes() == before
        assert codes(two) == {"a": " M"}
        two.restore(".")
        assert codes(two) == {}

    def test_what_is_as_it_should_be_is_not_written(self, two, root):
        inode = (root / "m.safetensors").stat().st_ino
        assert two.restore(".").written == ()
        assert (root / "m.safetensors").stat().st_ino == inode

    def test_what_the_source_lacks_goes(self, two, root):
        result = two.restore(".", source="HEAD~1", staged=True)
        assert (result.removed, result.branch) == (("only-second",), "main")
        assert not (root / "only-second").exists()
        assert codes(two)["only-second"] == "D "

    def test_nothing_of_that_name(self, two, root):
        write(root, "untracked")
        for path in ("nope", "untracked", "only-first", "*.nope"):
            with pytest.raises(NotFoundError):
                two.restore(path)
        with pytest.raises(NotFoundError, match="no-such"):
            two.restore("a", source="no-such")
        with pytest.raises(UsageError, match="no path"):
            two.restore([])
        with pytest.raises(UsageError, match="neither"):
            two.restore("a", worktree=False)

    def test_a_file_in_place_of_the_folder(self, two, root):
        shutil.rmtree(root / "d")
        write(root, "d", "precious")
        with pytest.raises(ConflictError, match="in the way: 'd'"):
            two.restore("d/b")
        assert (root / "d").read_text() == "precious"


class TestReset:
    def test_hard(self, two, root):
        write(root, "a", "edited")
        write(root, "untracked", "stays")
        write(root, "staged", "goes")
        two.add("staged")
        result = two.reset("HEAD~1", mode="hard")
        assert set(result.removed) == {"only-second", "staged"}
        assert (root / "a").read_text() == "one"
        assert codes(two) == {"untracked": "??"}

    def test_paths(self, two, root):
        write(root, "a", "staged")
        write(root, "new", "new")
        two.add(".")
        two.reset(paths=["a", "new"])
        assert codes(two) == {"a": " M", "new": "??"}
        two.reset("HEAD~1", paths="only-*")
        assert codes(two)["only-first"] == "AD"
        with pytest.raises(NotFoundError):
            two.reset(paths="nope")

    def test_before_the_first_commit(self, repo, root):
        write(root, "a")
        write(root, "b")
        repo.add(".")
        repo.reset(paths="a")
        assert codes(repo) == {"a": "??", "b": "A "}
        with pytest.raises(NotFoundError):
            repo.reset(paths="nope")
        repo.reset()
        assert codes(repo) == {"a": "??", "b": "??"}
        assert repo.reset(mode="soft").commit is None
        repo.add("a")
        repo.reset(mode="hard")
        assert codes(repo) == {"b": "??"}
        with pytest.raises(NotFoundError):
            repo.reset("HEAD~1")

    @pytest.mark.parametrize("mode", ["mixed", "hard"])
    @pytest.mark.parametrize("damage", [b"", b"DIRC garbage", b"\0" * 100])
    def test_a_damaged_index_is_made_again(self, two, root, mode, damage):
        write(root, "a", "edited")
        (root / ".mvc/index").write_bytes(damage)
        with pytest.raises(CorruptionError) as caught:
            two.status()
        assert '"mvc reset"' in caught.value.hint
        with pytest.raises(CorruptionError):
            two.reset(mode="soft")
        two.reset(mode=mode)
        assert codes(two) == ({"a": " M"} if mode == "mixed" else {})
        assert Repo.open(root).upkeep.fsck().ok

    def test_what_cannot_be_asked(self, two):
        for options, error in (
            ({"mode": "soft", "paths": "a"}, UsageError),
            ({"mode": "hard", "paths": "a"}, UsageError),
            ({"mode": "keep"}, UsageError),
            ({"revision": "nope", "mode": "hard"}, NotFoundError),
        ):
            with pytest.raises(error):
                two.reset(**options)
