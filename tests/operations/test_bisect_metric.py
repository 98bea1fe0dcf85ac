"""Where a stored metric went wrong."""

import math

import numpy as np
import pytest

from mvc.errors import ConflictError, NotFoundError, UsageError
from support.models import write_model


@pytest.fixture
def line(repo):
    def make(*values):
        return [
            repo.commit(
                f"c{number}", allow_empty=True, metrics=None if value is None else {"loss": value}
            ).id
            for number, value in enumerate(values)
        ]

    return make


def test_the_values_it_ends_with_begin_there(repo, line):
    ids = line(3, 5, 2, 1, None, 6, 7, None, 8)
    found = repo.bisect.metric("loss", above=4)
    assert (found.commit, found.value) == (ids[5], 6)
    assert (found.before, found.before_value) == (ids[3], 1)
    assert found.unknown == (ids[4],)
    assert found.earlier == ids[1]
    assert found.tested == 7
    assert repo.bisect.metric("loss", above=4, good=[ids[2]]).earlier is None


def test_not_a_number_is_bad_either_way(repo, line):
    ids = line(3, 2, math.nan, math.inf)
    assert repo.bisect.metric("loss", above=100).commit == ids[2]
    assert repo.bisect.metric("loss", below=1, bad=ids[2]).commit == ids[2]
    assert repo.bisect.metric("loss", below=2.5, bad=ids[1]).commit == ids[1]


def test_what_was_never_good(repo, line):
    ids = line(None, 9, 8)
    found = repo.bisect.metric("loss", above=1)
    assert (found.commit, found.before, found.unknown) == (ids[1], None, (ids[0],))


def test_two_lines_that_both_went_wrong(repo, line):
    (base,) = line(1)
    (left,) = line(9)
    repo.branches.create("side", base)
    repo.switch("side", force=True)
    (right,) = line(8)
    history = repo._context.history
    tree = history.read_commit(base).tree
    merge = history.write_commit(
        tree=tree,
        parents=[left, right],
        message="m\n\nMetric: loss=9",
        author=repo._context.stamp(),
    )
    found = repo.bisect.metric("loss", above=2, bad=merge)
    assert {found.commit, *found.others} == {left, right}
    assert found.before == base


def test_the_health_of_the_weights_is_a_metric_too(repo, root):
    ids = []
    for scale in (1, 2, 30, 40):
        write_model(root / "m.safetensors", norm=np.full(32, scale, np.float32))
        ids.append(repo.commit(str(scale), paths=".").id)
    assert repo.bisect.metric("health.max", above=20).commit == ids[2]
    assert repo.bisect.metric("health.norm", above=100).before == ids[1]


def test_what_cannot_be_found(repo, line):
    ids = line(1, 5, 2)
    with pytest.raises(ConflictError, match="loss is 2 at commit") as failure:
        repo.bisect.metric("loss", above=4)
    assert f"the last bad commit is {ids[1][:7]}" in failure.value.hint
    with pytest.raises(ConflictError, match="loss is 2 at commit") as failure:
        repo.bisect.metric("loss", above=9)
    assert "another bound" in failure.value.hint
    with pytest.raises(NotFoundError, match="no commit has the metric 'lost'"):
        repo.bisect.metric("lost", above=4)
    for bounds in ({}, {"above": 1, "below": 2}):
        with pytest.raises(UsageError):
            repo.bisect.metric("loss", **bounds)
