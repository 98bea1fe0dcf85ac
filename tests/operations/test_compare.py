"""What the sides of a comparison are: the same as for diff, and files wherever they are."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import mvc
from mvc import FormatError, NotFoundError, UsageError
from support.models import write_model

W = np.arange(64, dtype="f4").reshape(8, 8)


@pytest.fixture
def steps(repo, root):
    """w is 1, 2 in two commits, 3 in the index and 4 in the worktree, times W."""
    for scale in (1, 2, 3, 4):
        save_file({"w": W * scale, "same": W}, root / "m.safetensors")
        if scale < 4:
            repo.add("m.safetensors")
        if scale < 3:
            repo.commit(f"{scale}")
    return repo


def _scale(diff):
    """Return by what factor w grew."""
    (change,) = (one for one in diff.differing if one.name == "w")
    return change.statistics.scale


def test_sides_are_those_of_diff(steps):
    assert _scale(steps.compare("HEAD")) == pytest.approx(2)
    assert _scale(steps.compare(staged=True)) == pytest.approx(3 / 2)
    assert _scale(steps.compare("HEAD~1", staged=True)) == pytest.approx(3)
    assert _scale(steps.compare_commit("HEAD")) == pytest.approx(2)
    diff = steps.compare()
    assert (_scale(diff), diff.new.label) == (pytest.approx(4 / 3), "the worktree")
    diff = steps.compare("HEAD~1", "HEAD")
    assert (_scale(diff), diff.old.label, diff.new.label) == (pytest.approx(2), "HEAD~1", "HEAD")
    assert diff.new.commit == steps.resolve("HEAD")
    assert (diff.total.tensors, diff.total.differing) == (2, 1)


def test_a_first_commit_is_compared_with_nothing(one, root):
    write_model(root / "m.safetensors")
    one.add("m.safetensors")
    assert {change.status for change in one.compare(staged=True).changes} == {"added"}
    assert one.compare_commit("HEAD").changes == ()


def test_files_of_a_revision_and_files_anywhere(steps, root, tmp_path):
    save_file({"w": W * 8}, tmp_path / "other.safetensors")
    assert _scale(steps.compare("HEAD:m.safetensors", tmp_path / "other.safetensors")) == 4
    assert _scale(steps.compare(root / "m.safetensors", {"w": torch.from_numpy(W)})) == 1 / 4
    live = torch.nn.Module()
    live.w = torch.nn.Parameter(torch.from_numpy(W * 3))
    assert _scale(steps.compare(root / "m.safetensors", live)) == 3 / 4
    for wrong in (3, [W], object()):
        with pytest.raises(UsageError, match="is not a model"):
            steps.compare("HEAD", wrong)
    with pytest.raises(NotFoundError):
        steps.compare("HEAD", "nowhere")
    with pytest.raises(UsageError, match="paths select"):
        steps.compare("HEAD", tmp_path / "other.safetensors", paths=["m.safetensors"])
    with pytest.raises(UsageError, match="only with each other"):
        steps.compare("HEAD", "HEAD", staged=True)


def test_a_state_committed_from_memory_is_in_the_worktree(repo):
    """Its files were never written; they are what a checkout would write."""
    for scale in (1, 2):
        repo.commit_state({"model": {"w": W * scale}}, message="x")
    assert not repo.compare().differing
    assert _scale(repo.compare("HEAD~1")) == 2


def test_paths_and_names_choose(steps, root):
    save_file({"v": W, "b": W}, root / "n.safetensors")
    steps.add("n.safetensors")
    steps.commit("n")
    names = [change.name for change in steps.compare("HEAD~1", "HEAD", paths=["n.*"]).changes]
    assert names == ["b", "v"]
    found = steps.compare("HEAD~1", "HEAD", tensors="[vw]").changes
    assert [change.name for change in found] == ["w", "v"]
    with pytest.raises(NotFoundError, match=r"no tensor matches 'lm_haed\*'"):
        steps.compare("HEAD~1", "HEAD", tensors="lm_haed*")


def test_outside_a_repository(tmp_path):
    save_file({"w": W}, tmp_path / "a.safetensors")
    torch.save({"w": torch.from_numpy(W * 2)}, tmp_path / "b.pt")
    (tmp_path / "folder").mkdir()
    np.savez(tmp_path / "folder/c.npz", w=W * 3)
    assert _scale(mvc.compare(tmp_path / "a.safetensors", str(tmp_path / "b.pt"))) == 2
    assert _scale(mvc.compare(tmp_path / "b.pt", tmp_path / "folder")) == 3 / 2
    assert _scale(mvc.compare({"w": W}, {"w": W * 5})) == 5
    with pytest.raises(UsageError, match="int is not a model"):
        mvc.compare({"w": W}, 5)
    (tmp_path / "x.safetensors").write_bytes(b"no header")
    with pytest.raises(FormatError, match="no tensor"):
        mvc.compare(tmp_path / "a.safetensors", tmp_path / "x.safetensors")
    with pytest.raises(NotFoundError, match="does not exist"):
        mvc.compare(tmp_path / "a.safetensors", tmp_path / "y.safetensors")
