"""The choice of the commit to test, beside stock Git's."""

import pytest

from mvc.history.git import GitHistory
from mvc.workspace.bisection import choose, find_doubtful, steps_left, weigh
from support.bounds import rest_nightly
from support.stockgit import build_tangle, commit_on_head, git


def _git_vars(history, bad, good, *options):
    names = ["rev-list", "--bisect-vars", *options, bad, *(f"^{one}" for one in good)]
    pairs = (line.split("=", 1) for line in git(history.git_dir, *names).splitlines())
    return {name.removeprefix("bisect_"): value.strip("'") for name, value in pairs}


@pytest.mark.parametrize("seed", rest_nightly(range(12), kept=2))
@pytest.mark.parametrize("first_parent", [False, True])
def test_it_halves_as_well_as_git(tmp_path, seed, first_parent):
    history = GitHistory.init(tmp_path / ".mvc")
    build_tangle(history, seed, moves=60)
    everything = [info.id for info in history.walk([history.resolve("HEAD")])]
    bad, good = everything[0], [everything[-1]]
    doubtful = find_doubtful(history, bad, good, first_parent=first_parent)
    counted = [info.id for info in doubtful]
    weights = weigh(doubtful, counted, first_parent=first_parent)
    chosen = choose(weights, counted, ())
    options = ["--first-parent"] if first_parent else []
    theirs = _git_vars(history, bad, good, *options)
    assert len(counted) == int(theirs["all"])
    assert steps_left(len(counted)) == int(theirs["steps"])
    smaller = min(weights[chosen], len(counted) - weights[chosen])
    assert smaller == min(weights[theirs["rev"]], len(counted) - weights[theirs["rev"]])
    # Git words both as what is left once the chosen one is out of the question as well.
    assert weights[theirs["rev"]] == int(theirs["bad"]) + 1
    for line in git(
        history.git_dir, "rev-list", "--bisect-all", *options, bad, f"^{good[0]}"
    ).splitlines():
        commit, _, rest = line.partition(" ")
        distance = int(rest.split("dist=")[1].split(")")[0].split(",")[0])
        assert distance == min(weights[commit], len(counted) - weights[commit])


def test_the_tests_that_are_left_are_as_many_as_git_says():
    assert [steps_left(count) for count in range(13)] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]


def test_only_counted_commits_weigh_and_are_chosen(tmp_path):
    history = GitHistory.init(tmp_path / ".mvc")
    line = [commit_on_head(history, f"c{number}", time_s=number) for number in range(1, 13)]
    doubtful = find_doubtful(history, line[-1], [line[0]])
    counted = [line[2], line[3], line[4], line[11]]
    weights = weigh(doubtful, counted)
    assert [weights[one] for one in line[1:]] == [0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 4]
    assert choose(weights, counted, ()) == line[3]


def test_skipped_commits_are_never_chosen(tmp_path):
    history = GitHistory.init(tmp_path / ".mvc")
    line = [commit_on_head(history, f"c{number}", time_s=number) for number in range(1, 40)]
    doubtful = find_doubtful(history, line[-1], [line[0]])
    counted = [info.id for info in doubtful]
    weights, skipped = weigh(doubtful, counted), set()
    while (chosen := choose(weights, counted, skipped)) not in (None, line[-1]):
        assert chosen not in skipped
        skipped.add(chosen)
    assert chosen == line[-1]
    assert skipped == set(counted) - {line[-1]}
