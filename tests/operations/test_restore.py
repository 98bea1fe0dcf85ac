"""restore and reset; ``test_git_oracle`` compares their effect on every state of a path."""

from __future__ import annotations

import shutil

import pytest

from mvc import ConflictError, CorruptionError, NotFoundError, Repo, UsageError
from support.models import write_model
from support.opened_repo import write


def codes(repo):
    return {file.path: file.code for file in repo.status().files}


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

    def test_the_index_not_head(self, two, root):
        write(root, "a", "staged")
        two.add("a")
        write(root, "a", "edited")
        two.restore("a")
        assert (root / "a").read_text() == "staged"

    def test_staged_leaves_the_file(self, two, root):
        write(root, "a", "staged")
        write(root, "new", "new")
        two.remove("d/b", cached=True)
        two.add(".")
        two.restore(["a", "new", "d/b"], staged=True, worktree=False)
        assert (root / "a").read_text() == "staged"
        assert codes(two) == {"a": " M", "new": "??"}

    def test_both(self, two, root):
        write(root, "a", "staged")
        two.add("a")
        two.restore("a", staged=True)
        assert (root / "a").read_text() == "two"
        assert codes(two) == {}

    def test_from_a_revision(self, two, root):
        result = two.restore("a", source="HEAD~1")
        assert (result.written, result.branch) == (("a",), "main")
        assert codes(two) == {"a": " M"}
        two.restore("a", source="HEAD~1", staged=True)
        assert codes(two) == {"a": "M "}

    def test_what_the_source_lacks_goes(self, two, root):
        result = two.restore(".", source="HEAD~1", staged=True)
        assert result.removed == ("only-second",)
        assert not (root / "only-second").exists()
        assert codes(two)["only-second"] == "D "
        two.reset(mode="hard")
        assert two.restore(".", source="HEAD~1").removed == ("only-second",)
        assert codes(two)["only-second"] == " D"

    def test_but_not_where_it_holds_what_nobody_else_has(self, two, root):
        write(root, "only-second", "precious")
        for staged in (False, True):
            with pytest.raises(ConflictError, match="'only-second' is not in the source"):
                two.restore(".", source="HEAD~1", staged=staged)
        assert (root / "a").read_text() == "two"
        two.restore("a", source="HEAD~1")
        assert (root / "only-second").read_text() == "precious"

    def test_a_tree_is_a_source(self, two, root):
        two.restore("a", source="HEAD~1^{tree}")
        assert (root / "a").read_text() == "one"

    def test_wildcards(self, two, root):
        write(root, "a", "edited")
        write(root, "only-second", "edited")
        assert two.restore("only-*").written == ("only-second",)
        assert (root / "a").read_text() == "edited"

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

    def test_untracked_files_stay(self, two, root):
        write(root, "untracked")
        write(root, "d/untracked")
        two.restore(".", source="HEAD~1", staged=True)
        assert (root / "untracked").exists()
        assert (root / "d/untracked").exists()

    def test_a_folder_in_the_way(self, two, root):
        (root / "a").unlink()
        write(root, "a/precious")
        with pytest.raises(ConflictError, match="in the way: 'a/precious'"):
            two.restore("a")
        (root / "a/precious").unlink()
        two.restore("a")
        assert (root / "a").read_text() == "two"

    def test_a_file_in_place_of_the_folder(self, two, root):
        shutil.rmtree(root / "d")
        write(root, "d", "precious")
        with pytest.raises(ConflictError, match="in the way: 'd'"):
            two.restore("d/b")
        assert (root / "d").read_text() == "precious"

    def test_mode_and_kind(self, two, root):
        (root / "a").chmod(0o755)
        two.restore("a")
        assert not (root / "a").stat().st_mode & 0o100
        (root / "a").unlink()
        (root / "a").symlink_to("d/b")
        two.restore("a")
        assert not (root / "a").is_symlink()
        assert (root / "d/b").read_text() == "one"

    def test_an_edit_while_files_are_prepared_is_not_lost(self, two, root):
        (root / "m.safetensors").unlink()
        write(root, "a", "edited")

        def meanwhile(_):
            write(root, "a", "edited just now")

        with pytest.raises(ConflictError, match="'a' changed"):
            two.restore(["a", "m.safetensors"], progress=meanwhile)
        assert (root / "a").read_text() == "edited just now"
        assert not (root / "m.safetensors").exists()


class TestReset:
    def test_soft(self, two):
        first = two.resolve("HEAD~1")
        result = two.reset("HEAD~1", mode="soft")
        assert (result.commit, two.resolve("main")) == (first, first)
        found = codes(two)
        assert found.pop("only-first") == "D "
        assert set(found.values()) == {"A ", "M "}

    def test_mixed_is_the_default(self, two, root):
        two.reset("HEAD~1")
        assert codes(two) == {
            "a": " M", "m.safetensors": " M", "only-first": " D", "only-second": "??",
        }  # fmt: skip
        assert (root / "a").read_text() == "two"

    def test_hard(self, two, root):
        write(root, "a", "edited")
        write(root, "untracked", "stays")
        write(root, "staged", "goes")
        two.add("staged")
        result = two.reset("HEAD~1", mode="hard")
        assert set(result.removed) == {"only-second", "staged"}
        assert (root / "a").read_text() == "one"
        assert codes(two) == {"untracked": "??"}

    def test_reflog(self, two):
        second = two.resolve("HEAD")
        two.reset("HEAD~1", mode="hard")
        assert two.reflog()[0].message == "reset: moving to HEAD~1"
        assert two.resolve("HEAD@{1}") == two.resolve("main@{1}") == second
        two.reset("main@{1}", mode="hard")
        assert two.head.commit == second
        assert codes(two) == {}

    def test_detached(self, two):
        two.checkout("HEAD", detach=True)
        two.reset("HEAD~1", mode="hard")
        assert two.head.branch is None
        assert two.resolve("main") != two.head.commit

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

    def test_paths_need_mixed(self, two):
        for mode in ("soft", "hard"):
            with pytest.raises(UsageError, match="takes no paths"):
                two.reset(mode=mode, paths="a")

    def test_other_modes(self, two):
        with pytest.raises(UsageError, match="keep"):
            two.reset(mode="keep")
        with pytest.raises(NotFoundError):
            two.reset("nope", mode="hard")

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
