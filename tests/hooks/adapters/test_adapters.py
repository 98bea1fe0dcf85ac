"""Real fits of real libraries: with the adapter, stopped, and never stopped; ``test_loops`` kills them."""

import signal

import pytest
import torch

from mvc import ConflictError, Repo, UsageError
from mvc_hooks import DivergedError, rollback, skip_step, stop
from support.bounds import rest_nightly, rest_slow
from support.fits import FITS, fit_lightning, fit_transformers, make_average, same

pytestmark = [
    pytest.mark.torch,
    # Lightning advises on workers, logging intervals and its own use of torch's deprecated names.
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.`.*"),
    # Trainer and Accelerate do the same about their own names.
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:accelerate"),
    # Both step a scheduler in front of the first optimizer step that a scaler or accumulation holds.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
]

KINDS = list(FITS)


@pytest.fixture(scope="module")
def plain():
    """Fits without the adapter, made once: (kind, accumulate, total) → run."""
    made = {}

    def get(kind, accumulate=1, total=26):
        key = kind, accumulate, total
        if key not in made:
            made[key] = FITS[kind](None, accumulate=accumulate, total=total)
        return made[key]

    return get


@pytest.mark.parametrize(("accumulate", "stops"), rest_nightly([(3, (7, 8, 14)), (1, (7, 11, 26))]))
@pytest.mark.parametrize("kind", KINDS)
def test_stopped_and_resumed_is_as_never_stopped(kind, accumulate, stops, plain, tmp_path):
    """Stops in the middle of an epoch and at an end of one: 11 batches, 4 steps of up to 3."""
    through = plain(kind, accumulate, stops[-1])
    losses, seen = [], []
    for until in stops:
        run = FITS[kind](tmp_path, until=until, total=stops[-1], accumulate=accumulate, every=10)
        losses += run.losses
        seen += getattr(run, "seen", ())
        assert run.steps == until
        assert run.checkpointer.is_closed
    assert losses == through.losses
    assert same(run, through)
    assert run.log == through.log
    if kind == "lightning":
        assert seen == through.seen
        for one in (run, through):
            one.counters = (
                one.trainer.current_epoch,
                one.trainer.fit_loop.epoch_loop._batches_that_stepped,
            )
        assert run.counters == through.counters
    assert run.checkpointer.environment_changes == []
    steps = [entry.annotations.step for entry in Repo.open(tmp_path).log("main")]
    assert steps == sorted({*stops, *range(0, stops[-1], 10)}, reverse=True)


@pytest.mark.parametrize("kind", rest_slow(KINDS))
def test_an_exception_loses_what_was_not_committed_only(kind, plain, tmp_path):
    with pytest.raises(RuntimeError, match="on fire"):
        FITS[kind](tmp_path, fail_at=18, every=8)
    assert [entry.annotations.step for entry in Repo.open(tmp_path).log("main")] == [16, 8, 0]
    run = FITS[kind](tmp_path, every=20)
    assert len(run.losses) == 26 - 16
    assert run.losses == plain(kind).losses[-len(run.losses) :]
    assert same(run, plain(kind))


def test_an_exception_leaves_nothing_on_the_trainer_of_lightning(tmp_path):
    from lightning.pytorch import Callback

    class Keep(Callback):
        def setup(self, trainer, *_, **__):
            self.trainer = trainer

    keep = Keep()
    with pytest.raises(RuntimeError, match="on fire"):
        fit_lightning(tmp_path, fail_at=4, callbacks=[keep])
    assert not {"process_dataloader", "remove_checkpoint"} & vars(keep.trainer.strategy).keys()
    assert "dataloader" not in vars(keep.trainer.fit_loop._data_source)


@pytest.mark.parametrize(
    ("kind", "number"),
    rest_slow([(kind, signal.SIGINT) for kind in KINDS] + [("lightning", signal.SIGTERM)]),
)
def test_a_signal_loses_nothing(kind, number, plain, tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        # Lightning turns both into an exit.
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            FITS[kind](tmp_path, signal_at=(13, number), total=20)
    finally:
        # Lightning leaves some handlers of its own, or of a checkpointer that is closed, behind.
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert [entry.annotations.step for entry in Repo.open(tmp_path).log("main")] == [13, 0]
    run = FITS[kind](tmp_path, total=20)
    assert run.losses == plain(kind, total=20).losses[13:]
    assert same(run, plain(kind, total=20))


@pytest.mark.parametrize("kind", rest_slow(KINDS))
def test_a_nan_rolls_back_and_the_fit_goes_on_with_other_batches(kind, plain, tmp_path):
    ladder = [rollback(min_steps_back=2, skip_batches=20), stop(after=2)]
    run = FITS[kind](tmp_path, spike=(19,), every=6, healthy_after=5, ladder=ladder)
    (report,) = run.checkpointer.rollbacks
    assert (report.from_step, report.to_step) == (19, 12)
    assert run.steps == 26
    assert len(run.losses) == 19 + 26 - 12
    assert all(torch.isfinite(value).all() for value in run.state.values())
    repo = Repo.open(tmp_path)
    assert report.diverged_branch == "diverged/main/19"
    assert [e.annotations.step for e in repo.log("diverged/main/19")][:3] == [19, 18, 12]
    assert [e.annotations.step for e in repo.log("main")][:3] == [26, 24, 18]
    through = plain(kind)
    assert run.losses[:19] == through.losses[:19]
    assert not same(run, through)


@pytest.mark.parametrize("kind", ["lightning", "transformers"])
def test_a_step_is_skipped_before_it_is_taken(kind, plain, tmp_path):
    run = FITS[kind](tmp_path, spike=(10,), every=20, ladder=[skip_step(), stop()])
    assert run.steps == 26
    assert run.checkpointer.rollbacks == []
    assert all(torch.isfinite(value).all() for value in run.state.values())
    assert run.losses[:10] == plain(kind).losses[:10]
    assert run.losses[10:] != plain(kind).losses[10:]


@pytest.mark.parametrize("kind", rest_slow(KINDS))
def test_the_ladder_ends(kind, tmp_path):
    ladder = [rollback(to="last", min_steps_back=1, skip_batches=0), stop(after=1)]
    with pytest.raises(DivergedError):
        FITS[kind](tmp_path, spike=range(10, 99), every=4, ladder=ladder)
    assert Repo.open(tmp_path).resolve("main@8")


def test_epochs_of_lightning_continue_with_more_of_them(tmp_path):
    through = fit_lightning(None, epochs=4)
    first = fit_lightning(tmp_path, epochs=2)
    second = fit_lightning(tmp_path, epochs=4)
    assert first.losses + second.losses == through.losses
    assert first.seen + second.seen == through.seen
    assert same(second, through)
    assert second.module.batches == through.module.batches == 44


def test_a_fit_that_early_stopping_ended_gives_its_average_back(tmp_path):
    from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging

    def fit(patience):
        early = EarlyStopping("held_out", 1e9, patience, check_on_train_epoch_end=False)
        return fit_lightning(tmp_path, total=40, callbacks=[early, EMAWeightAveraging(decay=0.8)])

    first, again = fit(2), fit(2)
    assert (first.steps, again.losses) == (15, [])
    assert same(first, again)
    for name in ("loss_step", "held_out"):  # the mean of the epoch that was cut is not
        assert first.trainer.callback_metrics[name] == again.trainer.callback_metrics[name]
    assert first.trainer.current_epoch == again.trainer.current_epoch
    assert fit(4).steps == 26


@pytest.mark.filterwarnings("ignore:.*save_last_checkpoint.*")
def test_a_run_of_the_trainer_that_early_stopping_ended_gives_its_best_model_back(tmp_path, caplog):
    from transformers import EarlyStoppingCallback

    settings = {
        "max_steps": -1, "num_train_epochs": 5, "eval_strategy": "epoch", "save_strategy": "epoch",
        "load_best_model_at_end": True, "output_dir": str(tmp_path / "own"),
    }  # fmt: skip

    def fit(patience):
        early = EarlyStoppingCallback(patience, early_stopping_threshold=1e9)
        return fit_transformers(tmp_path / "run", settings=settings, callbacks=[early])

    first, again = fit(1), fit(1)
    assert (first.steps, again.losses) == (22, [])
    assert same(first, again)
    assert (again.log, again.train_loss) == (first.log, first.train_loss)
    assert again.trainer.state.best_metric == first.trainer.state.best_metric
    assert fit(2).steps == 33
    assert "changed between step() and" not in caplog.text, "what the library does comes back"


def test_early_stopping_of_lightning_remembers_how_long_it_waits(tmp_path):
    from lightning.pytorch.callbacks import EarlyStopping, Timer

    first, second = (
        EarlyStopping("held_out", patience=50, min_delta=1e9, check_on_train_epoch_end=False)
        for _ in range(2)
    )
    fit_lightning(tmp_path, until=13, callbacks=[first, Timer()])
    assert first.wait_count > 0
    fit_lightning(tmp_path, until=15, callbacks=[second, Timer()])
    assert second.wait_count == first.wait_count + 1


def test_callbacks_of_the_trainer_keep_their_state(tmp_path):
    import transformers
    from transformers.trainer_callback import ExportableState

    class Counter(transformers.TrainerCallback, ExportableState):
        def __init__(self):
            self.count = 0

        def state(self):
            return {"args": {}, "attributes": {"count": self.count}}

        def on_step_end(self, args, state, control, **_):
            self.count += 1

    fit_transformers(tmp_path, until=7, callbacks=[Counter()])
    second = Counter()
    fit_transformers(tmp_path, until=9, callbacks=[second])
    assert second.count == 9


def test_a_commit_that_comes_home_while_the_trainer_begins_is_gone_on_from(plain, tmp_path):
    """As from the writer of a killed run, which ends its work after the run."""
    import transformers

    class Late(transformers.TrainerCallback):
        losses = ()

        def on_train_begin(self, args, state, control, **_):
            if not self.losses:
                self.losses = fit_transformers(tmp_path, until=13).losses

    first, late = fit_transformers(tmp_path, until=7), Late()
    second = fit_transformers(tmp_path, callbacks=[late])
    assert first.losses + late.losses + second.losses == plain("transformers").losses
    assert same(second, plain("transformers"))


def test_a_finished_run_of_the_trainer_gives_its_model_back(plain, tmp_path):
    """In the middle of an epoch, where the Trainer by itself takes one more step."""
    first = fit_transformers(tmp_path)
    again = fit_transformers(tmp_path)
    assert (again.losses, again.steps) == ([], 26)
    assert same(first, again)
    assert (again.log, again.train_loss) == (first.log, plain("transformers").train_loss)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("lightning", "accumulate_grad_batches"), ("transformers", "gradient_accumulation_steps")],
)
def test_a_setting_that_was_edited_is_said(kind, name, tmp_path):
    FITS[kind](tmp_path, total=2)
    run = FITS[kind](tmp_path, total=2, accumulate=2)
    assert run.checkpointer.environment_changes == [(f"data.settings.{name}", "1", "2")]


def test_values_of_callbacks_that_no_commit_holds_are_named(tmp_path, caplog):
    import lightning.pytorch as pl
    import transformers

    class Shadow:
        shadow = ()

        def on_step_end(self, args, state, control, model=None, **_):
            self.shadow = [param.detach().clone() for param in model.parameters()]

        def on_train_batch_end(self, trainer, module, *_):
            self.shadow = [param.detach().clone() for param in module.parameters()]

    class Counter:
        count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    class Counts:
        def __init__(self, net):
            super().__init__(net)
            self.counter = Counter()

        def training_step(self, batch, index):
            self.counter.count += 1
            return super().training_step(batch, index)

    one = type("One", (Shadow, transformers.TrainerCallback), {})()
    other = type("Other", (Shadow, pl.Callback), {})()
    with caplog.at_level("INFO", "mvc_hooks"):
        fit_transformers(tmp_path / "one", total=4, callbacks=[one])
        fit_lightning(tmp_path / "other", total=4, callbacks=[other], mixins=[Counts])
    assert "trainer.One.shadow (list, changes between steps)" in caplog.text
    assert "lightning.Other.shadow (list, changes between steps)" in caplog.text
    assert "model.counter" not in caplog.text
    run = fit_lightning(tmp_path / "other", total=6, mixins=[Counts])
    assert run.module.counter.count == 6


def test_an_average_that_begins_late_is_in_no_earlier_commit(tmp_path):
    import transformers

    class Late(transformers.TrainerCallback):
        ema = None

        def on_step_end(self, args, state, control, model=None, **_):
            if state.global_step == 9:
                self.ema = make_average(model)
            if self.ema is not None:
                self.ema.update_parameters(model)

    options = {"every": 4, "ladder": [rollback(to="last", min_steps_back=3)]}
    with pytest.raises(ConflictError, match=r"Late\.ema was made after the commit"):
        fit_transformers(tmp_path, spike=(11,), callbacks=[Late()], **options)
    fit_transformers(tmp_path, until=15, callbacks=[Late()], every=4)
    with pytest.raises(ConflictError, match=r"the commit has Late\.ema, which does not exist yet"):
        fit_transformers(tmp_path, callbacks=[Late()])


def test_a_rollback_into_an_epoch_that_accumulates_less(tmp_path):
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    def fit(folder, **options):
        schedule = GradientAccumulationScheduler({0: 1, 1: 2})
        return fit_lightning(folder, total=20, callbacks=[schedule], **options)

    ladder = [rollback(to="last", min_steps_back=4, skip_batches=0), stop(after=2)]
    run = fit(tmp_path, spike=(13,), every=8, ladder=ladder)
    assert [report.to_step for report in run.checkpointer.rollbacks] == [8]
    assert same(run, fit(None))


def test_a_run_that_only_tries_the_program_commits_nothing(plain, tmp_path):
    fit_lightning(tmp_path, settings={"fast_dev_run": 2})
    assert not list(tmp_path.iterdir())
    assert same(fit_lightning(tmp_path), plain("lightning"))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_the_order_of_accelerate_that_is_drawn_before_the_run_is_refused(tmp_path):
    from accelerate import Accelerator, DataLoaderConfiguration

    from mvc_hooks.adapters.accelerate import make_checkpointer

    settings = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=settings)
    accelerator.prepare(torch.nn.Linear(1, 1), torch.utils.data.DataLoader(range(8)))
    with pytest.raises(UsageError, match="use_stateful_dataloader draws the order"):
        make_checkpointer(accelerator, tmp_path)


def test_a_search_before_the_fit_leaves_it_exact(tmp_path):
    from lightning.pytorch.callbacks import LearningRateFinder

    class WithRate:
        lr = 1e-2

    def fit(folder, **options):
        search = LearningRateFinder(num_training_steps=5)
        return fit_lightning(folder, callbacks=[search], mixins=[WithRate], total=14, **options)

    through = fit(None)
    first = fit(tmp_path, until=7, every=100)
    second = fit(tmp_path)
    assert (first.steps, second.steps) == (7, 14)
    assert second.losses[-7:] == through.losses[-7:]
    assert same(second, through)


def test_what_accelerate_prepares_later_is_refused(tmp_path):
    from accelerate import Accelerator

    from mvc_hooks.adapters.accelerate import make_checkpointer

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    with pytest.raises(UsageError, match="got optimizers after make_checkpointer"):
        with make_checkpointer(accelerator, tmp_path, every=1) as checkpointer:
            accelerator.prepare(torch.optim.SGD(model.parameters(), 0.1))
            checkpointer.step(loss=1.0)


def test_accelerate_does_not_load_over_a_run(tmp_path):
    from accelerate import Accelerator

    from mvc_hooks.adapters.accelerate import make_checkpointer

    accelerator = Accelerator(cpu=True)
    accelerator.prepare(torch.nn.Linear(2, 2))
    accelerator.save_state(tmp_path / "own")
    with make_checkpointer(accelerator, tmp_path / "run"):
        with pytest.raises(UsageError, match="load_state would replace the state of a run"):
            accelerator.load_state(tmp_path / "own")
    accelerator.load_state(tmp_path / "own")


def test_what_says_twice_where_to_resume_from_is_refused(tmp_path):
    import transformers

    from mvc_hooks.adapters import lightning
    from mvc_hooks.adapters.transformers import MvcCallback

    run = fit_transformers(None, total=2)
    with pytest.raises(UsageError, match="resume_from_checkpoint"):
        MvcCallback(tmp_path).train(run.trainer, resume_from_checkpoint="x")
    run.trainer.add_callback(MvcCallback(tmp_path))
    with pytest.raises(UsageError, match="by itself"):
        run.trainer.train()
    with pytest.raises(UsageError, match="another mvc callback"):
        MvcCallback(tmp_path).train(run.trainer)
    with pytest.raises(UsageError, match="another mvc callback"):
        fit_lightning(tmp_path, callbacks=[lightning.MvcCallback(tmp_path / "other")])
    assert transformers.trainer.skip_first_batches.__module__.startswith("accelerate")


def test_a_mistyped_option_is_refused_at_once(tmp_path):
    from accelerate import Accelerator

    from mvc_hooks.adapters import accelerate, lightning, transformers

    accelerator = Accelerator(cpu=True)
    accelerator.prepare(torch.nn.Linear(2, 2))
    calls = [
        (lambda: lightning.MvcCallback(tmp_path, evry=5), "every"),
        (lambda: transformers.MvcCallback(tmp_path, gradnorm=True), "grad_norm"),
        (lambda: accelerate.make_checkpointer(accelerator, tmp_path, detector=3), "detectors"),
    ]
    for make, meant in calls:
        with pytest.raises(UsageError, match="is not an option") as caught:
            make()
        assert caught.value.hint.startswith(f"did you mean {meant}? ")


def test_a_library_that_is_not_there_is_one_clear_line():
    from mvc_hooks.adapters.session import import_library

    with pytest.raises(ImportError, match=r"needs nolib: pip install 'mvc-models\[nolib\]'"):
        import_library("nolib.part", extra="nolib")


def test_a_trainer_that_skips_batches_takes_all_its_steps(tmp_path):
    """Its steps are two whole epochs, and the skipped batches are of a third."""
    run = fit_transformers(
        tmp_path, total=22, every=3, spike=(9,), ladder=rollback("last", skip_batches=2)
    )
    assert len(run.checkpointer.rollbacks) == 1
    assert next(iter(Repo.open(tmp_path).log())).annotations.step == 22
    again = fit_transformers(tmp_path, total=24, every=3)
    assert again.checkpointer.resumed_from is not None
    assert next(iter(Repo.open(tmp_path).log())).annotations.step == 24
