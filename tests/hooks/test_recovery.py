"""Alarms and what is done about them, each compared with a plain run that did the same by itself."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from mvc import ConflictError, NotFoundError, Repo
from mvc_hooks import DivergedError, Ring, Spike, both, lr_scale, rollback, skip_step, stop
from support.cli import IDENTITY, Shell
from support.damage import flip
from support.scenarios.basics import loss_of, make_net, make_step, simple, windows
from support.scenarios.schedulers import SCHEDULERS
from support.training_runs import digest, look

pytestmark = pytest.mark.torch

_NAN = float("nan")


def _back(**options):
    return [rollback(**{"to": "last", "min_steps_back": 1, "skip_batches": 0, **options}), stop(3)]


def _indexes(run):
    return [index for _, index, _ in run.seen]


@pytest.mark.parametrize("ring", [None, Ring(every=1, keep=4)])
def test_without_left_out_batches_the_steps_are_taken_again(keep, plain, ring):
    run = keep(every=3, ladder=_back(), ring=ring).steps(5)
    report = run.step(loss=_NAN)
    to = 3 if ring is None else 5
    assert (report.from_step, report.onset_step, report.to_step) == (6, 6, to)
    assert (report.to_commit is None) == (ring is not None)
    assert report.skipped == "none"
    run.steps(8 - to)
    measure = plain(8)
    assert [one for one in run.seen[6:] if one not in measure.seen] == []
    assert run.now() == measure.now()


def test_a_rollback_into_the_ring_commits_what_it_went_on_from(keep, plain, tmp_path):
    run = keep(every=4, ladder=_back(), ring=Ring(every=1, keep=3)).steps(6)
    run.step(loss=_NAN)
    assert run.ckpt.step_count == 6
    run.steps(3)
    run.ckpt.close()
    repo = Repo.open(tmp_path / "run")
    assert [one.annotations.step for one in repo.log("main")] == [8, 4, 0]
    assert keep(seed=8).steps(1).now() == plain(9).now()


def test_fewer_batches_than_steps_are_left_out_around_the_onset(keep):
    run = keep(every=4, ladder=_back(skip_batches=2)).steps(6)
    report = run.step(loss=_NAN)  # its batch, the seventh, has index 6
    assert (report.to_step, report.skipped) == (4, "6-7")
    run.steps(4)
    assert _indexes(run) == [*range(7), 4, 7, 8, 9]


# Which batches come.


def _build_with(kind):
    def build():
        model = make_net()
        loader = kind(range(200), shuffle=True)
        run = simple(model, torch.optim.AdamW(model.parameters(), 0.01), dataloader=loader)
        run.loader = loader
        return run

    return build


_BUILDS = {
    "by index": None,
    "next_batch": _build_with(DataLoader),
    "own iterator": _build_with(StatefulDataLoader),
}


def _begin(keep, drawn, **options):
    run = keep(build=_BUILDS[drawn], **options)
    if drawn == "next_batch":
        run.run.data = lambda _: windows(int(run.ckpt.next_batch()))
    if drawn == "own iterator":
        batches = iter(run.run.loader)
        run.run.data = lambda _: windows(int(next(batches)))
    return run


def _retrace(plain, places, drawn="by index"):
    """Train plainly on the batches at these places only, and draw the others too."""
    run = plain(0, build=_BUILDS[drawn])
    batches = itertools.count() if run.run.loader is None else iter(run.run.loader)
    for place, batch in zip(range(max(places) + 1), batches, strict=False):
        if place in places:
            run.run.step(windows(int(batch)), lambda: None)
    return run


def _left_out(root, revision="main"):
    return Repo.open(root).load_state(revision)["run"]["left_out"]


@pytest.mark.parametrize("drawn", ["by index", "next_batch"])
def test_what_was_left_out_once_stays_so(keep, plain, tmp_path, drawn):
    run = _begin(keep, drawn, every=4, ladder=_back(skip_batches=2)).steps(6)
    assert run.step(loss=_NAN).skipped == "6-7"
    run.steps(2)
    report = run.step(loss=_NAN)  # the fifth and the eighth batch came before its ninth
    assert (report.to_step, report.skipped) == (4, "8-9")
    run.steps(1)
    run.ckpt.commit("before the gap")
    run.ckpt.close()
    assert _left_out(tmp_path / "run") == [[6, 9]]
    again = _begin(keep, drawn, seed=8).steps(4)
    assert again.now() == _retrace(plain, [0, 1, 2, 3, 4, 9, 10, 11, 12], drawn).now()


@pytest.mark.parametrize("drawn", ["by index", "next_batch"])
def test_more_batches_than_steps_go_on_from_where_the_data_is(keep, plain, drawn):
    run = _begin(keep, drawn, every=4, ladder=_back(skip_batches=5)).steps(6)
    report = run.step(loss=_NAN)
    assert (report.to_step, report.skipped, run.ckpt.batch_index) == (4, "5-9", 9)
    run.steps(4)
    assert run.now() == _retrace(plain, [*range(4), *range(9, 13)], drawn).now()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata still calls it
def test_an_iterator_of_the_users_goes_on_where_it_is(keep, plain):
    ladder = [*_back()[:1], *_back(skip_batches=9)]
    run = _begin(keep, "own iterator", every=4, ladder=ladder).steps(6)
    reports = [run.step(loss=_NAN)]
    run.steps(2)
    reports.append(run.step(loss=_NAN))
    assert [one.to_step for one in reports] == [4, 4]
    assert [one.skipped for one in reports] == ["5-7", "5-10"], "nobody can draw for the user"
    run.steps(4)
    run.ckpt.close()
    again = _begin(keep, "own iterator", seed=8).steps(2)
    places = [*range(4), *range(10, 16)]
    assert again.now() == _retrace(plain, places, "own iterator").now()


# Where to, and what the repository says of it.


def _subjects(repo, revision):
    return [one.info.subject for one in repo.log(revision)]


def _same(state, live):
    return all(torch.equal(state[name], tensor) for name, tensor in live.items())


def _diverged(repo):
    return [one.name for one in repo.branches.list() if one.name.startswith("diverged/")]


@pytest.mark.parametrize("keeps", [True, False])
def test_what_is_left_behind_and_what_is_said_of_it(keep, plain, tmp_path, keeps):
    ladder = _back(min_steps_back=3, skip_batches=1)
    run = keep(ladder=ladder, keep_diverged=keeps).steps(3)
    run.ckpt.roll_back("last", "by way of trial")
    run.steps(3)
    report = run.step(loss=_NAN)
    assert (report.to_step, report.diverged_branch) == (2, "diverged/main/6")
    run.steps(2)
    run.ckpt.close()
    repo = Repo.open(tmp_path / "run")
    assert _diverged(repo) == (["diverged/main/3"] if keeps else []) + ["diverged/main/6"]
    subjects = _subjects(repo, "diverged/main/6")
    assert subjects[-3:] == ["step 4", "step 2", "step 0"]
    assert subjects[:-3] == ([f"diverged at step 6: {report.reason}"] if keeps else [])
    tip = repo.show("diverged/main/6~1" if keeps else "diverged/main/6")
    assert (tip.diverged.at_step, tip.diverged.target) == (6, report.to_commit)
    assert tip.diverged.reason == report.reason
    if keeps:
        kept = repo.load_state("diverged/main/6")["model"]
        assert _same(kept, _retrace(plain, range(6)).model.state_dict())
    facts = repo.show("main").annotations.meta
    assert facts["rolled_back_from"] == "step 6"
    assert facts["rolled_back_to"] == "step 2"
    assert facts["rolled_back_because"] == report.reason
    assert facts["skipped_batches"] == report.skipped == "6-6"
    assert repo.runs.read().rollbacks[0].skipped_batches == report.skipped_count == 1
    moves = [one.message for one in repo.reflog("refs/heads/main")]
    assert f"rollback: to {report.to_commit[:10]} (step 2): {report.reason}" in moves


@pytest.mark.parametrize(
    ("healthy_after", "min_steps_back", "to_step"), [(3, 1, 2), (1, 4, 2), (2, 3, 4)]
)
def test_only_healthy_commits_that_are_far_enough(
    keep, plain, tmp_path, healthy_after, min_steps_back, to_step
):
    ladder = _back(to="healthy", min_steps_back=min_steps_back)
    run = keep(ladder=ladder, healthy_after=healthy_after).steps(6)
    assert run.step(loss=_NAN).to_step == to_step
    assert run.steps(7 - to_step).now() == plain(7).now()
    repo = Repo.open(tmp_path / "run")
    assert repo.show(f"main@{to_step}").is_healthy


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"every": None, "ladder": _back()}, "no commit of step 4"),
        ({"every": None, "ladder": _back(to="healthy")}, "no healthy commit of step 4"),
    ],
)
def test_nothing_to_go_back_to(keep, tmp_path, options, why):
    run = keep(**options)
    with pytest.raises(DivergedError, match=why), run.ckpt:
        run.steps(4)
        run.step(loss=_NAN)
    repo = Repo.open(tmp_path / "run")
    assert not _diverged(repo)


_CALM = [2.5, 2.4, 2.6, 2.45, 2.55] * 14


@pytest.mark.parametrize(("every", "to_step"), [(1000, 0), (30, 0), (None, None)])
def test_a_spike_goes_back_to_the_start_or_is_only_a_warning(keep, plain, caplog, every, to_step):
    run = keep(every=every, ladder=rollback(skip_batches=0))
    for loss in _CALM:
        assert run.step(loss=loss) is None
    report = run.step(loss=9.0)
    alarm = next(one.message for one in caplog.records if one.message.startswith("alarm"))
    assert alarm.endswith("; if the run is healthy: " + Spike.advice)
    if to_step is None:
        assert report is None
        assert "only a warning: there is no healthy commit of step 0 or earlier" in caplog.text
        assert run.steps(2).now() == plain(73).now()
        with pytest.raises(DivergedError, match=r"nan .*ladder step 1 of 2"):
            run.step(loss=_NAN)  # the warning took no turn of the ladder
    else:
        assert report.to_step == to_step
        assert run.steps(3).now() == plain(3).now()


def test_a_run_that_an_alarm_ends_says_how_to_quiet_it(keep):
    run = keep(ladder=stop(0))
    for loss in _CALM:
        run.step(loss=loss)
    with pytest.raises(DivergedError, match="ladder step 1 of 1") as caught:
        run.step(loss=9.0)
    assert caught.value.hint.endswith("; if the run was healthy: " + Spike.advice)


def _grow(run):
    """Add a module that nothing uses, so that the steps stay those of the plain run."""
    run.model[0].late = torch.nn.LayerNorm(2)
    run.optimizer.add_param_group({"params": list(run.model[0].late.parameters())})


def test_a_module_added_on_the_way_makes_a_spike_only_a_warning(keep, plain, caplog):
    run = keep(every=30, ladder=rollback(skip_batches=0))
    for loss in _CALM:
        run.step(loss=loss)
    _grow(run)
    assert run.step(loss=9.0) is None
    assert "only a warning: the run does not fit the stored state: model." in caplog.text
    now, then = run.steps(2).model.state_dict(), plain(73).model.state_dict()
    assert all(torch.equal(now[name], then[name]) for name in then)


def test_a_module_added_on_the_way_and_a_nan(keep, tmp_path):
    """The run ends, says why and what to do, and its state is on a branch."""
    run = keep(every=4, ladder=_back()).steps(5)
    _grow(run)
    run.step()
    with pytest.raises(DivergedError, match="is not in the stored state") as caught, run.ckpt:
        run.step(loss=_NAN)
    assert "start the program again to go on from the last commit" in caught.value.hint
    repo = Repo.open(tmp_path / "run")
    assert _subjects(repo, "main") == ["step 4", "step 0"]
    (arm,) = _diverged(repo)
    held = repo.load_state(arm)
    assert torch.equal(held["model"]["0.weight"], run.model[0].weight)
    assert digest(held["rng"]["torch"]) == digest(torch.get_rng_state())


def test_three_rollbacks_and_no_more(keep, plain, tmp_path):
    run = keep(ladder=_back()).steps(4)
    with pytest.raises(DivergedError, match="after 3 rollbacks"), run.ckpt:
        for _ in range(4):
            run.step(loss=_NAN)
    assert [report.from_step for report in run.ckpt.rollbacks] == [5, 5, 5]
    repo = Repo.open(tmp_path / "run")
    assert _subjects(repo, "main") == ["step 4", "step 2", "step 0"]
    arms = ["diverged/main/5", "diverged/main/5-2", "diverged/main/5-3"]
    assert _diverged(repo) == arms
    for arm in arms:
        assert _subjects(repo, arm)[0].startswith("diverged at step 5: not finite: loss is nan")
    assert keep(seed=8).steps(2).now() == plain(6).now()


def test_all_commits_damaged(keep, tmp_path):
    run = keep(ladder=_back()).steps(4)
    run.ckpt.wait()
    for pack in (tmp_path / "run" / ".mvc").rglob("*.pack"):
        flip(pack)
    with pytest.raises(DivergedError, match=r"go back to: step 4: .*; step 2: "):
        run.step(loss=_NAN)


def test_released_commits_are_passed_over(keep, plain, tmp_path):
    run = keep(ladder=_back(min_steps_back=3)).steps(8)
    run.ckpt.wait()
    repo = Repo.open(tmp_path / "run")
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_every=4))
    repo.upkeep.gc(grace_s=0)
    assert run.step(loss=_NAN).to_step == 4, "that of step 6 was released"
    assert run.steps(5).now() == plain(9).now()


def test_a_failure_on_the_way_back_commits_nothing_that_diverged(keep, tmp_path):
    run = keep(ladder=_back(to="no-such-tag"))
    with pytest.raises(NotFoundError, match="no-such-tag"), run.ckpt:
        run.steps(4)
        run.step(loss=_NAN)
    assert _subjects(Repo.open(tmp_path / "run"), "main") == ["step 4", "step 2", "step 0"]


# By hand.


def test_by_hand_in_python(keep, plain, tmp_path):
    run = keep().steps(5)
    assert run.ckpt.roll_back("last").to_step == 4
    assert run.steps(2).now() == plain(6).now()
    report = run.ckpt.roll_back("main@2", "a look at it")
    assert (report.to_step, report.reason) == (2, "a look at it")
    assert run.steps(5).now() == plain(7).now()
    Repo.open(tmp_path / "run").branches.create("elsewhere", "diverged/main/6")
    before = run.now()
    for revision, error in (("no-such", NotFoundError), ("elsewhere", ConflictError)):
        with pytest.raises(error):
            run.ckpt.roll_back(revision)
        assert run.ckpt.step_count == 7
        assert run.now() == before
    run.steps(1)
    run.ckpt.close()
    assert keep(seed=8).steps(1).now() == plain(9).now()


def test_by_hand_at_the_command_line(keep, plain, tmp_path):
    keep().steps(6).ckpt.close()
    shell = Shell(tmp_path / "run", IDENTITY)
    shell.ok("rollback", "--step", "4", "-m", "better so")
    assert "better so" in shell.ok("log", "--graph", "--all").out
    again = keep(seed=8)
    assert again.ckpt.step_count == 4
    assert again.steps(4).now() == plain(8).now()


# Learning rates.


def _scale(run, factor):
    """Do by hand what lr_scale() does to a run of ``Kept``."""
    group, scheduler = run.optimizer.param_groups[0], run.run.parts["scheduler"]
    group["lr"] *= factor
    group["initial_lr"] *= factor
    scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]
    scheduler._last_lr = [rate * factor for rate in scheduler._last_lr]
    return run


def test_the_rate_is_halved_again_and_again(keep, plain):
    run = keep(ladder=[lr_scale(0.5, limit=2), *_back()]).steps(2)
    assert [run.step(loss=_NAN) for _ in range(2)] == [None, None]
    run.steps(2)
    assert run.now() == _scale(_scale(plain(3), 0.5).steps(1), 0.5).steps(2).now()


def test_the_rate_stays_halved_through_rollbacks_and_resumes(keep, plain):
    ladder = [both(rollback(to="last", min_steps_back=1, skip_batches=0), lr_scale(0.5)), stop(3)]
    run = keep(every=3, ladder=ladder).steps(4)
    for factor in (0.5, 0.25):
        assert run.step(loss=_NAN).to_step == 3
        assert run.now() == _scale(plain(3), factor).now()
        run.steps(1)
    run.steps(2)
    run.ckpt.close()
    again = keep(every=3, ladder=ladder, seed=8).steps(1)
    assert again.now() == _scale(plain(3), 0.25).steps(4).now()
    assert again.step(loss=_NAN).to_step == 6
    assert again.now() == _scale(_scale(plain(3), 0.25).steps(3), 0.5).now()
    again.ckpt.roll_back("main@3")
    assert again.now() == _scale(plain(3), 0.125).now()


_RATES_OF = {
    **{name: make for name, make in SCHEDULERS.items() if name != "plateau"},
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=6),
}


def test_every_scheduler_goes_on_with_half_of_what_it_would_say(keep):
    """All of them in one run; the rates of a rate are compared, since halves are exact or nearly."""

    def build():
        model = make_net(norm=False)
        several = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for _ in _RATES_OF]
        schedulers = [make(one) for make, one in zip(_RATES_OF.values(), several, strict=True)]
        run = simple(model, several[0])
        run.parts.update(optimizer=several, scheduler=schedulers)
        run.step = make_step(model, several, schedulers=schedulers)
        return run

    def train(run, steps):
        rates = []
        for _ in range(steps):
            run.steps(1)
            rates.append([one.param_groups[0]["lr"] for one in run.optimizer])
        return rates

    whole, half = (keep(name, every=99, ladder=[lr_scale(), stop(0)], build=build) for name in "ab")
    train(whole, 4), train(half, 3)
    half.step(loss=_NAN)
    for one, other in zip(train(whole, 12), train(half, 12), strict=True):
        assert [rate / 2 for rate in one] == pytest.approx(other, rel=1e-12)


# Steps that are skipped.


def _sgd():
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    return simple(model, optimizer)


def _check(run, loss):
    """Take a step whose loss is told before the optimizer's step; return what both answered."""
    said = []
    report = run.step(between=lambda: said.append(run.ckpt.check(loss=loss)))
    return said[0], report


@pytest.mark.parametrize("build", [None, _sgd])
def test_a_skipped_step_is_none(keep, plain, build):
    run = keep(ladder=[skip_step(), stop()], build=build).steps(3)
    before = digest([look(run.optimizer)["state"], list(run.model.parameters())])
    assert _check(run, _NAN) == (False, None)
    assert digest([look(run.optimizer)["state"], list(run.model.parameters())]) == before
    assert _check(run, 1.0) == (True, None)
    now = run.steps(1).now()
    measure = plain(3, build=build)
    measure.optimizer.zero_grad()
    loss_of(measure.model, measure.run.data(3)).backward()
    if build is None:
        measure.run.parts["scheduler"].step()
    measure.seen.append(None)
    assert measure.steps(2).now() == now


def test_three_skips_and_then_the_next_rung(keep, plain):
    run = keep(every=3, ladder=[skip_step(3), *_back()]).steps(4)
    assert [_check(run, _NAN) for _ in range(3)] == [(False, None)] * 3
    can_go_on, report = _check(run, _NAN)
    assert can_go_on, "a step that is rolled back need not be skipped"
    assert (report.onset_step, report.from_step, report.to_step) == (5, 8, 3)
    assert run.steps(3).now() == plain(6).now()


def test_a_step_that_is_done_cannot_be_skipped(keep, plain):
    run = keep(ladder=[skip_step(3), *_back()]).steps(2)
    assert run.step(loss=_NAN).to_step == 2
    assert run.steps(2).now() == plain(4).now()


# Detectors of the user's.


def _too_high(history):
    return "higher than a kite" if history.latest.loss > 50 else None


def _too_low(history):
    return history.latest.loss < -50


def test_functions_are_detectors(keep, plain):
    run = keep(detectors=[_too_high, _too_low], ladder=_back()).steps(2)
    assert "_too_high: higher than a kite (" in run.step(loss=99.0).reason
    assert "_too_low: _too_low raised an alarm (" in run.step(loss=-99.0).reason
    assert run.steps(1).now() == plain(3).now()


def test_two_rollbacks_before_a_commit_are_both_told(keep, tmp_path):
    run = keep(every=6, ladder=_back(skip_batches=2)).steps(8)
    first = run.step(loss=_NAN)
    second = run.steps(2).step(loss=_NAN)
    assert (first.to_step, second.to_step) == (6, 6)
    assert first.skipped != second.skipped
    run.steps(6)
    run.ckpt.close()
    facts = Repo.open(tmp_path / "run").show("main@12").annotations.meta
    assert facts["skipped_batches"] == f"{first.skipped}, {second.skipped}"
