"""The files of a state in a commit: found where there is a state, and nowhere else."""

import numpy as np
import pytest

from mvc import FormatError, NotFoundError, UnsupportedError
from mvc.workspace import state_files
from mvc.workspace.state_files import (
    TensorSizes,
    find_state_files,
    read_small_file,
    read_state_text,
)


def tree_of(repo):
    return repo._context.history.read_tree(repo.resolve("HEAD"))


def test_of_a_state(repo, context):
    state = {"model": {"w": np.zeros(300), "b": np.zeros(2, "f2")}, "optimizer": {"m": np.ones(9)}}
    repo.commit_state(state, message="m")
    tree = tree_of(repo)
    assert find_state_files(context, tree) == {
        "state.json", "model.safetensors", "optimizer.safetensors",
    }  # fmt: skip
    sizes = TensorSizes(context, tree)
    assert sizes["model.safetensors"] == {"w": 2400, "b": 4}
    assert sizes["optimizer.safetensors"] == {"m": 72}
    assert set(sizes) == set(tree)
    with pytest.raises(KeyError):
        sizes["nope"]
    text = read_state_text(context, repo.resolve("HEAD"), "HEAD")
    assert text.startswith(b"{")
    assert read_small_file(context, tree["state.json"].blob) == text


@pytest.mark.parametrize("text", ["{}", "not json"])
def test_a_file_of_the_users_of_that_name(repo, context, root, text):
    (root / "state.json").write_text(text)
    repo.commit("mine", paths=".")
    assert find_state_files(context, tree_of(repo)) == set()


def test_of_a_newer_mvc(repo, context, root):
    (root / "state.json").write_text('{"format": "mvc-state", "version": 99}')
    repo.commit("newer", paths=".")
    with pytest.raises(UnsupportedError, match="version 99"):
        find_state_files(context, tree_of(repo))


def test_without_a_state(repo, context, root):
    (root / "a").write_text("a")
    repo.commit("a", paths=".")
    assert find_state_files(context, tree_of(repo)) == set()
    with pytest.raises(NotFoundError, match="HEAD holds no training state"):
        read_state_text(context, repo.resolve("HEAD"), "HEAD")
    assert TensorSizes(context, tree_of(repo))["a"] == {}


def test_a_file_that_is_too_large_is_not_read(repo, context, monkeypatch):
    repo.commit_state({"model": {"w": np.zeros(300)}}, message="m")
    blob = tree_of(repo)["model.safetensors"].blob
    size = len(read_small_file(context, blob))
    monkeypatch.setattr(state_files, "_MAX_BYTES", size - 1)
    with pytest.raises(FormatError, match="over the limit"):
        read_small_file(context, blob)
