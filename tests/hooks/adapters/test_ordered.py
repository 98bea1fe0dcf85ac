"""ConsistentDataLoader in the loops of libraries: stopped in a second pass, it ends as one never stopped."""

import pytest

from mvc import UsageError
from mvc_hooks import ConsistentDataLoader
from support import fits

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


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


@pytest.mark.parametrize("fit", ["lightning", "transformers"], indirect=True)
def test_it_goes_on_where_it_was(fit, tmp_path):
    train, options = fit
    through = train(None, total=16, **options)
    train(tmp_path, until=13, total=16, every=100, **options)
    again = train(tmp_path, total=16, every=100, **options)
    assert again.checkpointer.resumed_from is not None
    assert fits.same(through, again)
    assert again.losses[-3:] == through.losses[13:]


@pytest.mark.parametrize("fit", ["accelerate"], indirect=True)
def test_accelerate_does_not_know_it(fit, tmp_path):
    train, options = fit
    with pytest.raises(UsageError, match="no part of the run is a loader"):
        train(tmp_path, total=4, **options)
