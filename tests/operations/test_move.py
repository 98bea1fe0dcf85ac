from __future__ import annotations

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


def test_into_a_folder_that_does_not_exist_yet(full, root):
    full.move("a", "deep/er/a")
    assert (root / "deep/er/a").read_text() == "a"
    full.move("deep/er/a", "a")
    assert not (root / "deep").exists()


def test_an_edited_file_stays_edited(full, root):
    write(root, "a", text="edited")
    full.move("a", "c")
    (change,) = full.status().files
    assert (change.code, change.path) == ("RM", "c")
    assert (root / "c").read_text() == "edited"


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


def test_a_tracked_target_that_is_gone_from_the_disk(full, root):
    (root / "b").unlink()
    with pytest.raises(ConflictError, match="already tracked"):
        full.move("a", "b")
    full.move("a", "b", force=True)
    assert files(root) == tracked(full) == ["b", "d/e/y", "d/x"]


def test_no_folder_is_replaced(full, root):
    write(root, "t/d/keep")
    with pytest.raises(ConflictError, match="'t/d' already exists"):
        full.move("d", "t", force=True)
    assert (root / "t/d/keep").exists()


def test_the_second_of_two_cannot_move_so_none_does(full, root):
    write(root, "d/b")
    for sources in (["a", "b"], ["a", "nope"]):
        with pytest.raises((ConflictError, NotFoundError)):
            full.move(sources, "d")
    assert (root / "a").exists()
    assert tracked(full) == ["a", "b", "d/e/y", "d/x"]


def test_what_was_moved_by_hand_is_not_deleted(full, root):
    (root / "a").rename(root / "c")
    for force in (False, True):
        with pytest.raises(NotFoundError, match="'a' does not exist"):
            full.move("a", "c", force=force)
    assert (root / "c").read_text() == "a"


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


def test_two_sources_of_one_name(full, root):
    write(root, "d/a", "t/keep")
    full.add("d/a")
    with pytest.raises(UsageError, match="same name"):
        full.move(["a", "d/a"], "t")
    assert files(root) == ["a", "b", "d/a", "d/e/y", "d/x", "t/keep"]


def test_a_file_is_no_folder(full, root):
    with pytest.raises(ConflictError, match="not a folder"):
        full.move("a", "b/a")
    assert files(root) == ["a", "b", "d/e/y", "d/x"]


def test_not_tracked(full, root):
    write(root, "new")
    for source in ("new", "nope"):
        with pytest.raises(NotFoundError, match="not tracked"):
            full.move(source, "c")


def test_through_a_link(full, root, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConflictError, match="'link' is not a folder"):
        full.move("a", "link/a")
    with pytest.raises(ConflictError, match="'link' already exists"):
        full.move("a", "link")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_state_that_was_never_made(repo, root):
    repo.commit_state({"model": {"w": np.ones(3)}}, message="state")
    repo.move("model.safetensors", "old.safetensors")
    assert files(root) == []
    (change,) = repo.status().files
    assert (change.code, change.path) == ("R ", "old.safetensors")
    repo.commit("renamed")
    repo.checkout("main")
    assert files(root) == ["old.safetensors", "state.json"]
