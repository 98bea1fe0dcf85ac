"""Commits of fits by libraries say which samples the training step got."""

import pytest

from mvc import Repo
from mvc_hooks import rollback, stop
from support.bounds import rest_nightly
from support.fits import FITS, QUIET, ROWS, count_rows
from support.seen_samples import check_commits

pytestmark = [*QUIET, pytest.mark.slow]

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


@pytest.mark.parametrize("accumulate", rest_nightly([1, 3]))
@pytest.mark.parametrize(("kind", "data"), rest_nightly(CASES))
def test_across_a_resume_and_a_rollback(kind, data, accumulate, tmp_path):
    options = {"data": data, "accumulate": accumulate, "adapt": count_rows, "every": 3}
    ladder = [rollback(to="last", min_steps_back=1, skip_batches=2), stop(after=2)]
    FITS[kind](tmp_path, until=8, total=20, **options)
    run = FITS[kind](tmp_path, total=20, spike=(6 * accumulate,), ladder=ladder, **options)
    assert run.checkpointer.resumed_from is not None
    assert len(run.checkpointer.rollbacks) == 1
    repo = Repo.open(tmp_path)
    assert check_commits(repo, "dataloader", COUNTS[kind]) > 7
    seen = repo.data.seen("HEAD", "main@0", prove=True).loaders[0]
    assert seen.is_proven
    assert seen.total.count >= 19 * accumulate * 4 - ROWS
