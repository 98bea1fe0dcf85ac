"""What the children of a zygote do: each opens the repository anew, as a command would."""

from __future__ import annotations

import contextlib
import random
import resource
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from mvc import ConflictError, Repo
from mvc.chunkstore import listing
from mvc.history import object_gather
from mvc.history.values import Identity, Stamp
from mvc.operations import aftercare
from support.kept_repo import commit_step, load_exactly

WHO = Identity("Ann", "ann@example.org")


def warm_up():
    """Go every way once, so that no child has anything left to import."""
    root = Path(tempfile.mkdtemp())
    try:
        Repo.init(root)
        (root / "a").write_text("a")
        (root / "w.npy").write_bytes(b"\x93NUMPY")
        add_and_commit(root, "one")
        commit_state(root, 1)
        checkout(root, "HEAD~1")
        switch(root, "main")
        move_names(root, "HEAD")
        load_state(root, "main")
        (root / "a").write_text("b")
        assert Repo.open(root).diff()
        gc(root)
        prune(root, keep_last=1)
        repack(root)
        fsck(root)
    finally:
        shutil.rmtree(root)


def add_and_commit(root, message):
    return _add_and_commit(Repo.open(root, identity=WHO), ".", message)


def add(root, path):
    Repo.open(root, identity=WHO).add(path)


def _retry(root, act, attempts):
    """Do to a repository what may come into conflict with others; return what it returns."""
    for attempt in range(attempts):
        try:
            return act(Repo.open(root, identity=WHO))
        except ConflictError as error:
            if "nothing to commit" in str(error):
                return None  # another process took it along: the index is everybody's
            if attempt == attempts - 1:
                raise
    return None


def _add_and_commit(repo, path, message):
    repo.add(path)
    return repo.commit(message).commit


def write_and_commit(root, path, text, attempts=1):
    """Write a file of one's own, add and commit it; conflicts are tried again."""
    (root / path).write_text(text)
    message = f"{path}: {text[:20]}"
    return _retry(root, lambda repo: _add_and_commit(repo, path, message), attempts)


def commit_many_files(root, name, rounds):
    """Commit a folder of one's own, of more files than stay loose, again and again."""
    for number in range(rounds):
        (root / name).mkdir(exist_ok=True)
        for file in range(40):
            (root / name / f"{file}.txt").write_text(f"{name} {file} of round {number}")
        _retry(root, lambda repo, text=f"{name} {number}": _add_and_commit(repo, name, text), 200)


def collect(root, rounds):
    """Remove everything that nothing reaches, of whatever age, again and again."""
    for _ in range(rounds):
        repo = Repo.open(root, identity=WHO)
        with contextlib.suppress(ConflictError):
            repo.upkeep.gc(repo.upkeep.plan_gc(grace_s=0))


def make_state(number):
    """Return a state whose every part tells which one it is."""
    return {
        "weights": {"w": np.full(300, number, np.float32), "b": np.arange(7.0) + number},
        "step": number,
    }


def commit_state(root, number, branch=None, attempts=1):
    options = {"message": f"state {number}", "step": number, "branch": branch}
    return _retry(
        root, lambda repo: repo.commit_state(make_state(number), **options).commit, attempts
    )


def load_state(root, revision):
    """Return the number of a state, after looking whether it is one piece."""
    state = Repo.open(root).load_state(revision, framework="numpy")
    number = state["step"]
    wanted = make_state(number)
    assert (state["weights"]["w"] == wanted["weights"]["w"]).all()
    assert (state["weights"]["b"] == wanted["weights"]["b"]).all()
    return number


def commit_states(root, first, count, branch=None, attempts=1, gathers=False):
    with gathering_often() if gathers else contextlib.nullcontext():
        for number in range(first, first + count):
            commit_state(root, number, branch=branch, attempts=attempts)


def fsck_until(root, until):
    """Check the whole repository over and over until main has that state."""
    repo = Repo.open(root)
    while load_state(root, "main") != until:
        for each in (repo, Repo.open(root)):
            report = each.upkeep.fsck(data=True)
            assert report.ok, report.problems


def checkout(root, revision):
    Repo.open(root, identity=WHO).checkout(revision)


def checkout_often(root, revisions, times):
    for number in range(times):
        checkout(root, revisions[number % len(revisions)])


def switch(root, branch):
    Repo.open(root, identity=WHO).switch(branch)


def move_names(root, revision):
    """Make, move and delete branches and tags."""
    repo = Repo.open(root, identity=WHO)
    repo.branches.create("moving", revision, force=True)
    repo.branches.create("gone", revision, force=True)
    repo.tags.create("v1", revision, message="one", force=True)
    repo.branches.delete("gone", force=True)
    repo.branches.rename("moving", "moved", force=True)


def fsck(root):
    report = Repo.open(root).upkeep.fsck(data=True)
    return [problem.detail for problem in report.problems]


def add_with_limit(root, path, limit_bytes):
    """Add a file in a process that may not write longer files than that."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    add(root, path)


def gc(root, grace_s=0):
    Repo.open(root, identity=WHO).upkeep.gc(grace_s=grace_s)


def repack(root):
    Repo.open(root, identity=WHO).upkeep.repack()


@contextlib.contextmanager
def gathering_often():
    """Let two packs and a handful of objects be many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "GATHER_PACKS", 2)
        patch.setattr(object_gather, "GATHER_PACKS", 2)
        patch.setattr(object_gather, "_CROWD", 1)
        patch.setattr(object_gather, "FEW_OBJECTS", 1)
        yield


def gather(root):
    """Join small packs as a commit does, from the second on."""
    with gathering_often():
        context = Repo.open(root, identity=WHO)._context
        aftercare.gather(context, context.history.head().commit)
        while listing.find_crowd(context.list_packs()):  # no call joins very many
            aftercare.gather(context, context.history.head().commit)


def prune(root, keep_last):
    repo = Repo.open(root, identity=WHO)
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=keep_last))


def train_beside(root, end, count):
    """Commit, branch, delete, reset; return the commits of main that count, the newest last."""
    repo, line = Repo.open(root, identity=WHO), []
    try:
        for number in range(count):
            line.append(commit_step(repo, number, delta=(None, True, False)[number % 3]))
            if number % 5 == 2:
                repo.branches.create(f"try-{number}")
                commit_step(repo, number + 1, branch=f"try-{number}")
                repo.branches.delete(f"try-{number}", force=True)
            if number % 7 == 4:
                repo.reset("HEAD~1", mode="hard")
                line.pop()
    finally:
        Path(end).touch()
    return line


def read_beside(root, end, seed):
    """Load commits of main at random until a file turns up; return how many."""
    repo, chooser, count = Repo.open(root), random.Random(seed), 0
    while not Path(end).exists() or not count:
        entries = list(repo.log("main", limit=60))
        load_exactly(repo, chooser.choice(entries).id)
        count += 1
        if count % 10 == 0:
            repo = Repo.open(root)
    return count


def read_for_a_while(root, until):
    """Load and check the newest state of main over and over until it is that one."""
    newest = -1
    while newest != until:
        number = load_state(root, "main")
        assert number >= newest, f"{number} after {newest}"
        newest = number


def sweep_until(root, end):
    """gc and repack in turn until a file turns up; return how often each removed anything."""
    counts = [0, 0]
    while True:
        is_last = Path(end).exists()
        repo = Repo.open(root, identity=WHO)
        counts[0] += repo.upkeep.gc(grace_s=0).removed_objects > 0
        counts[1] += repo.upkeep.repack().removed_packs > 0
        if is_last:
            return counts


def status_codes(root, untracked=True):
    return {file.path: file.code for file in Repo.open(root).status(untracked=untracked).files}


def checkout_empty(root):
    """Go to a commit that has no file at all."""
    repo = Repo.open(root, identity=WHO)
    history = repo._context.history
    empty = history.write_commit(
        tree=history.write_tree({}),
        parents=[],
        message="empty",
        author=Stamp(WHO, 1_700_000_000, 0),
    )
    repo.checkout(empty)


def look_at_everything(root):
    """Run every command that only reads, dry runs included."""
    repo = Repo.open(root, identity=WHO)
    assert repo.status().files
    assert list(repo.log(everything=True))
    assert repo.ls("two")
    assert repo.diff("main", "two")
    assert repo.diff() is not None
    assert repo.tensor("two", "model.safetensors", "norm").shape == (32,)
    assert repo.read_file("two", "folder/notes.txt")
    assert repo.branches.list()
    assert repo.reflog()
    report = repo.upkeep.fsck(data=True)
    assert report.ok, report.problems
    assert repo.upkeep.plan_gc(grace_s=0).marks
    assert repo.upkeep.plan_repack(everything=True).marks
    assert repo.upkeep.plan_prune(keep_last=1).commits
    assert repo.plan_add(".").read
    assert repo.undo(dry_run=True).kind
    assert repo.upkeep.du().totals
