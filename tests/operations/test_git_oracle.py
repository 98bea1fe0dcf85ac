"""Stock Git as the oracle: every state a path can be in, and what each verb makes of it.

A path's name says its state: what HEAD has, what the other branch has, what the index has, what
lies in the worktree, each of them nothing or a content. All ways in which these can be equal or
not are in one repository: 52. A verb of mvc runs on one copy of it, stock Git on another.
"""

import itertools
import os
import re
import shutil
import subprocess

import pytest

from mvc import ConflictError, Repo
from mvc.workspace.checkout_plan import plan_checkout
from mvc.workspace.recorded import head_tree

NOTHING = "-"
CONTENTS = "abcd"


def _is_canonical(state):
    """Whether the contents appear in the order of the alphabet: others say the same."""
    first_seen = "".join(dict.fromkeys(state)).replace(NOTHING, "")
    return CONTENTS.startswith(first_seen)


STATES = [
    "".join(state)
    for state in itertools.product(NOTHING + CONTENTS, repeat=4)
    if _is_canonical(state)
]
assert len(STATES) == 52
GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ann",
    "GIT_AUTHOR_EMAIL": "ann@example.org",
    "GIT_COMMITTER_NAME": "Ann",
    "GIT_COMMITTER_EMAIL": "ann@example.org",
    "LC_ALL": "C",
}


def _name(state):
    return f"{state[0]}/{state[1:]}.txt"  # a folder, so that some of them come and go


def _write(root, states, column):
    """Make the files hold what one column of the states says."""
    for state in states:
        path, content = root / _name(state), state[column]
        if content == NOTHING:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(content)


def _build(root, states):
    repo = Repo.init(root)
    (root / "anchor").write_text("so that no tree is empty")
    for column, branch in ((1, "other"), (0, "main")):
        repo.switch(branch, create=branch != "main") if branch != "main" else None
        _write(root, states, column)
        repo.add(".")
        repo.commit(branch)
        if branch == "other":
            repo.checkout("other", detach=True)
            _orphan(repo, "main")
    _write(root, states, 2)
    repo.add(".")
    _write(root, states, 3)


def _orphan(repo, branch):
    """Go on from nothing on another branch, the index as it is."""
    repo._context.history.set_head_branch(branch, stamp=repo._context.stamp())


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("oracle") / "all"
    _build(root, STATES)
    return root


@pytest.fixture
def twins(template, tmp_path):
    """Return two copies of the repository: one for mvc, one for Git."""
    for name in ("mvc", "git"):
        shutil.copytree(template, tmp_path / name, symlinks=True)
    return tmp_path / "mvc", tmp_path / "git"


def _git(root, *arguments, check=True):
    command = ["git", f"--git-dir={root}/.mvc", f"--work-tree={root}", *arguments]
    exclude = root / ".mvc/info/exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text(".mvc\n")
    return subprocess.run(
        command, cwd=root, env=GIT_ENV, capture_output=True, text=True, check=check
    )


def _snapshot(root):
    """Return index, worktree and HEAD as stock Git sees them."""
    files = {
        path.relative_to(root).as_posix(): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and ".mvc" not in path.parts
    }
    index = _git(root, "ls-files", "-s").stdout.splitlines()
    head = (root / ".mvc/HEAD").read_text(), _git(root, "rev-parse", "HEAD").stdout
    folders = {path.name for path in root.iterdir() if path.is_dir()}
    return {"files": files, "index": index, "head": head, "folders": folders}


def _drop(root, states):
    """Take paths out of the repository's index and worktree."""
    paths = [_name(state) for state in states]
    for path in paths:
        (root / path).unlink(missing_ok=True)
    _git(root, "rm", "-q", "--cached", "--ignore-unmatch", "-f", "--", *paths)


def _conflicts_of_git(stderr):
    return {line.strip() for line in stderr.splitlines() if line.startswith("\t")}


def _mvc_lets_pass(state):
    """What mvc is kinder in: what the target wants lies there already, or it wants nothing there
    and an untracked file stays what it is."""
    head, other, index, file = state
    if head == index != other:
        return file == other != NOTHING
    return other == index == NOTHING != head and file != NOTHING


def test_checkout_refuses_what_git_refuses(twins):
    mine, theirs = twins
    answer = _git(theirs, "checkout", "other", check=False)
    assert answer.returncode == 1
    refused = _conflicts_of_git(answer.stderr)
    context = Repo.open(mine)._context
    target = context.history.read_tree(context.history.resolve("other"))
    plan = plan_checkout(context, context.history.read_index(), head_tree(context), target)
    kinder = {_name(state) for state in STATES if _mvc_lets_pass(state)}
    assert set(plan.conflicts) == refused - kinder
    assert kinder <= refused
    before = _snapshot(mine)
    with pytest.raises(ConflictError, match="local changes would be overwritten"):
        Repo.open(mine).checkout("other")
    assert _snapshot(mine) == before


def test_checkout_does_what_git_does(twins):
    mine, theirs = twins
    answer = _git(theirs, "checkout", "other", check=False)
    refused = _conflicts_of_git(answer.stderr)
    drop = [state for state in STATES if _name(state) in refused]
    assert 10 < len(drop) < 40
    for root in twins:
        _drop_everywhere(root, drop)
    _git(theirs, "checkout", "other")
    Repo.open(mine).checkout("other")
    assert _snapshot(mine) == _snapshot(theirs)


def _drop_everywhere(root, states):
    """Take paths out of both branches, index and worktree: commit trees without them."""
    paths = [_name(state) for state in states]
    kept = _git(root, "write-tree").stdout.strip()
    for branch in ("other", "main"):
        _git(root, "read-tree", branch)
        _git(root, "rm", "-q", "--cached", "--ignore-unmatch", "-f", "--", *paths)
        tree = _git(root, "write-tree").stdout.strip()
        env_time = "2026-01-01T00:00:00Z"
        commit = subprocess.run(
            ["git", f"--git-dir={root}/.mvc", "commit-tree", tree, "-m", branch],
            env={**GIT_ENV, "GIT_AUTHOR_DATE": env_time, "GIT_COMMITTER_DATE": env_time},
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        _git(root, "update-ref", f"refs/heads/{branch}", commit)
    _git(root, "read-tree", kept)
    _drop(root, states)


def _status(root):
    lines = []
    for file in Repo.open(root).status().files:
        if file.staged == "renamed":
            lines += [f"A{file.code[1]} {file.path}", f"D  {file.old_path}"]
        else:
            lines.append(f"{file.code} {file.path}")
    return sorted(lines)


def test_status(twins):
    mine, theirs = twins
    options = ("-c", "status.renames=false")
    answer = _git(theirs, *options, "status", "--porcelain", "--untracked-files=all").stdout
    expected = answer.splitlines()
    assert _status(mine) == sorted(expected)


def _is_dirty(state):
    return state[3] not in (NOTHING, state[2])


def _loses_unseen(state):
    """Restoring would delete a tracked file that holds what is stored nowhere: mvc refuses."""
    return state[1] == NOTHING != state[2] and _is_dirty(state)


EVERYTHING = "."
VERBS = {
    "checkout -f other": lambda repo: repo.checkout("other", force=True),
    "checkout --detach main": lambda repo: repo.checkout("main", detach=True),
    "reset --hard other": lambda repo: repo.reset("other", mode="hard"),
    "reset --hard": lambda repo: repo.reset(mode="hard"),
    "reset -q --mixed other": lambda repo: repo.reset("other"),
    "reset -q": lambda repo: repo.reset(),
    "reset --soft other": lambda repo: repo.reset("other", mode="soft"),
    "reset -q other -- .": lambda repo: repo.reset("other", paths=EVERYTHING),
    "reset -q -- .": lambda repo: repo.reset(paths=EVERYTHING),
    "checkout other -- .": lambda repo: repo.checkout("other", paths=EVERYTHING),
    "checkout -- .": lambda repo: repo.restore(EVERYTHING),
    "restore .": lambda repo: repo.restore(EVERYTHING),
    "restore --staged .": lambda repo: repo.restore(EVERYTHING, staged=True, worktree=False),
    "add .": lambda repo: repo.add(EVERYTHING),
    "commit -q -am all": lambda repo: repo.commit("all", everything=True),
    "rm -q -r --cached -f .": lambda repo: repo.remove(
        EVERYTHING, cached=True, force=True, recursive=True
    ),
    "rm -q -r -f .": lambda repo: repo.remove(EVERYTHING, force=True, recursive=True),
    "mv a moved": lambda repo: repo.move("a", "moved"),
}  # fmt: skip
LOSING_VERBS = {
    "restore --source=other --staged --worktree .": lambda repo: repo.restore(
        EVERYTHING, source="other", staged=True
    ),
    "restore --source=other .": lambda repo: repo.restore(EVERYTHING, source="other"),
}


@pytest.mark.parametrize("command", VERBS)
def test_verb_does_what_git_does(command, twins):
    mine, theirs = twins
    if command.startswith("mv"):  # Git moves no folder with a tracked file missing in it
        drop = [state for state in STATES if state[2] != NOTHING and state[3] == NOTHING]
        for root in twins:
            _drop(root, drop)
    _git(theirs, *command.split())
    VERBS[command](Repo.open(mine))
    left, right = _snapshot(mine), _snapshot(theirs)
    if command.startswith("commit"):  # another time, another id: the trees are compared
        trees = [_git(root, "rev-parse", "HEAD^{tree}").stdout for root in twins]
        assert trees[0] == trees[1]
        del left["head"], right["head"]
    assert left == right
    assert _git(mine, "fsck", "--strict").returncode == 0


@pytest.mark.parametrize("command", LOSING_VERBS)
def test_restore_keeps_what_is_stored_nowhere(command, twins):
    mine, theirs = twins
    before = _snapshot(mine)
    with pytest.raises(ConflictError, match="stored nowhere"):
        LOSING_VERBS[command](Repo.open(mine))
    assert _snapshot(mine) == before
    for root in twins:
        _drop(root, [state for state in STATES if _loses_unseen(state)])
    _git(theirs, *command.split())
    LOSING_VERBS[command](Repo.open(mine))
    assert _snapshot(mine) == _snapshot(theirs)


@pytest.mark.parametrize("command", ["rm -r .", "rm -r --cached ."])
def test_rm_refuses_what_git_refuses(command, template, tmp_path):
    """Git names all files it will not remove, mvc the first one: they are tried one by one."""
    theirs = tmp_path / "git"
    shutil.copytree(template, theirs)
    answer = _git(theirs, *command.split(), check=False)
    refused = {line.strip() for line in answer.stderr.splitlines() if re.match(r"\s+\S", line)}
    repo = Repo.open(template)
    context = repo._context
    from mvc.operations.remove import _check_committed

    index, cached = context.history.read_index(), "--cached" in command
    mine = set()
    for path in index.entries:
        try:
            _check_committed(context, index, [path], cached=cached)
        except ConflictError:
            mine.add(path)
    # A file that is staged, not committed, and gone from the disk: Git forgets it, mvc asks.
    gone = {
        _name(state) for state in STATES if state[3] == NOTHING != state[2] and state[0] != state[2]
    }
    assert mine - (gone if not cached else set()) == refused
    assert (gone <= mine) or cached


def test_switch_with_a_new_branch_touches_nothing(twins):
    mine, theirs = twins
    _git(theirs, "switch", "-c", "fresh")
    Repo.open(mine).switch("fresh", create=True)
    assert _snapshot(mine) == _snapshot(theirs)
    logs = [root / ".mvc/logs/HEAD" for root in twins]
    assert [log.read_text().rpartition("\t")[2] for log in logs] == [
        "checkout: moving from main to fresh\n"
    ] * 2
