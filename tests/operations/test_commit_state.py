"""commit_state: files of the user's and other branches are left alone."""

import json

import numpy as np
import pytest

from mvc import ConflictError, FormatError, UnsupportedError, UsageError
from mvc.progress import reporting
from support.opened_repo import write
from support.transitions import codes


def array(value, count=300):
    return np.full(count, value, np.float32)


def on_disk(root):
    return sorted(path.name for path in root.iterdir() if path.name != ".mvc")


def paths_of(repo, revision="HEAD"):
    return [info.path for info in repo.ls(revision)]


def test_a_state_of_a_newer_mvc_is_not_mixed_with_another(repo, root):
    """Which of its files are the state is not known, so they could not be replaced."""
    repo.commit_state({"model": {"w": array(1)}}, message="state")
    text = json.loads(repo.read_file("HEAD", "state.json"))
    write(root, "state.json", json.dumps({**text, "version": 99}))
    commit = repo.commit("newer", paths="state.json").commit
    for refused in (
        lambda: repo.commit_state({"other": {"w": array(2)}}, message="mixed"),
        repo.verify_worktree,
    ):
        with pytest.raises(UnsupportedError, match="version 99"):
            refused()
    assert repo.resolve("HEAD") == commit
    plan = repo.upkeep.plan_prune(keep_tagged=True, weights_only=True)
    assert "model.safetensors" not in {path for one in plan.commits for path in one.paths}


class TestOtherFiles:
    def test_the_users_files_go_along(self, repo, root):
        write(root, "train.py", "one")
        repo.commit("code", paths=".")
        repo.commit_state({"model": {"w": array(1)}}, message="state")
        assert paths_of(repo) == ["model.safetensors", "state.json", "train.py"]
        write(root, "train.py", "two")
        repo.commit("better code", everything=True)
        assert paths_of(repo) == ["model.safetensors", "state.json", "train.py"]
        assert repo.load_state(framework="numpy")["model"]["w"][0] == 1
        assert codes(repo) == {}
        assert on_disk(root) == ["train.py"]

    def test_files_of_keys_that_vanished_go(self, repo, root):
        write(root, "ema.txt", "mine")
        repo.commit("file", paths=".")
        repo.commit_state({"model": {"w": array(1)}, "ema": {"w": array(2)}}, message="both")
        repo.commit_state({"model": {"w": array(3)}}, message="one")
        assert paths_of(repo) == ["ema.txt", "model.safetensors", "state.json"]
        assert codes(repo) == {}
        repo.checkout("HEAD~1")
        assert on_disk(root) == ["ema.safetensors", "ema.txt", "model.safetensors", "state.json"]
        repo.checkout("main")
        assert on_disk(root) == ["ema.txt", "model.safetensors", "state.json"]

    @pytest.mark.parametrize("text", ['{"mine": 1}', "not json", '{"format": "other"}', ""])
    def test_the_users_own_state_json(self, repo, root, text):
        write(root, "state.json", text)
        repo.commit("mine", paths=".")
        with pytest.raises(FormatError):
            repo.load_state()
        repo.commit_state({"step": 1}, message="state")
        assert repo.read_file("HEAD~1", "state.json") == text.encode()
        assert repo.load_state(framework="numpy") == {"step": 1}
        assert (root / "state.json").read_text() == text

    def test_what_is_staged_and_not_committed_is_not_replaced(self, repo, root):
        write(root, "state.json", "mine")
        repo.add("state.json")
        with pytest.raises(ConflictError, match=r"'state\.json' is staged") as caught:
            repo.commit_state({"step": 1}, message="state")
        assert "restore --staged" in caught.value.hint
        assert codes(repo) == {"state.json": "A "}
        repo.commit("mine")
        repo.commit_state({"step": 1}, message="state")

    def test_a_folder_of_that_name(self, repo, root):
        write(root, "model.safetensors/x")
        repo.commit("odd", paths=".")
        with pytest.raises(UsageError, match=r"model\.safetensors"):
            repo.commit_state({"model": {"w": array(1)}}, message="state")
        assert repo.show().info.subject == "odd"
        assert codes(repo) == {}


class TestBranches:
    def test_another_branch_leaves_index_and_files_alone(self, repo, root):
        write(root, "a", "one")
        repo.commit("base", paths=".")
        repo.branches.create("runs/one")
        write(root, "a", "staged")
        repo.add("a")
        result = repo.commit_state({"step": 1}, message="state", branch="runs/one")
        assert result.branch == "runs/one"
        assert result.parents == (repo.resolve("main"),)
        assert repo.head.branch == "main"
        assert codes(repo) == {"a": "M "}
        assert repo.read_file("runs/one", "a") == b"one"
        assert repo.load_state("runs/one", framework="numpy") == {"step": 1}
        assert repo.reflog("runs/one")[0].message == "commit: state"

    def test_one_that_does_not_exist_begins(self, repo):
        repo.commit("base", allow_empty=True)
        first = repo.commit_state({"step": 1}, message="a", branch="runs/new")
        second = repo.commit_state({"step": 2}, message="b", branch="runs/new")
        assert first.parents == ()
        assert second.parents == (first.commit,)
        assert [entry.message for entry in repo.reflog("runs/new")] == [
            "commit: b", "commit (initial): a",
        ]  # fmt: skip

    @pytest.mark.parametrize("name", ["a b", "HEAD", "-x", ""])
    def test_no_valid_name(self, repo, root, name):
        with pytest.raises(UsageError, match="is not a valid branch name"):
            repo.commit_state({"model": {"w": array(1)}}, message="x", branch=name)
        assert not list((root / ".mvc/chunks").rglob("*.pack"))


def test_progress_is_the_bytes_of_the_tensors(repo):
    calls = []
    state = {"a": {"w": array(1, 1000)}, "b": {"w": array(2, 500)}}
    with reporting(calls.append):
        repo.commit_state(state, message="x")
    assert 6000 <= sum(calls) <= 6000 + 1000  # and the headers of two files


class TestRefusals:
    def test_what_is_no_data_names_its_path(self, repo):
        for bad in (lambda: None, object(), open, repo):
            with pytest.raises(UnsupportedError, match=r"model.*hooks.*1"):
                repo.commit_state({"model": {"hooks": [1, bad]}}, message="x")
        assert repo.head.commit is None
        assert repo.upkeep.fsck().ok

    def test_what_is_no_state(self, repo):
        for bad in ([1], 3, None, "x"):
            with pytest.raises(UsageError, match="a state is a dict"):
                repo.commit_state(bad, message="x")
        with pytest.raises(UsageError, match="needs a message"):
            repo.commit_state({"step": 1}, message=" \n")


class TestStateDict:
    """What ``model.state_dict()`` returns, given as it is."""

    @pytest.fixture
    def model(self):
        torch = pytest.importorskip("torch")
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Embedding(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 6, bias=False)
        )
        model[2].weight = model[0].weight  # tied
        model[1].weight = torch.nn.Parameter(torch.rand(8)[::2])  # not contiguous
        model.register_buffer("table", torch.rand(3, 5).bfloat16().t())
        return model

    def test_the_model_itself_is_refused_with_a_hint(self, repo, model):
        with pytest.raises(UsageError, match="not a Sequential") as refused:
            repo.commit_state(model, message="model")
        assert refused.value.hint == "pass its state_dict()"

    def test_it_comes_back_as_it_was(self, repo, model):
        state = model.state_dict()
        repo.commit_state(state, message="model")
        back = repo.load_state()
        assert (list(back), back._metadata) == (list(state), state._metadata)
        assert back["2.weight"].data_ptr() == back["0.weight"].data_ptr()
        assert back["table"].stride() == state["table"].stride()
        assert repo.verify_state(state).is_exact
        state["1.bias"][0] = 7
        assert repo.verify_state(state).differences == (
            "tensor '1.bias' of model.safetensors differs",
        )


class TestGivenFiles:
    def test_they_are_in_the_commit_and_stay(self, repo, root):
        files = {"config.json": '{"hidden": "ü"}', "tokenizer/merges.txt": b"\xff" * 2**21}
        repo.commit_state({"model": {"w": array(1)}}, message="one", files=files)
        repo.commit_state({"model": {"w": array(2)}}, message="two", branch="other")
        repo.commit_state({"model": {"w": array(2)}}, message="two", files={"config.json": "{}"})
        assert repo.read_file("HEAD~1", "config.json") == files["config.json"].encode()
        assert codes(repo) == {}
        repo.checkout("HEAD", paths=".")
        assert (root / "config.json").read_text() == "{}"
        assert (root / "tokenizer/merges.txt").read_bytes() == files["tokenizer/merges.txt"]
        assert codes(repo) == {}
        assert list(repo.load_state(framework="np")) == ["model"]

    def test_a_checkpoint_among_them_is_stored_as_one(self, repo):
        from safetensors.numpy import save

        repo.commit_state(
            {"w": array(1)}, message="m", files={"lora.safetensors": save({"v": array(2)})}
        )
        assert dict(repo.tensors(paths="lora.safetensors"))["v"][0] == 2

    @pytest.mark.parametrize(
        ("files", "wrong"),
        [
            ({"model.safetensors": b""}, "'model.safetensors' is a file of the state itself"),
            ({"state.json": "{}"}, "'state.json' is a file of the state itself"),
            ({"../config.json": "{}"}, "outside the repository"),
            ({".mvc/config": ""}, r"inside \.mvc"),
            ({".git/config": ""}, "names .mvc or .git"),
            ({".": ""}, "is empty"),
            ({"config.json": {"hidden": 4}}, "is given as dict, not as bytes or str"),
        ],
    )
    def test_what_cannot_be_is_refused_before_anything_is_written(self, repo, files, wrong):
        with pytest.raises(UsageError, match=wrong):
            repo.commit_state({"w": array(1)}, message="no", files=files)
        assert repo.head.commit is None
