"""Several processes save one commit, the one of a single process, and any number of them loads it."""

from __future__ import annotations

import pytest
import torch

from mvc import Repo
from support.bounds import rest_nightly
from support.programs import call_ranks

support = pytest.importorskip("support.dcp_ranks")

SIZE = 3


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with a run in which a single process has committed the state."""
    folder = tmp_path_factory.mktemp("dcp")
    repo = Repo.init(folder / "run")
    repo.commit_state(support.make_whole(), message="of one process", branch="alone")
    return folder


@pytest.fixture(scope="module")
def run(root):
    """Return a function that runs a verb on all ranks at once, and returns what each has said."""

    def run_ranks(verb, *, size=SIZE, **options):
        return call_ranks("support.dcp_ranks", verb, size, root, **options)

    return run_ranks


def blobs_of(root, revision):
    return {
        info.path: info.blob
        for info in Repo(root / "run").ls(revision)
        if info.path != "state.json" and not info.path.startswith("ranks/")
    }


@pytest.fixture(scope="module")
def alone(root):
    return blobs_of(root, "alone")


def count_commits(root, branch):
    repo = Repo(root / "run")
    return (
        len(list(repo.log(branch))) if branch in {one.name for one in repo.branches.list()} else 0
    )


def assert_same_on_all(results):
    assert results == results[:1] * len(results)
    return results[0]


@pytest.mark.slow
class TestTheSameCommit:
    @pytest.mark.parametrize("size", rest_nightly([1, 2, 3, 4], kept=2))
    def test_any_number_of_ranks(self, run, root, alone, size):
        commits = assert_same_on_all(run("save", size=size, branch=f"by-{size}"))
        assert blobs_of(root, commits[0]) == alone
        state = Repo(root / "run").load_state(commits[0])
        assert torch.equal(state["model"]["rows"], support.make_whole()["model"]["rows"])
        assert state["loader"] == support.make_whole()["loader"]

    def test_without_collectives(self, run, root, alone):
        commits = assert_same_on_all(run("save", branch="free", times=2, use_collectives=False))
        assert [blobs_of(root, commit) for commit in commits] == [alone, alone]
        assert run("load", revision="free") == [[]] * SIZE

    def test_with_kept_plans(self, run, root, alone):
        commits = assert_same_on_all(run("save_cached"))
        assert len(set(commits)) == 4
        assert [blobs_of(root, commit) for commit in commits[:2]] == [alone, alone]
        for commit in commits[2:]:
            found = blobs_of(root, commit)
            assert found.pop("late.safetensors")
            assert found == alone
        assert Repo(root / "run").load_state(commits[3])["loader"]["position"] == 6

    @pytest.mark.parametrize("kind", ["thread", "process"])
    def test_while_the_training_goes_on(self, run, root, alone, kind):
        commit = assert_same_on_all(run("save_async", size=2, kind=kind))
        assert blobs_of(root, commit) == alone

    def test_shards_of_any_form(self, run, root):
        run("save_shards", size=2)
        assert torch.equal(
            Repo(root / "run").load_state("shards")["t"], torch.arange(48.0).reshape(8, 6)
        )

    @pytest.mark.parametrize("version", rest_nightly([2, 1]))
    def test_fsdp(self, run, root, version):
        assert run("save_fsdp", size=2, version=version) == [[], []]
        state = Repo(root / "run").load_state(f"fsdp{version}")
        assert state["model"]["0.weight"].shape == (13, 9)
        assert state["optimizer"]["state"]["0.weight"]["exp_avg"].shape == (13, 9)


@pytest.mark.slow
class TestAnyNumberOfRanks:
    @pytest.mark.parametrize("size", rest_nightly([1, 4, 2], kept=2))
    def test_loads_it(self, run, root, size):
        assert run("load", size=size, revision="alone") == [[]] * size

    def test_objects_of_one_rank(self, run, root):
        (commit,) = assert_same_on_all(run("save", branch="only", only=True))
        paths = {info.path for info in Repo(root / "run").ls(commit)}
        assert {"ranks/1/state.json", "ranks/2/pieces.safetensors", "of_0.safetensors"} <= paths
        assert run("load", revision="only", only=True) == [[0], [1], [2]]

    def test_groups_and_other_coordinators(self, run, root):
        first, *others = run("save_in_groups")
        assert others == [[first[0], others[0][1]]] * (SIZE - 1)
        with Repo(root / "told-by-the-last") as repo:
            assert torch.equal(repo.load_state(first[0])["w"], torch.arange(24.0).view(6, 4))
        for name, commit, members in (
            ("group-2", others[0][1], [1, 2]),
            ("group-1", first[1], [0]),
        ):
            with Repo(root / name) as repo:
                assert repo.load_state(commit)["of"].tolist() == members


@pytest.mark.slow
class TestMachines:
    """Each machine has a repository of its own, and all one store."""

    def test_save_and_load(self, run, root, alone):
        first = Repo.init(root / "one/run", store=str(root / "store"))
        saved = assert_same_on_all(run("save_on_machines", machines=["one", "one", "two"], times=2))
        assert {info.path: info.blob for info in first.ls(saved[1])}.items() >= alone.items()
        other = Repo(root / "two/run")
        assert not other.branches.list(), "the commit is on the store, and rank 0 has made it"
        # Rank 0 comes to another machine, and a new one comes instead of the first.
        now = ["two", "three", "two"]
        found = run("load_on_machines", machines=now)
        assert found == [[saved[1], []]] * SIZE
        third = assert_same_on_all(run("save_on_machines", machines=now))
        assert [entry.info.id for entry in Repo(root / "two/run").log()] == [
            *third,
            *reversed(saved),
        ]
        before = run("load_on_machines", machines=["one", "four", "four"], revision=saved[0])
        assert before == [[saved[0], []]] * SIZE

    def test_nothing_in_common(self, run, root):
        Repo.init(root / "here/run", store=str(root / "another"))
        Repo.init(root / "there/run").commit_state({"step": 1}, message="of another run")
        for said in run("save_on_machines", size=2, machines=["here", "there"]):
            assert "rank 1 sees another folder than rank 0, and has no store" in said
        for said in run("save_on_machines", size=2, machines=["there", "nowhere"]):
            assert "they share nothing that could hold a commit" in said


@pytest.mark.slow
class TestFailures:
    @pytest.mark.parametrize(
        ("at", "by", "text"),
        [
            ("data", 1, "RuntimeError: no data today"),
            ("plan", 1, "RuntimeError: no plan today"),
            ("told", 0, "rank 1: RuntimeError: not told today"),
        ],
    )
    def test_one_rank_fails_all(self, run, root, at, by, text):
        before = count_commits(root, "fail")
        results = run("fail", at=at)
        for ranks, message, commit in results:
            assert ranks == [by]
            assert text in message
            assert commit == results[0][2]
        assert count_commits(root, "fail") == before + 1
