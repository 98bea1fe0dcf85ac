"""What a training loop may do to a checkpointer, and what it gets for it."""

from __future__ import annotations

import copy
import itertools
import os
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from mvc import ConflictError, Identity, NotFoundError, Repo, UnsupportedError, UsageError, clone
from mvc_hooks import Checkpointer
from support.scenarios.basics import WIDTH, make_net, simple
from support.training_runs import find_deviation, fingerprint, read_trace, seed_all

pytestmark = pytest.mark.torch


_START = ("step 0", 0)


class Endless:
    def __iter__(self):
        return itertools.count()


def _log(root, revision="main"):
    return [(entry.info.subject, entry.annotations.step) for entry in Repo.open(root).log(revision)]


def test_steps_are_those_that_are_missing(keep, tmp_path, plain):
    first = keep(every=4)
    seen = []
    for index in first.ckpt.steps(5):
        seen.append(index)
        first.step()
    assert seen == [0, 1, 2, 3, 4]
    assert list(first.ckpt.steps(3)) == []
    first.ckpt.close()
    second = keep(seed=9, every=4)
    for index in second.ckpt.steps(9):
        seen.append(index)
        second.step()
    assert seen == list(range(9))
    assert second.now() == plain(9).now()
    assert [step for _, step in _log(tmp_path / "run")] == [9, 8, 5, 4, 0]


def test_a_run_commits_to_a_store(keep, tmp_path, caplog):
    store = tmp_path / "store"
    Repo.init(tmp_path / "run", store=store)
    first = keep(every=4)
    for _ in first.ckpt.steps(5):
        first.step()
    first.ckpt.close()
    copy = clone(store, tmp_path / "copy", store=True)
    assert _log(copy.worktree) == _log(tmp_path / "run")
    assert str(copy.load_state("main@4")) == str(Repo.open(tmp_path / "run").load_state("main@4"))
    assert "not on the store" not in caplog.text
    store.rename(tmp_path / "away")
    store.write_text("no folder")
    second = keep(seed=9, every=4)
    for _ in second.ckpt.steps(6):
        second.step()
    second.ckpt.close()
    assert "commit of step 6 is here, but not on the store" in caplog.text


@pytest.mark.parametrize(
    ("loaders", "draws", "match"),
    [
        ({}, True, "no part of the run is a loader"),
        ({"one": [torch.ones(2)]}, True, "no part of the run is a loader"),
        ({"one": DataLoader(range(9)), "other": DataLoader(range(9))}, True, "which of several"),
        ({"buffer": Endless()}, False, r"buffer \(a Endless\) has no state_dict, and no batch"),
    ],
)
def test_loaders_that_cannot_feed_the_run(tmp_path, loaders, draws, match):
    with Checkpointer(tmp_path, model=make_net(), parts=loaders) as ckpt:
        with pytest.raises(UsageError, match=match):
            ckpt.next_batch() if draws else ckpt.step()


def test_a_model_in_a_run_can_be_copied_and_saved(keep, tmp_path):
    run = keep().steps(2)
    model = run.ckpt._run._modules[0]
    copied = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    saved = torch.load(tmp_path / "model.pt", weights_only=False)
    batch = torch.ones(2, WIDTH)
    for one in (copied, saved):
        assert torch.equal(one.eval()(batch), model.eval()(batch))
    run.ckpt._run.is_clean = True
    copied(batch)
    assert run.ckpt._run.is_clean, "a copy is another model"
    assert b"mvc_hooks" not in (tmp_path / "model.pt").read_bytes()


def test_a_body_without_step_is_an_error(keep):
    with pytest.raises(UsageError, match="did not call step"):
        for _ in keep().ckpt.steps(2):
            pass


def test_commits_by_call(keep, tmp_path):
    run = keep(every=None).steps(3)
    run.ckpt.commit("before lr drop\n\nIt has come to rest.", accuracy=0.5)
    run.ckpt.close()
    (entry,) = Repo.open(tmp_path / "run").log("main")
    assert entry.info.subject == "before lr drop"
    assert entry.annotations.step == 3
    assert entry.annotations.metrics["accuracy"] == 0.5
    assert keep(seed=5).now() == run.now()


def test_commits_are_the_user_s(keep, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ada Lovelace")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "ada@example.org")
    ada, grace = Identity("Ada Lovelace", "ada@example.org"), Identity("Grace", "g@example.org")
    keep(every=1).steps(1).ckpt.close()  # the start, and a step
    keep(every=1, identity=grace).steps(1).ckpt.close()
    log = list(Repo.open(tmp_path / "run").log("main"))
    assert [one.info.author for one in log] == [grace, ada, ada]
    assert [one.info.committer for one in log] == [grace, ada, ada]


@pytest.mark.parametrize("options", [{}, {"identity": Identity("<>", "")}])
def test_a_run_whose_commits_would_have_no_name_does_not_begin(keep, monkeypatch, options):
    monkeypatch.setenv("GIT_AUTHOR_NAME", " ")
    with pytest.raises(UsageError, match="is not a name for an author"):
        keep(**options)


def test_counts_of_every_kind_come_back_as_ints(keep):
    with keep(every=1).ckpt as ckpt:
        ckpt.step(tokens=torch.ones(5, dtype=bool).sum(), samples=np.int64(4))
        ckpt.step(tokens=2.0)
        for wrong in (1.5, "3", -1, None, float("nan"), torch.ones(2)):
            with pytest.raises(UsageError, match=r"tokens is .*, not a whole number"):
                ckpt.step(tokens=wrong)
    ckpt = keep().ckpt
    assert (ckpt.step_count, ckpt.batch_index, ckpt.tokens, ckpt.samples) == (2, 2, 7, 4)


@pytest.mark.parametrize("message", [None, 5, " ", "a\0b"])
def test_what_is_no_message_of_a_commit(keep, message):
    run = keep(every=1).steps(1)
    with pytest.raises(UsageError, match="is not a commit message"):
        run.ckpt.commit(message)
    assert run.steps(1).ckpt.step_count == 2


def test_a_forked_process_leaves_the_run_to_its_parent(keep, plain):
    run = keep(every=1).steps(1)
    child = os.fork()
    if not child:
        text = ""
        try:
            run.ckpt.step(loss=1.0)
        except UsageError as error:
            text = error.message
        run.ckpt.__exit__(ValueError, ValueError(), None)
        os._exit("was forked from it" not in text)
    assert os.waitpid(child, 0)[1] == 0
    if not (child := os.fork()):
        signal.raise_signal(signal.SIGTERM)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGTERM, "as of a worker that is terminated"
    run.ckpt.wait()
    assert run.ckpt.repo.runs.read("main").stopped is None
    assert run.steps(2).now() == plain(3).now()


def test_a_commit_and_a_resume_in_inference_mode(keep, plain):
    first = keep(every=1)
    with torch.inference_mode():  # as a cache that an evaluation makes
        first.model.register_buffer("cache", torch.ones(2), persistent=False)
    first.steps(3)
    del first.model.cache
    with torch.inference_mode():
        first.ckpt.commit("validated")
    first.ckpt.close()
    again = keep("other", seed=5)
    again.ckpt.close()
    with torch.inference_mode():
        again.ckpt = Checkpointer(first.ckpt.repo.worktree, parts=again.run.parts, every=1)
    assert again.steps(2).now() == plain(5).now()


def test_an_exception_between_steps_commits_the_last_one(keep, tmp_path, plain):
    run = keep(every=100)
    with pytest.raises(ZeroDivisionError):
        with run.ckpt:
            run.steps(3)
            raise ZeroDivisionError
    assert _log(tmp_path / "run") == [("step 3, at ZeroDivisionError", 3), _START]
    assert keep(seed=8).steps(2).now() == plain(5).now()


@pytest.mark.parametrize("with_backward", [False, True])
def test_an_exception_in_a_step_commits_nothing_of_it(keep, tmp_path, plain, with_backward, caplog):
    run = keep(every=2)

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with run.ckpt:
            run.steps(3)
            if with_backward:
                run.step(between=fail)
            run.model(torch.ones(2, WIDTH))
            fail()
    assert _log(tmp_path / "run") == [("step 2", 2), _START]
    assert "in the middle of step 4, so its last commit is that of step 2;" in caplog.text
    assert keep(seed=8).steps(3).now() == plain(5).now()


def test_signals_after_checkpointers_that_ended_in_their_order(keep):
    first, second = keep(branch="one"), keep(branch="two")
    first.ckpt.close()
    second.ckpt.close()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_numbers_of_every_kind_are_metrics(keep, tmp_path):
    ckpt = keep(every=1, detectors=[]).ckpt
    one = torch.tensor(1.5, requires_grad=True)
    ckpt.step(loss=float("nan"), one=one, two=np.float32(2), three=3)
    ckpt.step(loss=float("-inf"), grad_norm=torch.tensor([2.0]))
    ckpt.close()
    later, first, _ = (one.annotations.metrics for one in Repo.open(tmp_path / "run").log("main"))
    assert (first["one"], first["two"], first["three"]) == (1.5, 2, 3)
    assert np.isnan(first["loss"])
    assert (later["loss"], later["grad_norm"]) == (float("-inf"), 2)


def test_a_metric_that_is_no_number(keep):
    ckpt = keep(every=100).ckpt
    with pytest.raises(UsageError, match="'name' is not a number"):
        ckpt.step(loss=1.0, name="resnet")


def test_sigint_commits_and_interrupts(keep, tmp_path, plain):
    run = keep(every=100).steps(2)
    with pytest.raises(KeyboardInterrupt):
        run.step(between=lambda: signal.raise_signal(signal.SIGINT))
    assert run.ckpt.is_closed
    assert _log(tmp_path / "run") == [("step 3, at SIGINT", 3), _START]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert keep(seed=8).steps(2).now() == plain(5).now()


def test_sigterm_commits_and_ends_the_process(trainings, tmp_path):
    traces = [tmp_path / name for name in ("plain", "ended", "resumed")]
    trainings.run("plain", tmp_path, scenario="loader-plain", trace=str(traces[0]))
    ended = trainings.run("terminated", tmp_path / "run", trace=str(traces[1]))
    assert ended.result is None
    assert ended.error is None
    assert _log(tmp_path / "run") == [("step 5, at SIGTERM", 5), _START]
    resumed = trainings.run(
        "kept", tmp_path / "run", scenario="loader-plain", trace=str(traces[2]), seed=4
    )
    assert resumed.error is None
    plain, one, other = map(read_trace, traces)
    assert [line["step"] for line in one + other] == list(range(1, 17))
    assert find_deviation(one + other, plain) is None


def test_one_branch_one_checkpointer(keep, tmp_path, plain):
    run = keep()
    keep(branch="other", seed=3).steps(2).ckpt.close()
    assert keep(branch="other", seed=8).now() == plain(2, seed=3).now()
    run.steps(1)
    after = keep(seed=1)
    assert after.ckpt.step_count == 1
    with pytest.raises(UsageError, match="closed"):
        run.ckpt.step(loss=1.0)
    after.steps(1).ckpt.close()
    with pytest.raises(UnsupportedError, match="function") as kept:  # as a notebook keeps an error
        Checkpointer(tmp_path / "run", branch="new", model=make_net(), parts={"odd": {"f": print}})
    assert kept.traceback
    assert keep(branch="new").ckpt.step_count == 0


def test_a_closed_checkpointer_says_so(keep):
    ckpt = keep().steps(1).ckpt
    ckpt.close()
    ckpt.close()
    calls = [
        ckpt.step, ckpt.wait, ckpt.check, ckpt.next_batch, ckpt.roll_back,
        lambda: ckpt.commit("x"), lambda: next(ckpt.steps(3)), ckpt.__enter__,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(UsageError, match="closed"):
            call()


def _build_wider():
    model = make_net()
    model[4] = nn.Linear(12, 5)
    return simple(model, torch.optim.AdamW(model.parameters(), 0.01))


def test_a_run_that_changed_is_refused_and_left_alone_unless_that_is_allowed(keep):
    run = keep(every=1).steps(2)
    run.ckpt.close()
    built = []

    def build():
        built.append(_build_wider())
        return built[-1]

    with pytest.raises(ConflictError, match=r"model\.4\.weight"):
        keep(seed=8, build=build)
    left = fingerprint(built[0])
    seed_all(8)
    fresh = _build_wider()
    assert left == fingerprint(fresh)
    same = keep(seed=8)
    assert same.now() == run.now()
    same.ckpt.close()
    allow = ["model.4.*", "optimizer*", "scheduler*", "details.*", "gradients*"]
    other = keep(seed=8, build=build, allow=allow)
    assert torch.equal(other.model[4].weight, fresh.parts["model"][4].weight)
    assert torch.equal(other.model[0].weight, run.model[0].weight)


def test_a_part_that_is_missing_is_named_first(keep, tmp_path):
    run = keep(every=1).steps(2)
    run.ckpt.close()
    with pytest.raises(
        ConflictError, match=r"stored state: (optimizer|scheduler) is only in"
    ) as caught:
        Checkpointer(tmp_path / "run", model=run.model)
    assert caught.value.hint.startswith('nothing was changed; parts={"')


def test_a_changed_environment_is_shown(keep, monkeypatch, caplog):
    keep(every=1).steps(1).ckpt.close()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    again = keep()
    changes = {item: (then, now) for item, then, now in again.ckpt.environment_changes}
    assert len(changes) == 1
    ((item, (then, now)),) = changes.items()
    assert "CUBLAS_WORKSPACE_CONFIG" in item
    assert (then, now) == ("absent", ":4096:8")
    assert any("CUBLAS_WORKSPACE_CONFIG" in record.getMessage() for record in caplog.records)


def test_a_loader_that_was_edited_is_shown(keep, caplog):
    def build(batch_size, part):
        def make():
            model = make_net()
            data = Subset(range(60), part)
            loader = DataLoader(data, batch_size=batch_size, shuffle=True)
            run = simple(model, torch.optim.SGD(model.parameters(), 0.1), loader=loader)
            run.loader = loader
            return run

        return make

    keep(build=build(4, range(50))).steps(2).ckpt.close()
    same = keep(build=build(4, range(50))).ckpt
    assert same.environment_changes == []
    same.close()
    caplog.clear()
    ckpt = keep(build=build(8, range(10, 60))).ckpt
    (size, then, now), (subset, _, _) = ckpt.environment_changes
    assert (size, then, now) == ("data.loader.batch_size", 4, 8)
    assert subset == "data.loader.subset"
    assert "environment: data.loader.batch_size was 4, is 8" in caplog.text


def test_a_model_without_parameters(tmp_path):
    model = nn.Sequential(nn.Dropout(0.5), nn.Flatten())
    with Checkpointer(tmp_path, model=model, every=1) as ckpt:
        for _ in ckpt.steps(2):
            model(torch.ones(2, 2))
            ckpt.step()
    state = torch.get_rng_state()
    torch.manual_seed(3)
    with Checkpointer(tmp_path, model=model) as ckpt:
        assert ckpt.step_count == 2
    assert torch.equal(torch.get_rng_state(), state)


def test_the_start_is_committed_unless_commits_are_by_call(keep, tmp_path, plain):
    start = keep(seed=3, every=1000)
    start.ckpt.close()
    assert _log(tmp_path / "run") == [_START]
    assert keep(seed=8, every=1000).steps(3).now() == plain(3, seed=3).now()
    by_call = keep("called", every=None)
    by_call.ckpt.close()
    with pytest.raises(NotFoundError):
        Repo.open(tmp_path / "called").resolve("main")
