"""ConsistentDataLoader in the loops of libraries: stopped in a second pass, it ends as one never stopped."""

import pytest
import torch

from mvc import Repo, UsageError
from mvc_data import ConsistentDataLoader
from mvc_hooks import rollback, stop
from support import fits
from support.bounds import rest_nightly
from support.seen_samples import check_commits

pytestmark = [*fits.QUIET, pytest.mark.slow]


def make_loader():
    return ConsistentDataLoader(fits.Noisy(), fits.BATCH, seed=1)


@pytest.fixture
def fit(request, monkeypatch):
    """Return a fit of a library whose training data comes in a computed order."""
    import transformers

    monkeypatch.setitem(fits.DATA, "consistent", make_loader)
    if request.param == "transformers":
        monkeypatch.setattr(
            transformers.Trainer, "get_train_dataloader", lambda _trainer: make_loader()
        )
        return fits.fit_transformers, {}
    return fits.FITS[request.param], {"data": "consistent"}


@pytest.mark.parametrize("fit", rest_nightly(["lightning", "transformers"]), indirect=True)
def test_it_goes_on_where_it_was(fit, tmp_path):
    train, options = fit
    through = train(None, total=16, **options)
    train(tmp_path, until=13, total=16, every=100, **options)
    again = train(tmp_path, total=16, every=100, **options)
    assert again.checkpointer.resumed_from is not None
    assert fits.same(through, again)
    assert again.losses[-3:] == through.losses[13:]


@pytest.mark.parametrize("fit", rest_nightly(["transformers", "lightning"]), indirect=True)
def test_commits_say_what_was_seen_across_a_resume_and_a_rollback(fit, tmp_path):
    train, options = fit
    options |= {"adapt": fits.count_rows, "every": 3}
    ladder = [rollback(to="last", min_steps_back=1, skip_batches=0), stop(after=2)]
    train(tmp_path, until=8, total=20, **options)
    run = train(tmp_path, total=20, spike=(6,), ladder=ladder, **options)
    assert run.checkpointer.resumed_from is not None
    assert len(run.checkpointer.rollbacks) == 1
    counts = ("model", "net.seen" if train is fits.fit_lightning else "seen")
    assert check_commits(Repo.open(tmp_path), "data", counts) > 7


@pytest.mark.parametrize("mode", rest_nightly(["max_size_cycle", "min_size", "max_size"]))
def test_several_in_lightning_are_stopped_and_rolled_back(mode, monkeypatch, tmp_path):
    from lightning.pytorch.utilities import CombinedLoader

    def make_data():
        short = torch.utils.data.Subset(fits.Noisy(), range(14))
        plain = torch.utils.data.DataLoader(fits.Noisy(), fits.BATCH, shuffle=True)
        ordered = ConsistentDataLoader(short, fits.BATCH, seed=2)
        return CombinedLoader({"a": make_loader(), "b": ordered, "c": plain}, mode)

    monkeypatch.setitem(fits.DATA, "several", make_data)
    through = fits.fit_lightning(tmp_path / "through", data="several", total=16)
    ladder = [rollback(to="last", min_steps_back=1, skip_batches=0), stop(after=2)]
    for until, spike in ((7, ()), (13, (8,)), (16, ())):
        run = fits.fit_lightning(
            tmp_path / "kept",
            data="several",
            until=until,
            total=16,
            every=2,
            spike=spike,
            ladder=ladder,
        )
    assert fits.same(through, run)
    seen = Repo.open(tmp_path / "kept").data.seen("HEAD", "main@0", prove=True).loaders
    assert [one.is_proven for one in seen] == [True] * 3


@pytest.mark.parametrize("fit", ["accelerate"], indirect=True)
def test_accelerate_does_not_know_it(fit, tmp_path):
    train, options = fit
    with pytest.raises(UsageError, match="no part of the run is a loader"):
        train(tmp_path, total=4, **options)
