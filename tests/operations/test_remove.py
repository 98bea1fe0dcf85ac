import numpy as np
import pytest

from mvc import ConflictError, NotFoundError, UsageError


def write(root, *paths, text="x"):
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def tracked(repo):
    return list(repo._context.history.read_index().entries)


@pytest.fixture
def full(repo, root):
    write(root, "a", "d/b", "d/e/c", "w1", "w[1]")
    repo.add(".")
    repo.commit("all")
    return repo


def test_removes_file_index_entry_and_empty_folders(full, root):
    assert full.remove("d/e/c") == ("d/e/c",)
    assert tracked(full) == ["a", "d/b", "w1", "w[1]"]
    assert not (root / "d/e").exists()
    full.remove("d/b")
    assert not (root / "d").exists()
    assert [file.code for file in full.status().files] == ["D ", "D "]


def test_folders_need_recursive(full, root):
    for path in ("d", "."):
        with pytest.raises(UsageError, match="is a folder"):
            full.remove(path)
    write(root, "d/untracked")
    assert full.remove("d", recursive=True) == ("d/b", "d/e/c")
    assert (root / "d/untracked").exists()
    assert full.remove(".", recursive=True) == ("a", "w1", "w[1]")
    assert tracked(full) == []
    assert root.exists()


def test_wildcards_and_names_that_look_like_one(full):
    assert full.remove("w[1]") == ("w[1]",)
    assert full.remove("w?") == ("w1",)
    assert full.remove("*b") == ("d/b",)


def test_one_changed_file_keeps_them_all(full, root):
    write(root, "d/b", text="edited")
    with pytest.raises(ConflictError, match="'d/b' has changes that no commit holds"):
        full.remove(["a", "d"], recursive=True)
    with pytest.raises(NotFoundError):
        full.remove(["a", "nope"])
    assert (root / "a").exists()
    assert "a" in tracked(full)


def test_a_file_that_is_gone_already(full, root):
    (root / "a").unlink()
    (root / "d/b").unlink()
    (root / "d/b").mkdir()
    assert full.remove(["a", "d/b"]) == ("a", "d/b")
    assert (root / "d/b").is_dir()


def test_what_lies_behind_a_link_is_not_removed(full, root, tmp_path):
    write(tmp_path, "elsewhere/b", "elsewhere/e/c")
    for path in ("d/b", "d/e/c"):
        (root / path).unlink()
    (root / "d/e").rmdir()
    (root / "d").rmdir()
    (root / "d").symlink_to(tmp_path / "elsewhere")
    full.remove("d", recursive=True)
    assert (tmp_path / "elsewhere/b").exists()
    assert (root / "d").is_symlink()


def test_a_file_that_was_never_made(repo):
    repo.commit_state({"model": {"w": np.ones(3)}}, message="state")
    assert repo.remove("model.safetensors") == ("model.safetensors",)
    assert [(file.path, file.code) for file in repo.status().files] == [("model.safetensors", "D ")]
