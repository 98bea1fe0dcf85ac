"""What ``test_git_oracle`` does not cover: names, kinds of files, folders in the way, states."""

import os
import shutil
import stat

import numpy as np
import pytest
from safetensors.numpy import load_file

from mvc import ConflictError, CorruptionError, NotFoundError, Repo, UsageError
from mvc.progress import reporting
from support.models import digests, write_model
from support.opened_repo import write
from support.transitions import codes


def commit_all(repo, message, **options):
    return repo.commit(message, paths=".", **options).commit


@pytest.fixture
def two(repo, root):
    """Two commits, tagged v1 and v2; branch main on the second, old on the first."""
    write_model(root / "m.safetensors", seed=1)
    write(root, "config.json", "one")
    write(root, "only/in/first")
    commit_all(repo, "first", step=1)
    repo.tags.create("v1")
    repo.branches.create("old")
    write_model(root / "m.safetensors", seed=2)
    write(root, "config.json", "two")
    shutil.rmtree(root / "only")
    write(root, "second/only")
    commit_all(repo, "second", step=2)
    repo.tags.create("v2", message="annotated")
    return repo


class TestNames:
    def test_branch(self, two):
        result = two.checkout("old")
        assert (result.branch, result.commit) == ("old", two.resolve("v1"))
        assert two.head.branch == "old"
        assert sorted(result.written) == ["config.json", "m.safetensors", "only/in/first"]
        assert result.removed == ("second/only",)

    @pytest.mark.parametrize(
        "revision",
        ["v1", "main~1", "main@1", "refs/tags/v1", "refs/heads/old", "v2^{commit}~1", "@~1"],
    )
    def test_anything_else_detaches(self, two, revision):
        result = two.checkout(revision)
        assert (result.branch, result.commit) == (None, two.resolve("old"))
        assert two.checkout("v2").commit == two.resolve("main")

    def test_a_name_that_is_branch_and_tag_is_the_branch(self, two):
        two.tags.create("old", "v2")
        two.tags.create("main", "v1")
        result = two.checkout("old")
        assert (result.branch, result.commit) == ("old", two.resolve("v1"))
        result = two.switch("main")
        assert (result.branch, result.commit) == ("main", two.resolve("v2"))
        assert two.status().is_clean
        assert two.checkout("old", detach=True).commit == two.resolve("refs/heads/old")

    def test_what_is_no_commit(self, two, root):
        tree, blob = two.show().info.tree, two.ls()[0].blob
        for revision in (tree, blob, "HEAD^{tree}"):
            for call in (two.checkout, lambda name: two.reset(name, mode="hard")):
                with pytest.raises(NotFoundError, match="not a commit"):
                    call(revision)
        assert not (root / ".mvc/transition.json").exists()
        assert two.status().is_clean

    def test_switch_takes_branches_only(self, two):
        for name in ("v1", "HEAD", "HEAD~1", two.resolve("v1"), "refs/heads/old", "nope"):
            with pytest.raises(NotFoundError, match="no branch"):
                two.switch(name)
        assert two.switch("old").branch == "old"
        assert two.switch("old").written == ()

    def test_new_branch(self, two):
        result = two.switch("topic/a", create=True, start="v1")
        assert (result.branch, result.commit) == ("topic/a", two.resolve("v1"))
        with pytest.raises(ConflictError, match="already exists"):
            two.switch("old", create=True)
        with pytest.raises(NotFoundError):
            two.switch("x", create=True, start="nope")
        with pytest.raises(UsageError, match="is not a valid branch name"):
            two.switch("a b", create=True)
        with pytest.raises(UsageError, match="only a new branch"):
            two.switch("old", start="v1")

    def test_a_new_branch_that_cannot_be_reached_is_not_made(self, two, root):
        write(root, "config.json", "edited")
        with pytest.raises(ConflictError):
            two.switch("x", create=True, start="v1")
        assert [branch.name for branch in two.branches.list()] == ["main", "old"]

    def test_before_the_first_commit(self, repo, root):
        write(root, "a")
        repo.add("a")
        assert repo.checkout("main").commit is None
        with pytest.raises(NotFoundError):
            repo.checkout("HEAD", detach=True)
        assert repo.switch("other", create=True).branch == "other"
        assert codes(repo) == {"a": "A "}
        repo.commit("first")
        assert [branch.name for branch in repo.branches.list()] == ["other"]

    def test_away_from_a_branch_without_a_commit(self, two, root):
        history = two._context.history
        history.set_head_branch("empty", stamp=two._context.stamp())
        two.remove(".", recursive=True, force=True)
        write(root, "staged", "mine")
        two.add("staged")
        result = two.checkout("main")
        assert result.branch == "main"
        assert codes(two) == {"staged": "A "}


class TestLocalChanges:
    def test_an_edited_file_stops_it_and_nothing_is_touched(self, two, root):
        write(root, "config.json", "edited")
        before = digests(root)
        with pytest.raises(
            ConflictError, match=r"(?m)would be overwritten: 'config.json'$"
        ) as caught:
            two.checkout("old")
        assert "`force`" in caught.value.hint
        assert digests(root) == before
        assert two.head.branch == "main"
        two.checkout("old", force=True)
        assert two.status().is_clean

    def test_an_untracked_file_in_the_way(self, two, root):
        """Also one that is ignored; with the same bytes nothing can be lost."""
        write(root, ".mvcignore", "only/\n")
        write(root, "only/in/first", "the user's")
        with pytest.raises(ConflictError, match="only/in/first"):
            two.checkout("old")
        assert (root / "only/in/first").read_text() == "the user's"
        write(root, "only/in/first", "x")
        two.checkout("old")
        assert [path for path, code in codes(two).items() if code != "??"] == []

    def test_an_identical_checkpoint_in_the_way_is_not_written_again(self, two, root):
        first = root / "first.safetensors"
        write_model(first, seed=1)
        two.remove("m.safetensors")
        two.commit("without")
        shutil.copy(first, root / "m.safetensors")
        inode = (root / "m.safetensors").stat().st_ino
        assert "m.safetensors" not in two.checkout("old").written
        assert (root / "m.safetensors").stat().st_ino == inode
        assert codes(two) == {"first.safetensors": "??"}

    def test_unchanged_files_are_left_alone(self, two, root):
        write(root, "config.json", "three")
        commit_all(two, "third")
        before = (root / "m.safetensors").stat()
        assert two.checkout("HEAD~1").written == ("config.json",)
        after = (root / "m.safetensors").stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def _make(root, kind):
    path = root / "p"
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "folder":
        write(root, "p/x", "in a folder")
        write(root, "p/deep/y", "deep")
    elif kind == "link":
        path.symlink_to("anchor")
    elif kind == "model":
        write_model(path)
    elif kind in ("file", "program"):
        path.write_text("a file")
        path.chmod(0o755 if kind == "program" else 0o644)


def _look(root):
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if ".mvc" in path.parts or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


KINDS = ["nothing", "file", "program", "link", "folder", "model"]


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
def test_any_kind_becomes_any_other(repo, root, before, after):
    write(root, "anchor")
    seen = []
    for kind in (before, after):
        _make(root, kind)
        repo.commit(kind, paths=".", allow_empty=True)
        seen.append(_look(root))
    for number in (0, 1):
        repo.checkout(f"main~{1 - number}", detach=True)
        assert _look(root) == seen[number]
        assert codes(repo) == {}
    repo.reset("main~1", mode="hard")
    assert _look(root) == seen[0]
    assert codes(repo) == {}


class TestInTheWay:
    @pytest.fixture
    def file_or_folder(self, repo, root):
        """``p`` is a file in v1 and gone in main, which has ``q/x``."""
        write(root, "p", "file")
        commit_all(repo, "one")
        repo.tags.create("v1")
        (root / "p").unlink()
        write(root, "q/x", "deep")
        commit_all(repo, "two")
        return repo

    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("inside", ["untracked", ".hidden/x", "inner/.git/config", "pipe"])
    def test_a_folder_with_something_in_it(self, file_or_folder, root, inside, force):
        if inside == "pipe":
            (root / "p").mkdir()
            os.mkfifo(root / "p/pipe")
        else:
            write(root, f"p/{inside}", "precious")
        with pytest.raises(ConflictError, match=rf"in the way: 'p/{inside}'") as caught:
            file_or_folder.checkout("v1", force=force)
        assert "`force`" not in caught.value.hint
        assert (root / "p" / inside).exists()
        assert file_or_folder.head.branch == "main"

    @pytest.mark.parametrize("force", [False, True])
    def test_a_file_where_a_folder_must_be(self, file_or_folder, root, force):
        file_or_folder.checkout("v1")
        write(root, "q", "precious")
        with pytest.raises(ConflictError, match="in the way: 'q'"):
            file_or_folder.checkout("main", force=force)
        assert (root / "q").read_text() == "precious"
        with pytest.raises(ConflictError, match="in the way: 'q'"):
            file_or_folder.checkout("main", paths="q/x")
        assert (root / "q").read_text() == "precious"

    def test_a_staged_name_that_must_become_a_folder(self, file_or_folder, root):
        file_or_folder.checkout("v1")
        write(root, "q", "precious")
        file_or_folder.add("q")
        (root / "q").unlink()  # only the index has it now
        with pytest.raises(ConflictError, match="'q'"):
            file_or_folder.checkout("main")
        assert codes(file_or_folder) == {"q": "AD"}
        file_or_folder.restore("q")
        assert (root / "q").read_text() == "precious"

    def test_a_staged_folder_that_must_become_a_file(self, file_or_folder, root):
        write(root, "p/staged", "precious")
        file_or_folder.add("p/staged")
        with pytest.raises(ConflictError, match="'p/staged'"):
            file_or_folder.checkout("v1")
        shutil.rmtree(root / "p")
        with pytest.raises(ConflictError, match="'p/staged'"):
            file_or_folder.checkout("v1")
        file_or_folder.checkout("v1", force=True)
        assert (root / "p").read_text() == "file"
        assert codes(file_or_folder) == {}


class TestOfPaths:
    def test_what_the_revision_lacks(self, two):
        with pytest.raises(NotFoundError, match="second/only"):
            two.checkout("v1", paths="second/only")


class TestStates:
    """Files of a state that was committed from memory sleep until somebody wants them."""

    @pytest.fixture
    def run(self, repo, root):
        write(root, "train.py", "code")
        commit_all(repo, "code")
        for step in (1, 2):
            state = {"model": {"w": np.full(10, step, np.float32)}, "step": step}
            repo.commit_state(state, message=f"step {step}", step=step)
        return repo

    def files(self, root):
        return sorted(path.name for path in root.iterdir() if path.name != ".mvc")

    def test_no_file_and_a_clean_status(self, run, root):
        run.switch("y", create=True)
        assert self.files(root) == ["train.py"]
        assert codes(run) == {}
        run.restore("model.safetensors")
        assert self.files(root) == ["model.safetensors", "train.py"]
        run.checkout("HEAD~2")
        assert self.files(root) == ["train.py"]
        assert codes(run) == {}

    def test_a_checkout_makes_them(self, run, root):
        for target, step in (("main", 2), ("main@1", 1), ("HEAD", 1), ("main", 2)):
            run.checkout(target)
            assert self.files(root) == ["model.safetensors", "state.json", "train.py"]
            assert load_file(root / "model.safetensors")["w"][0] == step
            assert codes(run) == {}

    def test_resets_do_not_either(self, run, root):
        for mode in ("soft", "mixed", "hard"):
            run.reset("main", mode=mode)
            run.reset("HEAD@{1}", mode=mode)
        run.reset("main@1", mode="hard")
        assert self.files(root) == ["train.py"]
        assert codes(run) == {}
        assert run.load_state(framework="numpy")["step"] == 1

    def test_the_users_own_file_of_that_name_is_not_lost(self, run, root):
        write(root, "model.safetensors", "mine")
        assert codes(run) == {"model.safetensors": " M"}
        with pytest.raises(ConflictError, match=r"model\.safetensors"):
            run.checkout("main@1")
        assert (root / "model.safetensors").read_text() == "mine"
        run.checkout("main")
        assert (root / "model.safetensors").read_text() == "mine"

    def test_a_staged_state_that_was_never_made_comes_to_life(self, run, root):
        run.reset("main@1", mode="soft")  # the index still has step 2
        run.checkout("main")
        assert load_file(root / "model.safetensors")["w"][0] == 2
        assert codes(run) == {"model.safetensors": "M ", "state.json": "M "}


def test_force_leads_away_from_a_damaged_commit(two, root):
    tree = two.show().info.tree
    path = root / ".mvc/objects" / tree[:2] / tree[2:]
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    opened = Repo.open(root)
    with pytest.raises(CorruptionError):
        opened.checkout("old")
    opened.checkout("old", force=True)
    assert codes(opened) == {}
    opened.switch("saved", create=True, start="v1", force=True)
    assert opened.head.branch == "saved"


def test_progress_is_the_bytes_written(two, root, bar):
    with reporting(bar):
        result = two.checkout("old")
    size_bytes = sum((root / path).stat().st_size for path in result.written)
    assert bar.expected == bar.done == size_bytes


def test_many_files_are_synced_once_all_are_written(repo, root, monkeypatch):
    folders, files = 7, 200
    write(root, "one", "1")
    repo.add(".")
    base = repo.commit("base").commit
    for number in range(files):
        write(root, f"d{number % folders}/f{number}", str(number))
    repo.commit("many", paths=".")
    synced, real = [], os.fsync

    def fsync(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(len(list((root / ".mvc" / "tmp").rglob("*.mvc-tmp"))) if not is_folder else 0)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    repo.checkout(base)
    assert len(synced) < folders + 30  # of the folders, not for each file that goes
    synced.clear()
    repo.checkout("main")
    assert next(filter(None, synced)) == files  # so that the file system can do many at once
    synced.clear()
    repo.remove(".", recursive=True)
    assert len(synced) < folders + 30
    assert [path.name for path in root.iterdir()] == [".mvc"]


def test_the_reflog_is_as_git_writes_it(two):
    first = two.resolve("v1")
    for revision in ("v1", "old", "main", "HEAD~1"):
        two.checkout(revision)
    two.switch("fresh", create=True)
    two.switch("later", create=True, start="main")
    assert [entry.message for entry in two.reflog()[:6]] == [
        f"checkout: moving from {way}"
        for way in (
            "fresh to later", f"{first} to fresh", "main to HEAD~1", "old to main",
            f"{first} to old", "main to v1",
        )
    ]  # fmt: skip
    assert two.resolve("@{-1}") == two.resolve("fresh")
    assert two.reflog("fresh")[0].message == "branch: Created from HEAD"
    assert two.reflog("later")[0].message == "branch: Created from main"
