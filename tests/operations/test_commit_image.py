"""commit_image, parent= and describe: a state from a snapshot's bytes, on the right commit."""

import numpy as np
import pytest
import torch
from hypothesis import given

from mvc import ConflictError, FormatError, Repo, UsageError
from mvc.progress import reporting
from mvc.training import CommitRequest, RunStore, WriteCounts
from support.bounds import on_disk
from support.images import make_image
from support.state_strategies import states, torch_states

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def array(value, count=300):
    return np.full(count, value, np.float32)


def tree(repo, revision="HEAD"):
    return [(info.path, info.mode, info.blob) for info in repo.ls(revision)]


def packs(repo):
    return sorted((repo.git_dir / "chunks").rglob("*.pack"))


@on_disk
@given(state=states | torch_states)
def test_the_same_tree_as_commit_state(repo, state):
    repo.commit_state(state, message="live", branch="live")
    RunStore(repo).commit_image(make_image(state), CommitRequest(message="image", branch="image"))
    assert tree(repo, "image") == tree(repo, "live")
    assert repo.verify_state(state, "image").is_exact


def test_an_image_is_committed_like_a_state(repo, root):
    (root / "train.py").write_text("x")
    repo.commit("code", paths=".")
    state = {"model": {"w": torch.ones(300)}, "step": 1}
    result = RunStore(repo).commit_image(
        make_image(state),
        CommitRequest(message="subject\n\nbody", step=5, metrics={"loss": 2}, meta={"by": "me"}),
    )
    entry = repo.show()
    assert (entry.info.subject, entry.annotations.step) == ("subject", 5)
    assert (entry.annotations.metrics, entry.annotations.meta) == ({"loss": 2}, {"by": "me"})
    assert result.branch == "main"
    assert [path for path, _, _ in tree(repo)] == ["model.safetensors", "state.json", "train.py"]
    assert repo.status().is_clean
    RunStore(repo).commit_image(
        make_image({"ema": {"w": torch.ones(3)}}), CommitRequest(message="another form")
    )
    assert [path for path, _, _ in tree(repo)] == ["ema.safetensors", "state.json", "train.py"]


def test_what_is_no_image_is_refused_and_nothing_written(repo):
    image = make_image({"model": {"w": array(1)}, "step": 1})
    for broken in (
        {},
        {"state.json": memoryview(b"garbage")},
        {"state.json": image["state.json"]},
        {**image, "model.safetensors": memoryview(b"garbage")},
        {**image, "../evil.safetensors": image["model.safetensors"]},
    ):
        with pytest.raises(FormatError):
            RunStore(repo).commit_image(broken, CommitRequest(message="x"))
    with pytest.raises(UsageError, match="needs a message"):
        RunStore(repo).commit_image(image, CommitRequest(message=" "))
    assert repo.head.commit is None
    assert not packs(repo)


@pytest.fixture(params=["live", "image"])
def commit(request, repo):
    """Commit a state in both ways."""

    def run(state, **options):
        if request.param == "live":
            return repo.commit_state(state, message="x", **options)
        return RunStore(repo).commit_image(make_image(state), CommitRequest(message="x", **options))

    return run


class TestParent:
    def test_the_right_one(self, repo, commit):
        first = commit({"step": 1}, parent="")
        second = commit({"step": 2}, parent=first.commit)
        assert second.parents == (first.commit,)
        assert commit({"step": 3}).parents == (second.commit,)
        commit({"step": 9}, branch="run", parent="")
        with pytest.raises(ConflictError, match="'run' is at"):
            commit({"step": 3}, branch="run", parent=first.commit)
        repo.checkout("HEAD", detach=True)
        with pytest.raises(ConflictError, match="HEAD is at"):
            commit({"step": 2}, parent=first.commit)

    def test_a_wrong_one(self, repo, commit):
        base = repo.commit("base", allow_empty=True).commit
        tip = commit({"step": 1}).commit
        stored = packs(repo)
        for wrong in (base, "", "0" * 40, "main"):
            with pytest.raises(ConflictError, match="branch 'main' is at") as caught:
                commit({"m": {"w": array(2)}}, parent=wrong)
            assert "nothing was committed" in caught.value.hint
        assert repo.resolve("main") == tip
        assert packs(repo) == stored
        assert repo.status().is_clean

    def test_moved_while_it_was_stored(self, repo, root, commit):
        base = repo.commit("base", allow_empty=True).commit
        other, moved = Repo.open(root), []

        def meanwhile(_):
            if not moved:
                moved.append(other.commit("theirs", allow_empty=True).commit)

        with pytest.raises(ConflictError):
            with reporting(meanwhile):
                commit({"m": {"w": array(1)}}, parent=base)
        assert repo.resolve("main") == moved[0]
        assert repo.upkeep.fsck().ok


class TestDescribe:
    def test_it_joins_the_meta(self, repo):
        seen = []

        def describe(counts):
            assert isinstance(counts, WriteCounts)
            assert packs(repo)  # durable already
            seen.append(counts)
            return {"written": str(counts.stored_bytes), "by": "describe"}

        state = {"model": {"w": np.random.default_rng(0).standard_normal(500)}}
        result = RunStore(repo).commit_image(
            make_image(state),
            CommitRequest(message="x", meta={"by": "caller", "kept": "yes"}, describe=describe),
        )
        meta = repo.show().annotations.meta
        assert meta == {"by": "describe", "kept": "yes", "written": str(seen[0].stored_bytes)}
        assert seen[0].stored_bytes >= result.written_bytes > 0  # with the pack around it
        assert len(seen) == 1

    def test_what_it_raises_stops_the_commit(self, repo):
        def describe(_):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            RunStore(repo).commit_image(
                make_image({"step": 1}), CommitRequest(message="x", describe=describe)
            )
        with pytest.raises(UsageError):
            RunStore(repo).commit_image(
                make_image({"step": 1}), CommitRequest(message="x", describe=lambda _: {"": "x"})
            )
        assert repo.head.commit is None


pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
