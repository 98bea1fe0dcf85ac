"""The repository against a plain model of it, under random sequences of verbs and edits.

After every step status, HEAD, index, worktree and ``ls`` say what the model says; a verb fails
exactly where the model refuses, with that error, and then nothing has changed. In the end the
store is sound and every commit ever made checks out as it was.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from safetensors.numpy import save

from mvc import MvcError, Repo
from mvc.history.git import History
from support.plain_repo import LINK, PLAIN, PROGRAM, PlainRepo, Refused

# "d" is a file in some worlds and a folder in others.
PLAIN_PATHS = ("a", "e.txt", "d", "d/c", "d/f/g")
MODEL_PATHS = ("m.safetensors", "d/n.safetensors")
PATHS = (*PLAIN_PATHS, *MODEL_PATHS)
BRANCHES = ("main", "side", "try/it")
MODES = ("soft", "mixed", "hard")


def _model(value, rows=40):
    weights = np.arange(rows * 16, dtype=np.float32).reshape(rows, 16)
    return save({"w": weights, "b": np.full(7, value, np.float16)})


# Several of the same length: an edit may leave size and time as they were.
PLAIN_CONTENTS = (b"one\n", b"two\n", b"six\n", b"a longer text\n", b"")
MODEL_CONTENTS = (
    _model(0),
    _model(1),
    _model(np.nan),
    _model(0, rows=41),
    b"no model at all\n",
    b"",
)
LINKS = (b"a", b"nowhere", b"d/f")

paths = st.sampled_from(PATHS)
names = st.sampled_from(PLAIN_PATHS)
positions = st.integers(0, 40)
contents = st.integers(0, 40)
modes = st.sampled_from((PLAIN, PLAIN, PLAIN, PROGRAM, LINK))
worlds = st.lists(st.tuples(paths, modes, contents), min_size=1, max_size=5)
seldom = st.sampled_from((False, False, True))


def _content(path, mode, number):
    if mode == LINK:
        return LINK, LINKS[number % len(LINKS)]
    pool = MODEL_CONTENTS if path in MODEL_PATHS else PLAIN_CONTENTS
    return mode, pool[number % len(pool)]


def _delete(target):
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _write(root, path, content):
    """Put a file where the user wants it, whatever is in the way."""
    mode, data = content
    target, place = root / path, root
    for name in path.split("/")[:-1]:
        place = place / name
        if place.is_symlink() or place.is_file():
            place.unlink()
        place.mkdir(exist_ok=True)
    _delete(target)
    if mode == LINK:
        os.symlink(data, os.fsencode(target))
    else:
        target.write_bytes(data)
        target.chmod(mode & 0o777)


def _edit_unseen(target, data):
    """Overwrite a file in place and turn its time back; only the change time tells."""
    before = target.stat()
    target.write_bytes(data)
    while True:  # until the clock that file systems use has moved on
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
        if target.stat().st_ctime_ns != before.st_ctime_ns:
            return


def _read_worktree(root):
    found = {}
    for folder, folders, names in os.walk(root):
        if folder == str(root):
            folders.remove(".mvc")
        for name in [*names, *(name for name in folders if (Path(folder) / name).is_symlink())]:
            path = Path(folder) / name
            if path.is_symlink():
                content = (LINK, os.readlink(os.fsencode(path)))
            else:
                is_program = path.stat().st_mode & 0o100
                content = (PROGRAM if is_program else PLAIN, path.read_bytes())
            found[path.relative_to(root).as_posix()] = content
    return found


class RepositoryMachine(RuleBasedStateMachine):
    """Every rule does the same to the repository and to the model."""

    @initialize(first=worlds, second=worlds, third=worlds, has_history=st.integers(0, 5))
    def begin(self, first, second, third, has_history):
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root = Path(tempfile.mkdtemp(prefix="mvc-test-", dir=memory))
        self.repo, self.model = Repo.init(self.root), PlainRepo()
        self.repo.set_config("mvc.chunkbytes", "1024")
        self.blobs = {}
        if has_history:
            self.commit_all(first)
            self.switch_new("side", 0, has_start=False)
            self.commit_all(second)
            self.switch("main", force=False)
            self.write_many(third)

    def _do(self, on_model, on_repo):
        """Run both; the same error or none. Return what the repository answered."""
        try:
            on_model()
        except Refused as refused:
            with pytest.raises(MvcError) as error:
                on_repo()
            assert type(error.value).__name__ in refused.kinds, error.value
            return None
        return on_repo()

    def _some(self, position):
        return position % len(self.model.commits)

    def _path(self, position):
        """Return a name that is in use, mostly; or a folder's, or everything."""
        model = self.model
        used = sorted({*model.work, *model.index, *model.head})
        known = [*used, *used, "d", "d/f", "", *PATHS]
        return known[position % len(known)]

    def _id(self, commit):
        return self.model.commits[commit].id

    # The user.

    @rule(world=worlds)
    def write_many(self, world):
        for path, mode, number in world:
            content = _content(path, mode, number)
            _write(self.root, path, content)
            self.model.put(path, content)

    @precondition(lambda self: self.model.work)
    @rule(position=positions, number=contents)
    def edit_unseen(self, position, number):
        path = sorted(self.model.work)[position % len(self.model.work)]
        mode, data = self.model.work[path]
        new = _content(path, PLAIN, number)[1]
        if mode == LINK or len(new) != len(data) or not data:
            return
        _edit_unseen(self.root / path, new)
        self.model.put(path, (mode, new))

    @precondition(lambda self: self.model.work)
    @rule(position=positions)
    def delete(self, position):
        path = sorted(self.model.work)[position % len(self.model.work)]
        (self.root / path).unlink()
        del self.model.work[path]

    @precondition(lambda self: self.model.work)
    @rule(position=positions)
    def change_mode(self, position):
        path = sorted(self.model.work)[position % len(self.model.work)]
        mode, data = self.model.work[path]
        if mode != LINK:
            mode = PROGRAM if mode == PLAIN else PLAIN
            (self.root / path).chmod(mode & 0o777)
            self.model.put(path, (mode, data))

    @precondition(lambda self: self.model.work)
    @rule(position=positions)
    def touch(self, position):
        os.utime(self.root / sorted(self.model.work)[position % len(self.model.work)],
                 ns=(1, 1), follow_symlinks=False)  # fmt: skip

    @rule()
    def reopen(self):
        self.repo = Repo.open(self.root)

    # Into history.

    @rule(world=worlds)
    def commit_all(self, world):
        self.write_many(world)
        self.add_everything()
        self.commit(everything=False, amend=False)

    @rule(position=positions)
    def add(self, position):
        path = self._path(position)
        self._do(lambda: self.model.add(path), lambda: self.repo.add(path or "."))

    @rule()
    def add_everything(self):
        self._do(lambda: self.model.add(""), lambda: self.repo.add("."))

    @rule(everything=st.booleans(), amend=seldom)
    def commit(self, everything, amend):
        result = self._do(
            lambda: self.model.commit(everything=everything, amend=amend),
            lambda: self.repo.commit(
                f"number {len(self.model.commits)}", everything=everything, amend=amend
            ),
        )
        if result is not None:
            self.model.commits[-1].id = result.commit

    @rule(position=positions, cached=st.booleans(), force=seldom)
    def remove(self, position, cached, force):
        path = self._path(position) or "d"
        self._do(
            lambda: self.model.remove(path, cached=cached, force=force),
            lambda: self.repo.remove(path, cached=cached, force=force),
        )

    @rule(position=positions, cached=st.booleans(), force=seldom)
    def remove_folder(self, position, cached, force):
        path = self._path(position)
        options = {"cached": cached, "force": force, "recursive": True}
        self._do(
            lambda: self.model.remove(path, **options),
            lambda: self.repo.remove(path or ".", **options),
        )

    @precondition(lambda self: self.model.index)
    @rule(position=positions, place=names, force=st.booleans())
    def move(self, position, place, force):
        source = self._path(position) or "d"
        if source in MODEL_PATHS:  # a file is stored as what its name says when it is added
            source, place = MODEL_PATHS[:: 1 if force else -1]
        self._do(
            lambda: self.model.move(source, place, force=force),
            lambda: self.repo.move(source, place, force=force),
        )

    # Going places.

    @precondition(lambda self: self.model.commits)
    @rule(position=positions, force=seldom)
    def checkout(self, position, force):
        commit = self._some(position)
        self._do(
            lambda: self.model.checkout(commit, force=force),
            lambda: self.repo.checkout(self._id(commit), force=force),
        )

    @precondition(lambda self: self.model.branches)
    @rule(name=st.sampled_from(BRANCHES), force=seldom)
    def switch(self, name, force):
        self._do(
            lambda: self.model.switch(name, force=force),
            lambda: self.repo.switch(name, force=force),
        )

    @rule(name=st.sampled_from(BRANCHES), position=positions, has_start=st.booleans())
    def switch_new(self, name, position, has_start):
        start = self._some(position) if has_start and self.model.commits else None
        self._do(
            lambda: self.model.switch_new(name, start),
            lambda: self.repo.switch(
                name, create=True, start=None if start is None else self._id(start)
            ),
        )

    @rule(position=positions, staged=st.booleans(), worktree=st.booleans())
    def restore(self, position, staged, worktree):
        path = self._path(position)
        options = {"staged": staged, "worktree": worktree or not staged}
        self._do(
            lambda: self.model.restore(path, **options),
            lambda: self.repo.restore(path or ".", **options),
        )

    @precondition(lambda self: self.model.commits)
    @rule(name=positions, position=positions, staged=st.booleans(), worktree=st.booleans())
    def restore_from(self, name, position, staged, worktree):
        path, commit = self._path(name), self._some(position)
        options = {"staged": staged, "worktree": worktree or not staged}
        self._do(
            lambda: self.model.restore(path, source=commit, **options),
            lambda: self.repo.restore(path or ".", source=self._id(commit), **options),
        )

    @precondition(lambda self: self.model.commits)
    @rule(name=positions, position=positions)
    def checkout_paths(self, name, position):
        path, commit = self._path(name), self._some(position)
        self._do(
            lambda: self.model.restore(path, source=commit, staged=True, overlay=True),
            lambda: self.repo.checkout(self._id(commit), paths=[path or "."]),
        )

    @rule(mode=st.sampled_from(MODES), position=positions, to_head=st.booleans())
    def reset(self, mode, position, to_head):
        to_head = to_head or not self.model.commits
        commit = self.model.at if to_head else self._some(position)
        self._do(
            lambda: self.model.reset(commit, mode),
            lambda: self.repo.reset("HEAD" if to_head else self._id(commit), mode=mode),
        )

    # Names.

    @precondition(lambda self: self.model.commits)
    @rule(name=st.sampled_from(BRANCHES), position=positions, force=st.booleans())
    def create_branch(self, name, position, force):
        commit = self._some(position)
        self._do(
            lambda: self.model.create_branch(name, commit, force=force),
            lambda: self.repo.create_branch(name, self._id(commit), force=force),
        )

    @precondition(lambda self: len(self.model.branches) > 1)
    @rule(name=st.sampled_from(BRANCHES), force=seldom)
    def delete_branch(self, name, force):
        self._do(
            lambda: self.model.delete_branch(name, force=force),
            lambda: self.repo.delete_branch(name, force=force),
        )

    @precondition(lambda self: self.model.commits)
    @rule(name=st.sampled_from(("v1", "v2")), position=positions, force=st.booleans())
    def tag(self, name, position, force):
        commit = self._some(position)
        self._do(
            lambda: self.model.tag(name, commit, force=force),
            lambda: self.repo.create_tag(
                name, self._id(commit), force=force, message=name if force else None
            ),
        )

    # What must hold.

    @invariant()
    def agrees(self):
        if not hasattr(self, "repo"):
            return
        assert _read_worktree(self.root) == self.model.work
        status = self.repo.status()
        rows = {row.path: (row.staged, row.worktree, row.old_path) for row in status.files}
        assert rows == self.model.status()
        at = None if self.model.at is None else self._id(self.model.at)
        head = self.repo.head
        assert (head.branch, head.commit) == (self.model.branch, at)
        assert (status.branch, status.commit) == (self.model.branch, at)
        self._check_index()
        self._check_names()
        if at is not None:
            files = {file.path: (file.mode, file.blob) for file in self.repo.ls("HEAD")}
            self._check_blobs(files, self.model.head)

    def _check_index(self):
        entries = History.open(self.root / ".mvc").read_index().entries
        found = {path: (entry.mode, entry.blob) for path, entry in entries.items()}
        self._check_blobs(found, self.model.index)

    def _check_blobs(self, found, tree):
        """Equal contents have equal ids and others have others, wherever they turn up."""
        assert {path: mode for path, (mode, _) in found.items()} == {
            path: mode for path, (mode, _) in tree.items()
        }
        for path, (_, blob) in found.items():
            assert self.blobs.setdefault(blob, tree[path][1]) == tree[path][1]

    def _check_names(self):
        named = {ref.name: ref.commit for ref in self.repo.branches()}
        assert named == {name: self._id(at) for name, at in self.model.branches.items()}
        tags = {ref.name: self.repo.resolve(f"{ref.name}^{{commit}}") for ref in self.repo.tags()}
        assert tags == {name: self._id(at) for name, at in self.model.tags.items()}

    def teardown(self):
        if not hasattr(self, "repo"):
            return
        try:
            self._check_end()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    def _check_end(self):
        report = Repo.open(self.root).fsck(data=True)
        assert report.ok, report.problems
        for path in self.root.iterdir():
            if path.name != ".mvc":
                _delete(path)
        for commit in self.model.commits:
            self.repo.checkout(commit.id, force=True)
            assert _read_worktree(self.root) == commit.tree


TestRepositoryMachine = RepositoryMachine.TestCase
TestRepositoryMachine.settings = settings(
    max_examples=max(1, settings.default.max_examples // 2), stateful_step_count=25
)
