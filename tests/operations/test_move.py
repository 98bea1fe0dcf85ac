import numpy as np
import pytest

from mvc import ConflictError, NotFoundError, Repo, UsageError
from support.models import write_model


def write(root, *paths, text=None):
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path if text is None else text)


def tracked(repo):
    return list(repo._context.history.read_index().entries)


def files(root):
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and ".mvc" not in path.parts
    )


@pytest.fixture
def full(repo, root):
    write(root, "a", "b", "d/x", "d/e/y")
    repo.add(".")
    repo.commit("all")
    return repo


def test_renames_a_file(full, root):
    assert full.move("a", "c") == (("a", "c"),)
    assert tracked(full) == files(root) == ["b", "c", "d/e/y", "d/x"]
    (change,) = full.status().files
    assert (change.code, change.path, change.old_path) == ("R ", "c", "a")


def test_into_a_folder(full, root):
    assert full.move(["a", "b"], "d") == (("a", "d/a"), ("b", "d/b"))
    assert tracked(full) == files(root) == ["d/a", "d/b", "d/e/y", "d/x"]
    full.move("d/a", ".")
    assert "a" in files(root)


def test_a_folder_with_what_is_not_tracked_in_it(full, root):
    write(root, "d/untracked")
    assert full.move("d", "new") == (("d/e/y", "new/e/y"), ("d/x", "new/x"))
    assert tracked(full) == ["a", "b", "new/e/y", "new/x"]
    assert files(root) == ["a", "b", "new/e/y", "new/untracked", "new/x"]


def test_a_clean_file_is_not_read_again(repo, root):
    write_model(root / "m.safetensors")
    repo.add(".")
    repo.commit("m")
    repo.move("m.safetensors", "n.safetensors")
    plan = Repo.open(root).plan_add(".")
    assert (plan.read, plan.unchanged) == ((), ("n.safetensors",))


def test_the_target_exists(full, root):
    write(root, "untracked", text="precious")
    for target in ("b", "untracked"):
        with pytest.raises(ConflictError, match="already exists"):
            full.move("a", target)
    assert (root / "untracked").read_text() == "precious"
    full.move("a", "untracked", force=True)
    assert (root / "untracked").read_text() == "a"
    full.move("untracked", "b", force=True)
    assert tracked(full) == files(root) == ["b", "d/e/y", "d/x"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("source", "target", "fact"),
    [
        ("d", "t", "'t/d' already exists"),
        ("a", "b/a", "not a folder"),
        ("a", "link/a", "'link' is not a folder"),
        ("gone", "c", "'gone' does not exist"),
        ("new", "c", "not tracked"),
        ("nope", "c", "not tracked"),
        (["a", "d/a"], "t", "same name"),
    ],
)
def test_nothing_is_moved_or_replaced(full, root, tmp_path, source, target, fact, force):
    (tmp_path / "elsewhere").mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    write(root, "d/a", "gone")
    full.add(["d/a", "gone"])
    (root / "gone").unlink()
    write(root, "t/d/keep", "c", "new")
    before = files(root), tracked(full)
    with pytest.raises((ConflictError, NotFoundError, UsageError), match=fact):
        full.move(source, target, force=force)
    assert (files(root), tracked(full)) == before
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_into_a_folder_that_does_not_exist_yet(full, root):
    write(root, "a", text="edited")
    full.move("a", "deep/er/a")
    assert (root / "deep/er/a").read_text() == "edited"
    assert [file.code for file in full.status().files] == ["RM"]
    full.move("deep/er/a", "a")
    assert not (root / "deep").exists()


def test_a_tracked_target_that_is_gone_from_the_disk(full, root):
    (root / "b").unlink()
    with pytest.raises(ConflictError, match="already tracked"):
        full.move("a", "b")
    full.move("a", "b", force=True)
    assert files(root) == tracked(full) == ["b", "d/e/y", "d/x"]


def test_the_second_of_two_cannot_move_so_none_does(full, root):
    write(root, "d/b")
    for sources in (["a", "b"], ["a", "nope"]):
        with pytest.raises((ConflictError, NotFoundError)):
            full.move(sources, "d")
    assert (root / "a").exists()
    assert tracked(full) == ["a", "b", "d/e/y", "d/x"]


@pytest.mark.parametrize(
    ("sources", "target"),
    [
        (["d"], "d/new"),
        (["a"], "a"),
        (["a", "b"], "c"),
        (["a", "a"], "d"),
        (["d", "d/x"], "."),
        ([], "d"),
        (["a"], "bad\\name"),
        (["a"], "x/.git/y"),
        (["a"], "../a"),
    ],
)
def test_what_cannot_be(full, root, sources, target):
    before = files(root)
    with pytest.raises(UsageError):
        full.move(sources, target)
    assert files(root) == before
    assert tracked(full) == ["a", "b", "d/e/y", "d/x"]


def test_a_state_that_was_never_made(repo, root):
    repo.commit_state({"model": {"w": np.ones(3)}}, message="state")
    repo.move("model.safetensors", "old.safetensors")
    assert files(root) == []
    (change,) = repo.status().files
    assert (change.code, change.path) == ("R ", "old.safetensors")
    repo.commit("renamed")
    repo.checkout("main")
    assert files(root) == ["old.safetensors", "state.json"]
