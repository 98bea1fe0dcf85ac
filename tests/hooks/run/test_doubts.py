"""What is probably not meant is said once; ordinary loops hear nothing."""

from __future__ import annotations

import logging
import queue
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from mvc_data import ConsistentDataLoader
from mvc_hooks import Checkpointer
from mvc_hooks.extension import Host
from mvc_hooks.log import RunLog
from mvc_hooks.parts.restoring import capture_parts, from_values, restore_parts
from mvc_hooks.ranks.group import Ranks
from mvc_hooks.run.doubts import STRAY_LOADER, THREADED, TailWatch
from mvc_hooks.run.live import LiveRun
from support.scenarios import SCENARIOS
from support.scenarios.basics import loss_of, make_net, windows
from support.scenarios.models import Growing

pytestmark = pytest.mark.torch


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.WARNING, "mvc_hooks")
    return lambda: [one.getMessage() for one in caplog.records if one.name == "mvc_hooks"]


def _sgd(model, **more):
    return torch.optim.SGD(model.parameters(), 0.1, **more)


def test_a_model_without_an_optimizer(told):
    model = make_net()
    assert "no optimizer was passed" in LiveRun({"model": model}).doubts[0]
    model.requires_grad_(requires_grad=False)
    assert LiveRun({"model": model}).doubts == []


def test_an_optimizer_of_another_model():
    model = make_net()
    one = LiveRun({"model": model, "optimizers": [_sgd(model), _sgd(make_net())]}).doubts
    assert len(one) == 1
    assert one[0].startswith("optimizers.1 steps no parameter of any model")


def test_parameters_that_are_in_no_part():
    model, heat = make_net(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), heat], 0.1)
    (text,) = LiveRun({"model": model, "optimizer": optimizer}).doubts
    assert text.startswith("optimizer has 1 of its 7 parameters in no part")
    assert LiveRun({"model": model, "optimizer": optimizer, "heat": heat.detach()}).doubts == []
    assert LiveRun({"model": model, "optimizer": optimizer, "more": {"heat": [heat]}}).doubts == []


def _train(folder, order):
    model = make_net()
    optimizer = _sgd(model)
    with Checkpointer(folder, model=model, optimizer=optimizer, every=None, detectors=None) as ckpt:
        for number in range(3):
            optimizer.zero_grad()
            loss = loss_of(model, windows(number))
            acts = {"report": lambda loss=loss: ckpt.step(loss=loss)}
            acts |= {"backward": loss.backward, "step": optimizer.step}
            for act in order:
                acts[act]()


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (["report", "backward", "step"], "step() came before backward()"),
        (["step", "backward", "report"], "optimizer.step() comes before backward()"),
        (["backward", "step", "report"], None),
        (["backward", "report", "step"], None),  # in the middle of a step, with its gradients
    ],
)
def test_the_order_of_a_step(tmp_path, told, order, words):
    _train(tmp_path, order)
    others = ("environment", "the run ended in the middle of step")
    found = [text for text in told() if not text.startswith(others)]
    assert len(found) == (words is not None)
    assert all(text.startswith(words) for text in found)


def test_a_loss_without_a_slope_and_steps_without_an_optimizer(tmp_path, told):
    model = make_net()
    with Checkpointer(tmp_path / "a", model=model, optimizer=_sgd(model), every=None) as ckpt:
        for number in range(4):  # as where nothing is rewarded yet
            loss = loss_of(model, windows(number)) * 0
            loss.backward()
            ckpt._run._optimizers[0].step()
            model.zero_grad()
            ckpt.step(loss=loss)
    assert told() == []
    with Checkpointer(tmp_path / "b", model=model, every=None) as ckpt:
        loss = loss_of(model, windows(0))
        loss.backward()
        ckpt.step(loss=loss)
    (text,) = told()
    assert text.startswith("no optimizer was passed")


def _decay(run):
    run.optimizer.param_groups[0]["lr"] *= 0.9


@pytest.mark.parametrize(
    ("name", "is_near"), [("los", True), ("losses", True), ("accuracy", False)]
)
def test_a_mistyped_loss(keep, told, name, is_near):
    ckpt = keep().ckpt
    for _ in range(3):
        ckpt.step(**{name: 1.0})
    text = f"no loss is judged: {name}= is only a metric; did you mean loss=?"
    assert told().count(text) == is_near


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (
            lambda run: run.run.parts["scheduler"].step(),
            "optimizer.param_groups.0.lr, scheduler.last",
        ),
        (lambda run: list(DataLoader(range(3))), "random numbers of torch changed between step()"),
        (lambda run: run.model(windows(0)[0]), "model.1.num_batches_tracked, random"),
        (_decay, "optimizer.param_groups.0.lr changed"),
        (lambda run: run.optimizer.zero_grad(), None),
        (lambda run: (_decay(run), run.ckpt.commit("later")), None),
        (lambda run: len(run.seen) == 3 and run.ckpt.roll_back("last"), None),
    ],
)
def test_what_the_body_of_a_loop_changes_after_step(keep, told, tail, words):
    run = keep(every=2)
    for _ in run.ckpt.steps(6):
        run.step()
        tail(run)
    found = [text for text in told() if not text.startswith("rolled back")]
    assert [text.startswith(words or "") for text in found] == [True] * (words is not None)
    assert all("the commit of step 2 lacks that" in text for text in found)


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (
            lambda run, _: list(DataLoader(range(3))),
            "random numbers of torch changed between step()",
        ),
        (lambda run, _: run[2].step(), "scheduler.last_epoch"),
        (
            lambda run, _: run[1].param_groups[0].update(lr=0.5),
            None,
        ),  # as the head of an epoch does
        (lambda run, epoch: torch.manual_seed(100 + epoch), None),
        (lambda run, _: run[0](torch.ones(2, 4)), None),  # the next step has begun
    ],
)
def test_what_a_loop_of_its_own_changes_before_the_next_batch(tmp_path, told, tail, words):
    model = nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer := _sgd(model), 1)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    data = DataLoader(torch.rand(8, 4), 4, shuffle=True)
    with Checkpointer(tmp_path, parts=parts, dataloader=data, every=2) as ckpt:
        for epoch in range(3):
            for _ in range(2):
                loss = model(ckpt.next_batch()).sum()
                loss.backward()
                optimizer.step()
                ckpt.step(loss=loss)
            tail((model, optimizer, scheduler), epoch)
    assert [text.startswith(words or "") for text in told()] == [True] * (words is not None)
    assert all("the next batch: the commit of step 2 lacks" in text for text in told())


def test_the_end_of_the_body_is_read_at_three_commits_alone(keep, monkeypatch):
    reads, read = [], TailWatch._read
    monkeypatch.setattr(TailWatch, "_read", lambda *args: reads.append(1) or read(*args))
    run = keep(every=2)
    for _ in run.ckpt.steps(20):
        run.step()
    assert len(reads) == 6


def _begin(**settings):
    model = make_net()
    return LiveRun({"model": model, "optimizer": torch.optim.SGD(model.parameters(), **settings)})


def test_settings_that_were_edited_in_the_script(told):
    state = capture_parts(_begin(lr=0.1, momentum=0.5).parts)
    new = _begin(lr=0.3, momentum=0.5)
    for _ in range(2):
        restore_parts(from_values(state), new.parts)
    (text,) = told()
    assert text.startswith("optimizer.param_groups.0.lr is 0.3 in the script, and was 0.1")
    assert new._optimizers[0].param_groups[0]["lr"] == 0.1
    # The next resume measures by the beginning of the run as well.
    restore_parts(from_values(capture_parts(new.parts)), _begin(lr=0.1, momentum=0.6).parts)
    assert "momentum is 0.6 in the script, and was 0.5" in told()[-1]
    assert len(told()) == 2


@pytest.mark.parametrize(
    ("first", "edited", "text"),
    [
        (
            {"gamma": 0.5},
            {"gamma": 0.9},
            "scheduler.gamma is 0.9 in the script, and 0.5 in the commit",
        ),
        ({"last_epoch": -1}, {}, None),
    ],
)
def test_a_scheduler_that_was_edited_in_the_script(told, first, edited, text):
    def run(more):
        model = make_net()
        optimizer = _sgd(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, **more)
        return LiveRun({"model": model, "optimizer": optimizer, "scheduler": scheduler})

    old, new = run(first), run(edited)
    for _ in range(3):
        old._optimizers[0].step()
        old._schedulers[0].step()
    for _ in range(2):
        restore_parts(from_values(capture_parts(old.parts)), new.parts)
    assert [line.split(":")[0] for line in told()] == ([text] if text else [])


def test_rates_that_schedulers_and_loops_change_are_no_edits(told):
    def run():
        model = make_net()
        optimizer = _sgd(model)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return LiveRun({"model": model, "optimizer": optimizer, "scheduler": scheduler})

    old, new = run(), run()
    for number in range(4):
        old._schedulers[0].step(number)
    old._optimizers[0].param_groups[0]["lr"] *= 0.5
    restore_parts(from_values(capture_parts(old.parts)), new.parts)
    assert new._optimizers[0].param_groups[0]["lr"] < 0.1
    assert told() == []


def test_a_cell_that_runs_again_goes_on_with_what_it_made_before(told):
    model = Growing()
    optimizer = torch.optim.SGD(model.first.parameters(), 0.1)
    objects = {"model": model, "optimizer": optimizer}
    state = capture_parts(LiveRun(objects).parts)
    state = from_values(state).load({})
    model(windows(0)[0])
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.add_param_group({"params": list(model.second.parameters())})
    restore_parts(from_values(state), LiveRun(objects).parts)
    assert (len(model.bank), len(optimizer.param_groups)) == (1, 1)
    assert told() == []


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "compiled" not in name])
@pytest.mark.filterwarnings("ignore")
def test_ordinary_loops_hear_nothing(told, name):
    run = SCENARIOS[name].build()
    live = LiveRun(run.parts)
    live.extensions.open(Host(live.objects, live.parts, Ranks(), RunLog()))
    batches = iter(run.loader) if run.iterates else None
    for number in range(3):
        if run.data is not None:
            batch = run.data(number)
        else:
            batch = live.next_batch() if batches is None else next(batches)
        loss = run.step(batch, lambda: None)
        assert list(live.doubt_step(loss)) == []
        live.capture({})
        live.complete_step(0, 0)
    live.remove()
    assert live.doubts + told() == []


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("kind", "passed", "drawn", "is_stray"),
    [
        (DataLoader, "none", "within", True),
        (DataLoader, "same", "by the run", False),
        (DataLoader, "another", "within", True),
        (DataLoader, "same", "begun before", True),
        (ConsistentDataLoader, "same", "within", False),
        (ConsistentDataLoader, "another", "within", True),
    ],
)
def test_a_loader_that_the_run_does_not_know(
    kind, passed, drawn, is_stray, workers, tmp_path, told
):
    loader, other = (kind(range(64), 1, num_workers=workers) for _ in range(2))
    source = other if passed == "another" else loader
    begun = iter(source) if drawn == "begun before" else None
    parts = {"dataloader": loader} if passed != "none" else {}
    with Checkpointer(tmp_path, model=nn.Linear(1, 1), parts=parts) as checkpointer:
        batches = iter(source) if drawn == "within" else begun
        for _ in range(8):
            checkpointer.next_batch() if batches is None else next(batches)
            if passed == "another":
                checkpointer.next_batch()
            checkpointer.step()
    assert told().count(STRAY_LOADER) == is_stray


class Feed:
    """Makes a loader for every pass, in the thread that draws or in one of its own."""

    def __init__(self, *, in_thread):
        self.loader = DataLoader(torch.arange(8.0), shuffle=True) if in_thread else None

    def __iter__(self):
        if self.loader is None:
            yield from DataLoader(torch.arange(8.0), shuffle=True)
            return
        batches = queue.Queue(2)
        thread = threading.Thread(target=lambda: [*map(batches.put, self.loader)], daemon=True)
        thread.start()
        for _ in range(8):
            yield batches.get()
        thread.join()


@pytest.mark.parametrize("in_thread", [True, False])
def test_loaders_that_an_iterable_of_the_user_draws_from(in_thread, tmp_path, told):
    data = Feed(in_thread=in_thread)
    with Checkpointer(tmp_path, model=nn.Linear(1, 1), data=data, every=None) as checkpointer:
        for _ in range(8):
            checkpointer.next_batch()
            checkpointer.step()
    assert [THREADED.format("data")] * in_thread == [one for one in told() if "optim" not in one]


def test_a_loader_that_rests_or_validates_is_not(tmp_path, told):
    loader = DataLoader(torch.arange(8.0))
    held = iter(loader)
    next(held)
    with Checkpointer(tmp_path, model=nn.Linear(1, 1)) as checkpointer:
        for _ in range(4):
            checkpointer.step()
            assert len(list(loader)) == 8
    assert len(list(held)) == 7
    assert STRAY_LOADER not in told()
