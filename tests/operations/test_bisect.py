"""bisect: marks on disk as Git has them, what is tested, and what comes back."""

import random

import numpy as np
import pytest

from mvc import Repo
from mvc.errors import ConflictError, FormatError, NotFoundError, UsageError
from support.models import write_model
from support.opened_repo import write
from support.stockgit import git


@pytest.fixture
def line(repo, root):
    """Twelve commits on main; from the eighth on file ``a`` is broken."""
    ids = []
    for number in range(1, 13):
        write(root, "a", f"{'broken' if number >= 8 else 'sound'} {number}")
        write(root, "b", str(number // 4))
        ids.append(repo.commit(f"c{number}", paths=".", step=number).id)
    return ids


def find_it(repo, step, is_good):
    tested = []
    while step.status == "testing":
        tested.append(step.commit)
        step = repo.bisect.mark("good" if is_good(step.commit) else "bad")
    return step, tested


def test_the_first_bad_commit_is_found_in_the_worktree(repo, root, line):
    step = repo.bisect.start("HEAD", line[0])
    assert (step.left, step.steps) == (5, 3)
    step, tested = find_it(repo, step, lambda _: (root / "a").read_text().startswith("sound"))
    assert (step.status, step.commit) == ("found", line[7])
    assert len(tested) <= 4
    assert repo.head.branch is None
    repo.branches.rename("main", "trunk")
    with pytest.raises(NotFoundError, match="'main'"):
        repo.bisect.reset()
    repo.bisect.reset("trunk")
    assert repo.head.branch == "trunk"
    assert (root / "a").read_text() == "broken 12"
    assert not list(repo.git_dir.glob("BISECT_*"))
    assert "refs/bisect" not in git(repo.git_dir, "for-each-ref")
    assert repo.bisect.reset() is None


@pytest.mark.parametrize("seed", range(6))
def test_any_first_bad_commit_of_a_history_with_merges_is_found(repo, root, seed):
    chooser = random.Random(seed)
    write(root, "base")
    commits = [repo.commit("base", paths=".").id]
    history = repo._context.history
    tree = history.read_commit(commits[0]).tree
    parents = {commits[0]: []}
    for number in range(25):
        chosen = chooser.sample(commits[-4:], min(len(commits), chooser.choice([1, 1, 2])))
        stamp = repo._context.stamp(time_s=1_700_000_000 + 60 * number)
        new = history.write_commit(tree=tree, parents=chosen, message=f"c{number}", author=stamp)
        parents[new] = chosen
        commits.append(new)
    culprit = chooser.choice(commits[1:])
    bad = {culprit}
    for one in commits:
        if any(parent in bad for parent in parents[one]):
            bad.add(one)
    tip = next(one for one in reversed(commits) if one in bad)
    step = repo.bisect.start(tip, commits[0], checkout=False)
    step, _ = find_it(repo, step, lambda commit: commit not in bad)
    assert step.commit == culprit


def test_a_good_commit_on_another_line_has_the_merge_base_tested(repo, root, line):
    """Without a checkout: nothing is touched."""
    repo.branches.create("side", line[3])
    repo.switch("side")
    write(root, "c")
    side = repo.commit("side", paths=".").id
    before = (root / "a").stat()
    step = repo.bisect.start("main", side, checkout=False)
    assert repo.resolve("BISECT_HEAD") == step.commit
    assert (step.commit, step.is_merge_base) == (line[3], True)
    step, _ = find_it(repo, step, lambda commit: line.index(commit) < 7)
    assert step.commit == line[7]
    assert repo.head.branch == "side"
    repo.bisect.reset()
    assert (root / "a").stat() == before


def test_what_cannot_be_tested_is_skipped(repo, line):
    step = repo.bisect.start("HEAD", line[0], checkout=False)
    step = repo.bisect.skip(f"{line[4]}..{line[8]}")
    step, tested = find_it(repo, step, lambda commit: line.index(commit) < 7)
    assert step.status == "undecided"
    assert set(step.doubtful) == {*line[5:9], line[9]}
    assert not {*line[5:9]} & {*tested}
    assert "# only skipped commits left to test" in repo.bisect.log()


def test_only_commits_that_changed_a_path_are_tested(repo, line):
    step = repo.bisect.start("HEAD", line[0], paths=["b"], checkout=False)
    step, tested = find_it(repo, step, lambda commit: line.index(commit) < 7)
    assert set(tested) <= {line[3], line[7], line[11]}
    assert step.commit == line[7]


def test_only_commits_that_changed_a_tensor_are_tested(repo, root, reads):
    ids = []
    for number in range(8):
        later = {} if number < 5 else {"norm": np.full(32, 2, np.float32)}
        write_model(root / "m.safetensors", embed=np.full(4, number, np.float32), **later)
        ids.append(repo.commit(str(number), paths=".").id)
    reads.clear()
    step = repo.bisect.start("HEAD", ids[0], tensors="nor*", checkout=False)
    assert (step.status, step.commit) == ("testing", ids[5])
    assert reads == []
    assert repo.bisect.mark("bad").commit == ids[5]
    with pytest.raises(ConflictError, match="none of the 7 commits"):
        repo.bisect.start("HEAD", ids[0], tensors="layers.*", checkout=False)


def test_released_content_is_skipped(repo, root):
    ids = []
    for number in range(6):
        write_model(root / "m.safetensors", seed=number)
        ids.append(repo.commit(str(number), paths=".", step=number).id)
    repo.tags.create("kept", ids[3])
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
    step = repo.bisect.start("HEAD", ids[0])
    assert step.commit == ids[3]
    assert step.released
    step = repo.bisect.mark("bad")
    assert step.status == "undecided"


def test_its_terms_are_kept(repo, line):
    repo.bisect.start("HEAD", line[0], terms=("fast", "slow"))
    assert (repo.git_dir / "BISECT_TERMS").read_text() == "fast\nslow\n"
    assert repo.bisect.mark("slow").terms == ("fast", "slow")
    with pytest.raises(UsageError, match="'bad' is not a term"):
        repo.bisect.mark("bad")
    repo.bisect.start()
    assert repo.bisect.mark("new", "HEAD").terms == ("new", "old")
    with pytest.raises(UsageError, match="'good' is not a term"):
        repo.bisect.mark("good", line[0])
    for terms in (("skip", "good"), ("a b", "c"), ("x", "x"), ("good", "bad"), ("a/b", "c")):
        with pytest.raises(UsageError):
            repo.bisect.start(terms=terms)


def test_a_commit_cannot_be_good_and_bad(repo, line):
    with pytest.raises(ConflictError, match="descendant"):
        repo.bisect.start(line[3], line[9])
    assert repo.bisect.step() is None
    repo.bisect.start("HEAD", line[0])
    with pytest.raises(ConflictError, match="both"):
        repo.bisect.mark("bad", line[0])
    with pytest.raises(UsageError, match="only one"):
        repo.bisect.mark("bad", line[3], line[4])


def test_a_log_is_replayed_here_and_by_stock_git(repo, line):
    repo.bisect.start("HEAD", line[0], checkout=False)
    repo.bisect.mark("bad")
    repo.bisect.skip()
    left, log = repo.bisect.step(), repo.bisect.log()
    marks = git(repo.git_dir, "for-each-ref", "refs/bisect")
    repo.bisect.reset()
    saved = repo.git_dir / "saved"
    saved.write_text(log)
    git(repo.git_dir, "bisect", "replay", str(saved))
    assert git(repo.git_dir, "for-each-ref", "refs/bisect") == marks
    assert repo.bisect.step().doubtful == left.doubtful  # one of Git's making is read
    assert repo.bisect.step().status == left.status
    git(repo.git_dir, "bisect", "reset")
    assert repo.bisect.replay(log).commit == left.commit
    assert git(repo.git_dir, "for-each-ref", "refs/bisect") == marks


@pytest.mark.parametrize(
    "log",
    ["", "git bisect good HEAD", "git bisect start 'HEAD", "git bisect start --foo", "rm -rf /",
     "git bisect start\nhello", "git bisect"],
)  # fmt: skip
def test_what_is_not_a_log_leaves_the_bisection_alone(repo, line, log):
    repo.bisect.start("HEAD", line[0], checkout=False)
    with pytest.raises(FormatError):
        repo.bisect.replay(log)
    assert repo.bisect.step().bad == line[-1]


def test_a_run_that_is_stopped_goes_on(repo, line):
    def test(commit):
        if commit in stops:
            stops.remove(commit)
            raise KeyboardInterrupt
        return line.index(commit) < 7

    stops = [*line]
    repo.bisect.start("HEAD", line[0])
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            Repo.open(repo.worktree, identity=repo.identity).bisect.run(test)
    stops.clear()
    assert repo.bisect.run(test).commit == line[7]


def test_a_run_needs_both_ends(repo, line):
    with pytest.raises(ConflictError, match="no bisection"):
        repo.bisect.run(lambda _: True)
    repo.bisect.start("HEAD")
    with pytest.raises(ConflictError, match="known first"):
        repo.bisect.run(lambda _: True)


def test_commits_that_only_a_bisection_names_survive_gc(repo, root, line):
    write_model(root / "m.safetensors")
    lost = repo.commit("only here", paths=".").id
    repo.bisect.start(lost, line[0], checkout=False)
    repo.reset("HEAD~1", mode="hard")
    (repo.git_dir / "logs/HEAD").unlink()
    (repo.git_dir / "logs/refs/heads/main").unlink()
    repo.upkeep.gc(repo.upkeep.plan_gc(grace_s=0))
    repo.checkout(lost)
    assert (root / "m.safetensors").exists()


@pytest.mark.parametrize("name", ["BISECT_TERMS", "BISECT_NAMES", "BISECT_HEAD"])
def test_damaged_files_are_said_and_reset_away(repo, line, name):
    repo.bisect.start("HEAD", line[0], paths=["b"], checkout=False)
    (repo.git_dir / name).write_bytes(b"'../x\xff")
    with pytest.raises(FormatError):
        repo.bisect.next()
    repo.bisect.reset()
    assert repo.bisect.step() is None


def test_local_changes_stop_it_and_it_goes_on(repo, root, line):
    write(root, "a", "my own")
    with pytest.raises(ConflictError, match="would be overwritten") as failure:
        repo.bisect.start("HEAD", line[0])
    assert "bisect next" in failure.value.hint
    assert (root / "a").read_text() == "my own"
    repo.restore(["a"])
    assert repo.bisect.next().commit == repo.head.commit
