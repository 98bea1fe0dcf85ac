"""Fits over every kind of loader that the libraries document: stopped, killed, rolled back, or never stopped."""

import pytest
import torch

from mvc import UsageError
from mvc_hooks import rollback, stop
from mvc_hooks.parts.reach import find_loaders
from support.bounds import rest_nightly
from support.fits import FITS, QUIET, same

pytestmark = QUIET

# 11 batches make a pass, 4 of the shortest one: all stops lie in a second or third pass.
CASES = [
    ("lightning", "persistent"), ("transformers", "iterable"), ("accelerate", "sampler"),
    ("lightning", "sampler"), ("lightning", "iterable"), ("lightning", "two-min"), ("transformers", "persistent"),
    ("accelerate", "persistent"), ("lightning", "stateful"), ("lightning", "two-max"), ("transformers", "iterable-workers"),
    ("accelerate", "stateful"),
]  # fmt: skip
RELOADED = (("reload_dataloaders_every_n_epochs", 2),)
STOPS = {
    "validating workers draw a seed once": ({"total": 10, "held_out": "persistent"}, {"until": 7}),
    "loaders are made again every 2 epochs": ({"total": 36, "settings": RELOADED}, {"until": 15}),
    "one loader began again beside another": ({"total": 8, "data": "two"}, {"until": 6}),
    "workers go on in the next epoch": ({"epochs": 2, "data": "persistent"}, {"epochs": 1}),
}


@pytest.mark.parametrize(
    ("kind", "data"),
    rest_nightly(CASES, kept=3),
)
def test_stopped_and_rolled_back_is_as_never_stopped(kind, data, tmp_path):
    fit, total = FITS[kind], 8 if data == "two-min" else 16
    through = fit(None, total=total, data=data)
    first = fit(tmp_path, until=total - 3, total=total, data=data, every=100)
    # It goes on in objects and workers of its own, diverges, and goes back to where it began.
    ladder = [rollback(to="last", min_steps_back=1, skip_batches=0), stop(after=2)]
    again = fit(tmp_path, total=total, data=data, every=100, ladder=ladder, spike=(2,))
    assert [report.to_step for report in again.checkpointer.rollbacks] == [total - 3]
    expected = through.losses[len(first.losses) :]
    assert first.losses + expected == through.losses
    assert again.losses[-len(expected) :] == expected
    assert same(again, through)
    if kind == "transformers":
        left = find_loaders(getattr(again.trainer, "_eval_dataloaders", {})).values()
        assert not any("_get_iterator" in vars(one) for one in left)


@pytest.mark.parametrize("name", rest_nightly(STOPS))
def test_lightning_stopped_is_as_never_stopped(name, tmp_path):
    options, stop = STOPS[name]
    through = FITS["lightning"](None, **options)
    first = FITS["lightning"](tmp_path, **{**options, **stop}, every=100)
    second = FITS["lightning"](tmp_path, **options, every=100)
    assert first.losses + second.losses == through.losses
    assert same(second, through)


def test_the_trainer_goes_back_into_an_earlier_epoch(tmp_path):
    """Its sampler takes its order from the number of the epoch, which its loader counts itself."""
    ladder = [rollback(to="last", min_steps_back=4, skip_batches=0), stop(after=2)]
    through = FITS["transformers"](None, total=14)
    run = FITS["transformers"](tmp_path, total=14, every=8, spike=(13,), ladder=ladder)
    assert [report.to_step for report in run.checkpointer.rollbacks] == [8]
    assert same(run, through)


@pytest.mark.slow
@pytest.mark.parametrize("data", rest_nightly(["persistent", "workers"]))
def test_accelerate_killed_in_the_middle_of_accumulation_is_as_never_killed(data, fits, tmp_path):
    options = {"kind": "accelerate", "data": data, "accumulate": 3, "every": 5}
    done = fits.run("fit", tmp_path, kill_at=40, **options)
    assert done.killed, done.error
    through = FITS["accelerate"](None, accumulate=3, total=16, data=data)
    run = FITS["accelerate"](tmp_path, accumulate=3, total=16, data=data)
    assert 0 < len(run.losses) < len(through.losses)
    assert run.losses == through.losses[-len(run.losses) :]
    assert same(run, through)


def test_a_loader_of_accelerate_that_the_loop_iterates_itself_is_refused(tmp_path):
    from accelerate import Accelerator

    from mvc_hooks.adapters.accelerate import make_checkpointer

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    loader = torch.utils.data.DataLoader(torch.arange(8.0).reshape(8, 1))
    model, loader = accelerator.prepare(model, loader)
    with pytest.raises(UsageError, match="iterated elsewhere"):
        with make_checkpointer(accelerator, tmp_path) as checkpointer:
            for batch in loader:
                checkpointer.step(loss=model(batch).sum())
