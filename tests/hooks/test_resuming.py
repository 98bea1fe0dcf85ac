"""Where a new process goes on: the tip, or what is before a tip that is damaged."""

from __future__ import annotations

import logging

import pytest
import torch

from mvc import ConflictError, CorruptionError, Identity, Repo, StorageError, UsageError
from mvc.storage.local import LocalStorage
from mvc_hooks.ranks.group import Ranks
from mvc_hooks.resuming import restore_first
from support.damage import flip
from support.scenarios.basics import make_net, simple
from support.stockgit import git

pytestmark = pytest.mark.torch


def _train(keep, count=6):
    run = keep(every=2).steps(count)
    run.ckpt.close()
    return run


def _packs(root):
    return sorted(
        (root / ".mvc/chunks/packs").glob("*.pack"), key=lambda one: one.stat().st_mtime_ns
    )


def _steps(root, revision="main"):
    return [one.annotations.step for one in Repo.open(root).log(revision, first_parent=True)]


def test_a_damaged_tip_is_left_for_the_commit_before_it(keep, plain, tmp_path, caplog):
    _train(keep)
    root = tmp_path / "run"
    flip(_packs(root)[-1])
    with caplog.at_level(logging.INFO, "mvc_hooks"):
        run = keep(every=2, seed=8)
    assert run.ckpt.step_count == 4
    assert _steps(root) == [4, 2, 0]
    assert _steps(root, "diverged/main/6") == [6, 4, 2, 0]
    [said] = [one.message for one in caplog.records if " is left for " in one.message]
    assert said.startswith("step 6 (commit ")
    assert ".safetensors" in said
    assert "kept as diverged/main/6" in said
    [resumed] = [one.message for one in caplog.records if one.message.startswith("resumed at ")]
    assert resumed.startswith("resumed at step 4 from the local store in ")
    # The same bytes come again: they are stored again, and so the branch that was left is whole, too.
    assert run.steps(2).now() == plain(6).now()
    run.ckpt.close()
    assert keep(seed=8).now() == plain(6).now()
    repo = Repo.open(root)
    assert repo.load_state("diverged/main/6")["run"]["step"] == 6
    assert dict(repo.show("main").annotations.meta)["rolled_back_from"] == "step 6"
    assert [back.to_step for back in repo.runs.read("main").rollbacks] == [4]


def test_a_branch_of_files_is_left_as_it_is(keep, tmp_path):
    root = tmp_path / "run"
    repo = Repo.init(root)
    (root / "data.txt").write_text("x")
    repo.commit("files", paths=".", author=Identity("Ada", "ada@example.org"))
    with pytest.raises(
        UsageError, match=r"^branch 'main' holds files, and no training state"
    ) as caught:
        keep()
    assert "branch=" in caught.value.hint
    run = keep(branch="train").steps(2)
    run.ckpt.close()
    assert _steps(root, "train") == [2, 0]
    assert len(list(repo.log("main"))) == 1


def test_a_tip_whose_ranks_differed_is_told_and_never_healthy(keep, tmp_path, caplog):
    _train(keep)
    root = tmp_path / "run"
    message = git(root / ".mvc", "log", "-1", "--format=%B").rstrip()
    message += (
        "\nReplica-Check: agreed=3 of=4 differed=1"
        "\nReplica-Dispute: model.safetensors 0.weight chunk=0 stored=0 checked=1"
    )
    command = ("commit-tree", "main^{tree}", "-p", "main^", "-m", message)
    git(root / ".mvc", "update-ref", "refs/heads/main", git(root / ".mvc", *command).strip())
    run = keep(every=100, healthy_after=2)
    assert "whose ranks did not hold the same: 0.weight in model.safetensors differs" in caplog.text
    run.steps(10).ckpt.wait()
    run.ckpt.close()
    healthy = {one.annotations.step for one in Repo.open(root).log("main") if one.is_healthy}
    assert 6 not in healthy
    assert "cannot be marked" not in caplog.text


def test_it_is_mended_from_a_remote(keep, tmp_path, caplog):
    _train(keep)
    root = tmp_path / "run"
    repo = Repo.open(root)
    repo.remotes.add("origin", (tmp_path / "store").as_uri())
    repo.push("origin", ["main"])
    flip(_packs(root)[-1])
    assert keep(every=2).ckpt.step_count == 6
    assert "what was lost came from " in caplog.text
    assert _steps(root) == [6, 4, 2, 0]


def test_a_few_are_tried_and_no_more(keep, tmp_path):
    _train(keep, 8)
    root = tmp_path / "run"
    for pack in _packs(root):
        pack.unlink()
    with pytest.raises(CorruptionError, match=r"no state to resume from .*commit .*commit "):
        keep(every=2)
    assert _steps(root) == [8, 6, 4, 2, 0], "the branch stays where it was"


def test_a_state_that_does_not_fit_is_an_error(keep, tmp_path):
    _train(keep)
    with pytest.raises(ConflictError):
        keep(every=2, build=_build_other)
    assert _steps(tmp_path / "run") == [6, 4, 2, 0]


def _build_other():
    model = make_net(norm=False)
    return simple(model, torch.optim.SGD(model.parameters(), 0.1))


def test_a_store_that_cannot_be_read_now_is_an_error(keep, tmp_path, monkeypatch):
    _train(keep)

    def fail(self, key, offset, buffer):
        raise StorageError(f"cannot read {key}: input/output error")

    monkeypatch.setattr(LocalStorage, "read_into", fail)
    with pytest.raises(StorageError, match="input/output"):
        keep(every=2)
    assert _steps(tmp_path / "run") == [6, 4, 2, 0]


class _Two(Ranks):
    """Rank 0 of two, whose other rank meets given errors."""

    def __init__(self, *others):
        super().__init__()
        self.size, self._others = 2, list(others)

    @property
    def is_alone(self):
        return False

    def exchange(self, value):
        error = self._others.pop(0)
        theirs = None if error is None else (CorruptionError.__module__, error, "x", None)
        return [value, theirs]


def test_a_state_that_another_rank_cannot_read_is_passed_over():
    failures = []
    found = restore_first(_Two("CorruptionError", None), "ab", str.upper, failures)
    assert found == ("b", "B")
    assert list(map(str, failures)) == ["rank 1: x"]


def test_an_error_of_another_kind_on_one_rank_ends_the_search_on_all():
    def lose(state):
        raise CorruptionError(state)

    with pytest.raises(StorageError, match="x"):
        restore_first(_Two("StorageError"), "ab", lose, [])
