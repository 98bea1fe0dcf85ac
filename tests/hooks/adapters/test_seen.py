"""Commits of fits by libraries say which samples the training step got."""

import pytest
import torch

from mvc import Repo
from mvc_hooks import rollback, stop
from support.fits import FITS, ROWS, Noisy
from support.seen_samples import check_commits

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

COUNTS = {
    "lightning": ("model", "net.seen"),
    "transformers": ("model", "seen"),
    "accelerate": ("model", "seen"),
}
CASES = [
    *(("lightning", data) for data in ("shuffled", "sampler", "persistent", "stateful")),
    *(("transformers", data) for data in ("shuffled", "workers", "persistent")),
    *(("accelerate", data) for data in ("shuffled", "sampler", "workers", "stateful")),
]


def count_rows(model):
    """Have a model count, in its state, the rows that it trains with; they are known by their numbers."""
    rows = Noisy().x

    def count(module, args, kwargs):
        if module.training:
            x = kwargs["x"] if "x" in kwargs else args[0]
            found = torch.cdist(x, rows).argmin(dim=1)
            module.seen += torch.bincount(found, minlength=ROWS)

    model.register_buffer("seen", torch.zeros(ROWS, dtype=torch.int64))
    model.register_forward_pre_hook(count, with_kwargs=True)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("kind", "data"), CASES)
def test_across_a_resume_and_a_rollback(kind, data, accumulate, tmp_path):
    options = {"data": data, "accumulate": accumulate, "adapt": count_rows, "every": 3}
    ladder = [rollback(to="last", min_steps_back=1, skip_batches=2), stop(after=2)]
    FITS[kind](tmp_path, until=8, total=20, **options)
    run = FITS[kind](tmp_path, total=20, spike=(6 * accumulate,), ladder=ladder, **options)
    assert run.checkpointer.resumed_from is not None
    assert len(run.checkpointer.rollbacks) == 1
    repo = Repo.open(tmp_path)
    assert check_commits(repo, "dataloader", COUNTS[kind]) > 7
    seen = repo.seen_data("HEAD", "main@0", prove=True).loaders[0]
    assert seen.is_proven
    assert seen.total.count >= 19 * accumulate * 4 - ROWS
