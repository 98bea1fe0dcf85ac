"""The repository against a plain model of it, under random sequences of verbs and edits.

After every step status, HEAD, index, worktree and ``ls`` say what the model says; a verb fails
exactly where the model refuses, with that error, and then nothing has changed. In the end the
store is sound and every commit ever made checks out as it was.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import save

from mvc import ConflictError, MvcError, NotFoundError, Repo
from mvc.history.git import GitHistory
from support.bounds import bounded
from support.models import contents
from support.plain_repo import LINK, PLAIN, PROGRAM, PlainRepo, Refused
from support.walks import fresh_folder, walk

# "d" is a file in some worlds and a folder in others.
PLAIN_PATHS = ("a", "d", "d/c", "d/f/g")
MODEL_PATHS = ("m.safetensors", "d/n.safetensors")
PATHS = (*PLAIN_PATHS, *MODEL_PATHS)
BRANCHES = ("main", "side", "try/it")
MODES = ("soft", "mixed", "hard")


def _model(value, rows=40):
    weights = np.arange(rows * 16, dtype=np.float32).reshape(rows, 16)
    return save({"w": weights, "b": np.full(7, value, np.float16)})


PLAIN_CONTENTS = (b"one\n", b"two\n", b"")
MODEL_CONTENTS = (_model(0), _model(np.nan), b"no model at all\n", b"")
LINKS = (b"a", b"nowhere", b"d/f")


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


def _remove_empty_folders(root):
    for folder, _, _ in os.walk(root, topdown=False):
        if ".mvc" not in Path(folder).parts and not os.listdir(folder):
            os.rmdir(folder)


def _edit_unseen(target, data):
    """Overwrite a file in place and turn its time back; only the change time tells."""
    before = target.stat()
    target.write_bytes(data)
    while True:  # until the clock that file systems use has moved on
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
        if target.stat().st_ctime_ns != before.st_ctime_ns:
            return


class RepositoryMachine:
    """Every method does the same to the repository and to the model."""

    def __init__(self, root, random, *, has_history):
        self.root, self.random, self.trail = root, random, []
        self.repo, self.model = Repo.init(self.root), PlainRepo()
        self.repo.set_config("mvc.chunkbytes", "1024")
        self.blobs = {}
        if has_history:
            self.commit_all()
            self.switch_new("side", 0, has_start=False)
            self.commit_all()
            self.switch("main", force=False)
            self.write_many()

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
        known = [*used * 4, "d", "d/f", "", *PATHS]
        return known[position % len(known)]

    def _id(self, commit):
        return self.model.commits[commit].id

    def can(self, rule):
        """Whether there is something to do it with."""
        if rule in ("checkout", "restore_from", "checkout_paths", "change_names"):
            return bool(self.model.commits)
        return rule not in ("edit_unseen", "delete", "change_mode", "touch") or bool(
            self.model.work
        )

    # The user.

    def write_many(self):
        """Write some files; return their paths."""
        paths = [self.random.choice(PATHS) for _ in range(self.random.randint(1, 4))]
        for path in paths:
            mode = self.random.choice((PLAIN, PLAIN, PLAIN, PROGRAM, LINK))
            content = _content(path, mode, self.random.choice(_any))
            _write(self.root, path, content)
            self.model.put(path, content)
        return paths

    def edit_unseen(self, position):
        """Change the last byte of a file; its length and time stay."""
        path = sorted(self.model.work)[position % len(self.model.work)]
        mode, data = self.model.work[path]
        if mode != LINK and data:
            new = data[:-1] + bytes([data[-1] ^ 1])
            _edit_unseen(self.root / path, new)
            self.model.put(path, (mode, new))

    def delete(self, position):
        path = sorted(self.model.work)[position % len(self.model.work)]
        (self.root / path).unlink()
        del self.model.work[path]

    def change_mode(self, position):
        path = sorted(self.model.work)[position % len(self.model.work)]
        mode, data = self.model.work[path]
        if mode != LINK:
            mode = PROGRAM if mode == PLAIN else PLAIN
            (self.root / path).chmod(mode & 0o777)
            self.model.put(path, (mode, data))

    def touch(self, position):
        os.utime(self.root / sorted(self.model.work)[position % len(self.model.work)],
                 ns=(1, 1), follow_symlinks=False)  # fmt: skip

    def reopen(self):
        self.repo = Repo.open(self.root)

    # Into history.

    def commit_all(self):
        self.write_many()
        self.add_everything()
        self.commit(everything=False, amend=False)

    def stage(self):
        for path in self.write_many():
            self._add(path)

    def add(self, position):
        self._add(self._path(position))

    def _add(self, path):
        self._do(lambda: self.model.add(path), lambda: self.repo.add(path or "."))

    def add_everything(self):
        self._do(lambda: self.model.add(""), lambda: self.repo.add("."))

    def commit(self, everything, amend):
        result = self._do(
            lambda: self.model.commit(everything=everything, amend=amend),
            lambda: self.repo.commit(
                f"number {len(self.model.commits)}", everything=everything, amend=amend
            ),
        )
        if result is not None:
            self.model.commits[-1].id = result.commit

    def remove(self, position, cached, force):
        path = self._path(position) or "d"
        self._do(
            lambda: self.model.remove(path, cached=cached, force=force),
            lambda: self.repo.remove(path, cached=cached, force=force),
        )

    def remove_folder(self, position, cached, force):
        path = self._path(position)
        options = {"cached": cached, "force": force, "recursive": True}
        self._do(
            lambda: self.model.remove(path, **options),
            lambda: self.repo.remove(path or ".", **options),
        )

    def move(self, position, place, force):
        source = self._path(position) or "d"
        if source in MODEL_PATHS:  # a file is stored as what its name says when it is added
            source, place = MODEL_PATHS[:: 1 if force else -1]
        _remove_empty_folders(self.root)  # of which the model knows nothing
        self._do(
            lambda: self.model.move(source, place, force=force),
            lambda: self.repo.move(source, place, force=force),
        )

    # Going places.

    def checkout(self, position, force):
        commit = self._some(position)
        self._do(
            lambda: self.model.checkout(commit, force=force),
            lambda: self.repo.checkout(self._id(commit), force=force),
        )

    def switch(self, name, force):
        self._do(
            lambda: self.model.switch(name, force=force),
            lambda: self.repo.switch(name, force=force),
        )

    def switch_new(self, name, position, has_start):
        start = self._some(position) if has_start and self.model.commits else None
        self._do(
            lambda: self.model.switch_new(name, start),
            lambda: self.repo.switch(
                name, create=True, start=None if start is None else self._id(start)
            ),
        )

    def restore(self, position, staged, worktree):
        path = self._path(position)
        options = {"staged": staged, "worktree": worktree or not staged}
        self._do(
            lambda: self.model.restore(path, **options),
            lambda: self.repo.restore(path or ".", **options),
        )

    def restore_from(self, name, position, staged, worktree):
        path, commit = self._path(name), self._some(position)
        options = {"staged": staged, "worktree": worktree or not staged}
        self._do(
            lambda: self.model.restore(path, source=commit, **options),
            lambda: self.repo.restore(path or ".", source=self._id(commit), **options),
        )

    def checkout_paths(self, name, position):
        path, commit = self._path(name), self._some(position)
        self._do(
            lambda: self.model.restore(path, source=commit, staged=True, overlay=True),
            lambda: self.repo.checkout(self._id(commit), paths=[path or "."]),
        )

    def reset(self, mode, position, to_head):
        to_head = to_head or not self.model.commits
        commit = self.model.at if to_head else self._some(position)
        self._do(
            lambda: self.model.reset(commit, mode),
            lambda: self.repo.reset("HEAD" if to_head else self._id(commit), mode=mode),
        )

    # Names.

    def change_names(self, verb, name, position, force):
        commit = self._some(position)
        at, message = self._id(commit), name if force else None
        on_model, on_repo = {
            "branch": (
                lambda: self.model.create_branch(name, commit, force=force),
                lambda: self.repo.branches.create(name, at, force=force),
            ),
            "delete": (
                lambda: self.model.delete_branch(name, force=force),
                lambda: self.repo.branches.delete(name, force=force),
            ),
            "tag": (
                lambda: self.model.tag(name, commit, force=force),
                lambda: self.repo.tags.create(name, at, force=force, message=message),
            ),
        }[verb]
        self._do(on_model, on_repo)

    # What must hold.

    def check(self):
        assert contents(self.root) == self.model.work
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
        entries = GitHistory.open(self.root / ".mvc").read_index().entries
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
        named = {ref.name: ref.commit for ref in self.repo.branches.list()}
        assert named == {name: self._id(at) for name, at in self.model.branches.items()}
        tags = {
            ref.name: self.repo.resolve(f"refs/tags/{ref.name}^{{commit}}")
            for ref in self.repo.tags.list()
        }
        assert tags == {name: self._id(at) for name, at in self.model.tags.items()}

    def check_end(self):
        report = Repo.open(self.root).upkeep.fsck(data=True)
        assert report.ok, report.problems
        for path in self.root.iterdir():
            if path.name != ".mvc":
                _delete(path)
        for commit in self.model.commits:
            self.repo.checkout(commit.id, force=True)
            assert contents(self.root) == commit.tree


_is, _seldom = (True, False), (True, False, False)
_any = range(41)
STEPS = {
    "write_many": {},
    "stage": {},
    "commit_all": {},
    "edit_unseen": {"position": _any},
    "delete": {"position": _any},
    "change_mode": {"position": _any},
    "touch": {"position": _any},
    "reopen": {},
    "add": {"position": _any},
    "commit": {"everything": _is, "amend": _seldom},
    "remove": {"position": _any, "cached": _is, "force": _seldom},
    "remove_folder": {"position": _any, "cached": _is, "force": _seldom},
    "move": {"position": _any, "place": PLAIN_PATHS, "force": _is},
    "checkout": {"position": _any, "force": _seldom},
    "switch": {"name": BRANCHES, "force": _seldom},
    "switch_new": {"name": BRANCHES, "position": _any, "has_start": _is},
    "restore": {"position": _any, "staged": _is, "worktree": _is},
    "restore_from": {"name": _any, "position": _any, "staged": _is, "worktree": _is},
    "checkout_paths": {"name": _any, "position": _any},
    "reset": {"mode": MODES, "position": _any, "to_head": _is},
    "change_names": {
        "verb": ("branch", "delete", "tag"), "name": BRANCHES, "position": _any, "force": _is,
    },
}  # fmt: skip


@pytest.mark.parametrize("seed", range(bounded(12, 200)))
def test_random_walk(seed):
    random = Random(seed)
    single = sorted(STEPS.keys() - {"write_many", "stage", "commit_all"})
    with fresh_folder() as root:
        machine = RepositoryMachine(root, random, has_history=seed % 6)
        try:
            for _ in range(10):
                walk(machine, STEPS, random.sample(single, 3), random)
                verbs = random.choices(("write_many", "stage", "commit_all"), (4, 4, 1))
                walk(machine, STEPS, verbs, random)
            machine.check_end()
        except BaseException:
            print(*machine.trail, sep="\n")
            raise


# What the machine found, in the fewest steps.


def test_a_refused_commit_stages_nothing(tmp_path):
    repo = Repo.init(tmp_path)
    (tmp_path / "a").write_text("one")
    repo.add("a")
    repo.commit("first")
    (tmp_path / "a").write_text("two")
    repo.add("a")
    (tmp_path / "a").write_text("one")
    before = repo.status()
    for options in ({"everything": True}, {"paths": ["a"]}):
        with pytest.raises(ConflictError, match="nothing to commit"):
            repo.commit("second", **options)
        assert repo.status() == before


def test_only_what_is_tracked_can_be_moved(tmp_path):
    """A file that is a folder now, a folder that is a file, and a folder onto a file."""
    repo = Repo.init(tmp_path)
    for name in ("file", "folder/x", "target"):
        _write(tmp_path, name, (PLAIN, b"x"))
    repo.add(".")
    _write(tmp_path, "file/y", (PLAIN, b"y"))
    with pytest.raises(NotFoundError):
        repo.move("file", "new")
    with pytest.raises(ConflictError):
        repo.move("folder", "target", force=True)
    _write(tmp_path, "folder", (PLAIN, b"y"))
    with pytest.raises(NotFoundError):
        repo.move("folder", "new")
    assert sorted(contents(tmp_path)) == ["file/y", "folder", "target"]
    _check_staged(tmp_path, ["file", "folder/x", "target"])


def _check_staged(root, paths):
    assert sorted(GitHistory.open(root / ".mvc").read_index().entries) == paths
