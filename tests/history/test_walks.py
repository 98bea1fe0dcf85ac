import random

import pytest

from mvc.errors import CorruptionError
from mvc.history.git import GitHistory
from mvc.history.walks import CLOCK_SLOP_S
from support.stockgit import START_S, build_tangle, git, git_or_none, write_commit


@pytest.fixture(scope="module", params=[1, 2])
def tangle(request, tmp_path_factory):
    history = GitHistory.init(tmp_path_factory.mktemp("walks") / ".mvc")
    build_tangle(history, seed=request.param, moves=60)
    return history


def ids(commits):
    return [commit.id for commit in commits]


def test_the_order_is_that_of_git_log_date_order(tangle):
    starts = sorted(set(tangle.list_refs("refs/heads/").values()))
    shown = git(tangle.git_dir, "log", "--date-order", "--format=%H", *starts).split()
    assert ids(tangle.walk(starts)) == shown
    for limit in (0, 1, 7, 1000):
        assert ids(tangle.walk(starts, limit=limit)) == shown[:limit]
    for start in starts:
        shown = git(tangle.git_dir, "log", "--first-parent", "--format=%H", start).split()
        assert ids(tangle.walk([start], first_parent=True)) == shown


def test_merge_bases_are_those_of_git(tangle):
    commits = ids(tangle.walk(list(tangle.list_refs("refs/heads/").values())))
    chooser = random.Random(5)
    pairs = [(chooser.choice(commits), chooser.choice(commits)) for _ in range(20)]
    for left, right in pairs:
        shown = git_or_none(tangle.git_dir, "merge-base", "--all", left, right)
        assert sorted(tangle.find_merge_bases(left, right)) == sorted((shown or "").split())
        first = git_or_none(tangle.git_dir, "merge-base", left, right)
        assert next(iter(tangle.find_merge_bases(left, right)), None) == first
        is_one = git_or_none(tangle.git_dir, "merge-base", "--is-ancestor", left, right) is not None
        assert tangle.is_ancestor(left, right) == is_one


def random_graph(history, seed, skew_s):
    """Commits with up to three parents and clocks that are wrong by up to ``skew_s``."""
    chooser = random.Random(seed)
    commits = []
    for number in range(60):
        count = min(len(commits), chooser.choice([1, 1, 1, 2, 3]))
        parents = chooser.sample(commits[-8:], min(count, len(commits[-8:])))
        time_s = START_S + number * 30 + chooser.randint(-skew_s, skew_s)
        commits.append(write_commit(history, parents, f"{number}", time_s=time_s))
    return commits


@pytest.mark.parametrize("seed", range(6))
def test_no_parent_comes_before_its_child_even_with_wrong_clocks(history, seed):
    commits = random_graph(history, seed, CLOCK_SLOP_S // 2)
    starts = commits[-3:]
    walked = list(history.walk(starts))
    place = {commit.id: number for number, commit in enumerate(walked)}
    assert all(place[parent] > place[one.id] for one in walked for parent in one.parents)
    shown = git(history.git_dir, "rev-list", *starts).split()
    assert sorted(place) == sorted(shown)
    assert len(walked) == len(place)


@pytest.mark.parametrize("seed", range(6))
def test_merge_bases_survive_wrong_clocks(history, seed):
    commits = random_graph(history, seed, 1000)
    chooser = random.Random(seed)
    for _ in range(5):
        left, right = chooser.choice(commits), chooser.choice(commits)
        shown = git_or_none(history.git_dir, "merge-base", "--all", left, right) or ""
        assert sorted(history.find_merge_bases(left, right)) == sorted(shown.split())


def test_a_short_walk_reads_little_of_a_long_history(history, monkeypatch):
    tip = None
    for number in range(200):
        parents = [] if tip is None else [tip]
        tip = write_commit(history, parents, "same", time_s=START_S + number * 600, files={})
    reads = []
    read_commit = history.objects.read_commit
    monkeypatch.setattr(
        history.objects, "read_commit", lambda one: reads.append(one) or read_commit(one)
    )
    assert len(list(history.walk([tip], limit=5))) == 5
    assert len(reads) == 6  # one line of commits: nothing else can be a child
    reads.clear()
    side = write_commit(history, [tip], "side", time_s=START_S + 200 * 600, files={})
    other = write_commit(history, [tip], "other", time_s=START_S + 201 * 600, files={})
    assert len(list(history.walk([side, other], limit=5))) == 5
    assert len(reads) <= 5 + CLOCK_SLOP_S // 600 + 3
    reads.clear()
    assert len(list(history.walk([tip]))) == 200
    assert len(reads) == 200


def test_starts_may_repeat_and_reach_each_other(history):
    one = write_commit(history, [], "1", time_s=1)
    two = write_commit(history, [one], "2", time_s=2)
    assert ids(history.walk([one, two, one, two])) == [two, one]
    assert list(history.walk([])) == []


def test_unrelated_commits_have_no_merge_base(history):
    one = write_commit(history, [], "1", time_s=1)
    two = write_commit(history, [], "2", time_s=2)
    assert history.find_merge_bases(one, two) == []
    assert history.find_merge_bases(one, one) == [one]
    assert not history.is_ancestor(one, two)
    assert history.is_ancestor(one, one)


def test_a_missing_parent_is_named(history):
    lost = "ab" * 20
    tip = write_commit(history, [lost], "1", time_s=1)
    with pytest.raises(CorruptionError, match=lost):
        list(history.walk([tip]))


def test_clocks_far_apart_give_every_commit_once(history):
    """A child hours older than its parent, which is a start as well: no order is right."""
    one = write_commit(history, [], "1", time_s=1_000_000)
    two = write_commit(history, [one], "2", time_s=1000)
    assert sorted(ids(history.walk([two, one]))) == sorted([one, two])
    assert sorted(ids(history.walk([one, two]))) == sorted([one, two])
