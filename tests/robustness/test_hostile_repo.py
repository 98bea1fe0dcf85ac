"""A repository written by an enemy: nothing outside the worktree is touched, nothing grows.

Trees, manifests and journals are written object by object, past everything that mvc itself would
refuse to write. A folder of sentinels lies beside the worktree; it and ``.git`` must not change.
"""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
import zlib

import numpy as np
import pytest
from blake3 import blake3

from mvc import Repo
from mvc.errors import (
    ConflictError,
    FormatError,
    MvcError,
    NotFoundError,
    StorageError,
    UnsupportedError,
    UsageError,
)
from mvc.ids import hash_git_object
from support import lying_remote
from support.models import digests, write_config, write_model

MEMORY_BYTES = 32 * 2**20
HUGE = 2**50


class Enemy:
    """A repository in ``box/repository`` with sentinels around it."""

    def __init__(self, box):
        self.box = box
        self.root = box / "repository"
        self.outside = box / "outside"
        self.outside.mkdir(parents=True)
        (self.outside / "x").write_text("precious")
        self.repo = Repo.init(self.root)
        (self.root / ".git").mkdir()
        (self.root / ".git/config").write_text("[core]\n")
        write_model(self.root / "model.safetensors", seed=1, layers=1, width=8)
        write_config(self.root / "config.json", epoch=1)
        self.repo.add(".")
        self.good = self.repo.commit("good").commit
        self.config = (self.root / ".mvc/config").read_bytes()
        self.files = digests(self.root)

    def object(self, kind, data):
        """Write a Git object without asking anybody; return its id."""
        name = hash_git_object(kind, data)
        path = self.root / ".mvc/objects" / name[:2] / name[2:]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(zlib.compress(b"%s %d\x00" % (kind.encode(), len(data)) + data))
        return name

    def blob(self, data=b"evil"):
        return self.object("blob", data)

    def tree(self, *entries):
        """Write a tree of (mode, name, id), in that order."""
        return self.object(*lying_remote.tree(*entries))

    def commit(self, tree, *parents):
        commit = self.object(*lying_remote.commit(tree, *parents))
        (self.root / ".mvc/refs/heads/evil").write_text(commit + "\n")
        return commit

    def check_untouched(self, files=None):
        """Check that nothing around the repository, and none of its own settings, changed."""
        assert sorted(os.listdir(self.box)) == ["outside", "repository"]
        assert os.listdir(self.outside) == ["x"]
        assert (self.outside / "x").read_text() == "precious"
        assert os.listdir(self.root / ".git") == ["config"]
        assert (self.root / ".git/config").read_text() == "[core]\n"
        assert (self.root / ".mvc/config").read_bytes() == self.config
        found = {path: one for path, one in digests(self.root).items() if path[:5] != ".git/"}
        assert found == {
            path: one for path, one in (files or self.files).items() if path[:5] != ".git/"
        }

    def verbs(self, revision):
        """Every way from a revision to the worktree, the index and the caller."""
        repo = self.repo
        return [
            lambda: repo.checkout(revision),
            lambda: repo.checkout(revision, force=True),
            lambda: repo.checkout(revision, paths=["."]),
            lambda: repo.restore(["."], source=revision),
            lambda: repo.restore(["."], source=revision, staged=True),
            lambda: repo.reset(revision, mode="hard"),
            lambda: repo.switch("made", create=True, start=revision),
            lambda: repo.ls(revision),
            lambda: repo.diff("HEAD", revision),
            lambda: repo.export(revision, self.root / "out.safetensors"),
        ]


@pytest.fixture
def enemy(tmp_path):
    return Enemy(tmp_path / "box")


FILE, LINK, FOLDER = 0o100644, 0o120000, 0o040000

# What is no name at all is known to ``tests/history``: here it must reach no file by any verb.
NAMES = [
    (b"..", b"outside", b"x"),
    (b"a", b"..", b"..", b"outside", b"x"),
    (b"sub", b".mvc", b"config"),
    (b".GIT", b"config"),
    (b"../outside/x",),
    (b"/tmp/mvc-evil",),
    (b"",),
    (b"..\\outside\\x",),
    (b"MVC~1", b"config"),
    (".m\u200cvc".encode(), b"config"),
]


@pytest.mark.parametrize("parts", NAMES, ids=lambda parts: ascii(b"/".join(parts))[2:42])
def test_names_that_lead_out(enemy, parts):
    *folders, last = parts
    made = enemy.tree((FILE, last, enemy.blob()))
    for name in reversed(folders):
        made = enemy.tree((FOLDER, name, made))
    commit = enemy.commit(made, enemy.good)
    for verb in enemy.verbs(commit):
        with pytest.raises(FormatError, match=r"not allowed|names"):
            verb()
        enemy.check_untouched()
    assert not enemy.repo.upkeep.fsck().ok
    assert enemy.repo.status().files == ()


def _odd_trees(enemy):
    blob = enemy.blob()
    yield enemy.tree((FILE, b"a", blob), (FILE, b"a", enemy.blob(b"other")))
    yield enemy.tree((FILE, b"a", blob), (FOLDER, b"a", enemy.tree((FILE, b"b", blob))))
    yield enemy.tree((0o160000, b"module", enemy.good))
    for mode in (0, 0o10644, 0o60644, 0o20644, 0o140755, 0o777777):  # pipe, devices, socket
        yield enemy.tree((mode, b"a", blob))
    yield enemy.tree((FILE, b"a", "12" * 20))  # a missing blob
    yield enemy.tree((FILE, b"a", enemy.tree((FILE, b"b", blob))))  # a tree as file
    yield enemy.tree((FOLDER, b"a", blob))  # a file as tree
    yield enemy.tree((LINK, b"a", enemy.blob(b"")))
    yield enemy.tree((LINK, b"a", enemy.blob(b"x\x00y")))
    yield enemy.good  # a commit as tree
    yield "34" * 20  # none


def test_odd_trees(enemy):
    for tree in _odd_trees(enemy):
        commit = enemy.commit(tree, enemy.good)
        for verb in enemy.verbs(commit)[:6]:
            with pytest.raises(FormatError):
                verb()
            enemy.check_untouched()


def test_a_case_collision_is_two_files_here(enemy):
    tree = enemy.tree((FILE, b"A", enemy.blob(b"big")), (FILE, b"a", enemy.blob(b"small")))
    enemy.repo.checkout(enemy.commit(tree), force=True)
    assert (enemy.root / "A").read_bytes() == b"big"
    assert (enemy.root / "a").read_bytes() == b"small"


# Links.


def test_no_commit_writes_through_a_link_of_another(enemy):
    blob = enemy.blob()
    link = enemy.commit(enemy.tree((LINK, b"a", enemy.blob(bytes(enemy.outside)))))
    below = enemy.commit(enemy.tree((FOLDER, b"a", enemy.tree((FILE, b"x", blob)))), link)
    for there, back in ((link, below), (below, link)) * 2:
        enemy.repo.checkout(there)
        enemy.repo.checkout(back)
    enemy.repo.checkout(link)
    assert (enemy.root / "a").is_symlink()
    enemy.repo.reset(below, mode="hard")
    assert not (enemy.root / "a").is_symlink()
    assert (enemy.root / "a/x").read_bytes() == b"evil"
    enemy.check_untouched({"a/x": hashlib.sha256(b"evil").hexdigest()})


def test_a_tree_with_a_link_and_files_below_it(enemy):
    below = enemy.tree((FILE, b"x", enemy.blob()))
    tree = enemy.tree((LINK, b"a", enemy.blob(bytes(enemy.outside))), (FOLDER, b"a", below))
    for verb in enemy.verbs(enemy.commit(tree, enemy.good)):
        with pytest.raises(FormatError):
            verb()
    enemy.check_untouched()


@pytest.fixture
def with_folder(enemy):
    """Return an enemy and two commits of his with ``sub/w.safetensors`` in two versions."""
    (enemy.root / "sub").mkdir()
    commits = []
    for seed in (1, 2):
        write_model(enemy.root / "sub/w.safetensors", seed=seed, layers=1, width=8)
        enemy.repo.add("sub")
        commits.append(enemy.repo.commit(f"sub {seed}").commit)
    enemy.files = {path: one for path, one in enemy.files.items() if not path.startswith("sub/")}
    return enemy, *commits


def test_a_parent_that_the_user_made_a_link(with_folder):
    enemy, first, _ = with_folder
    repo = enemy.repo
    (enemy.root / "sub").rename(enemy.box / "kept")
    os.symlink(enemy.outside, enemy.root / "sub")
    tries = [
        lambda: repo.checkout(first),
        lambda: repo.checkout(first, force=True),
        lambda: repo.checkout(first, paths=["sub/w.safetensors"]),
        lambda: repo.reset(first, mode="hard"),
        lambda: repo.restore(["sub/w.safetensors"]),
        lambda: repo.restore(["."], source=first),
        lambda: repo.add("sub/x"),
        lambda: repo.move("config.json", "sub/config.json"),
    ]
    (enemy.box / "kept/w.safetensors").unlink()
    (enemy.box / "kept").rmdir()
    for verb in tries:
        with pytest.raises((ConflictError, UsageError)):
            verb()
        assert (enemy.root / "sub").is_symlink()
        enemy.check_untouched()
    repo.add(".")  # the link itself is what is there now
    assert {file.path for file in repo.status().files} == {"sub", "sub/w.safetensors"}
    repo.commit("link")
    repo.checkout(first)
    assert not (enemy.root / "sub").is_symlink()
    assert sorted(os.listdir(enemy.outside)) == ["x"]


# Manifests.


def _manifest_lines(enemy):
    repo = enemy.repo
    blob = repo._context.history.read_tree(enemy.good)["model.safetensors"].blob
    lines = repo._context.history.read_blob(blob).splitlines()
    return [json.loads(line) for line in lines]


def _with(lines, number, /, **changes):
    changed = [dict(line) for line in lines]
    changed[number].update(changes)
    return [{k: v for k, v in line.items() if v is not None} for line in changed]


def _lies(lines):
    head, first = lines[:2]
    # What does not parse is known to ``tests/formats``; here are two of that kind.
    yield "huge file", _with(lines, 0, size=HUGE)
    yield "boxes", _with(lines, 1, chunks=None, boxes=[])
    yield "too long", _with(lines, 0, size=head["size"] + 4096)
    yield "sparse lie", _with(lines, 0, size=100 * 2**20, gaps=head["gaps"] * 25)
    yield "gaps of another", _with(lines, 0, gaps=first["chunks"])
    yield "unknown gap", _with(lines, 0, gaps=["ab" * 32])
    yield "longer chunk", _with(lines, 1, chunks=head["gaps"])
    yield "chunk of no pack", _with(lines, 2, chunks=["00" * 32])
    view = {"view": "v", "dtype": "F32", "shape": [HUGE], "offset": 0, "strides": [1]}
    store = {"storage": "F32", "at": first["at"], "size": 2048, "chunks": first["chunks"]}
    yield "view too long", [head, store, view, *lines[2:]]


def _blob_of(lines):
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def test_manifests_that_lie(enemy):
    wrong = (FormatError, UnsupportedError)
    originals = _manifest_lines(enemy)
    for what, lines in _lies(originals):
        blob = enemy.blob(_blob_of(lines))
        commit = enemy.commit(enemy.tree((FILE, b"model.safetensors", blob)), enemy.good)
        tracemalloc.start()
        for verb in enemy.verbs(commit)[:4]:
            with pytest.raises(wrong):
                verb()
                pytest.fail(what)
            enemy.check_untouched()
        for line in lines:
            name = line.get("tensor", "v")
            try:
                values = enemy.repo.tensor(commit, "model.safetensors", name)
            except (*wrong, NotFoundError, StorageError):
                continue
            assert np.array_equal(
                values, enemy.repo.tensor(enemy.good, "model.safetensors", name)
            ), what
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < MEMORY_BYTES, what
        assert not enemy.repo.upkeep.fsck().ok, what


def test_a_tensor_under_another_name_is_still_its_own_bytes(enemy):
    """What a manifest says about chunks that fit is what was committed: there is no lie to see."""
    lines = _manifest_lines(enemy)
    q = next(n for n, line in enumerate(lines) if line.get("tensor") == "layers.0.q")
    v = next(n for n, line in enumerate(lines) if line.get("tensor") == "layers.0.v")
    swapped = _with(lines, q, chunks=lines[v]["chunks"])
    commit = enemy.commit(enemy.tree((FILE, b"model.safetensors", enemy.blob(_blob_of(swapped)))))
    got = enemy.repo.tensor(commit, "model.safetensors", "layers.0.q")
    wanted = enemy.repo.tensor(enemy.good, "model.safetensors", "layers.0.v")
    assert np.array_equal(got, wanted)
    assert enemy.repo.upkeep.fsck(data=True).ok


def test_a_view_of_stride_nothing_does_not_fill_the_memory(enemy):
    lines = _manifest_lines(enemy)
    first = lines[1]
    view = {"view": "v", "dtype": "F32", "shape": [HUGE], "offset": 0, "strides": [0]}
    store = {"storage": "F32", "at": first["at"], "size": 2048, "chunks": first["chunks"]}
    blob = enemy.blob(_blob_of([lines[0], store, view, *lines[2:]]))
    commit = enemy.commit(enemy.tree((FILE, b"model.safetensors", blob)))
    tracemalloc.start()
    for read in (
        lambda: enemy.repo.tensor(commit, "model.safetensors", "v"),
        lambda: enemy.repo.export(commit, enemy.root / "out", tensors="v"),
    ):
        with pytest.raises(MvcError):
            read()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES
    assert not (enemy.root / "out").exists()


# The journal.


def _journal(**parts):
    line = json.dumps({"version": 1, **parts}).encode()
    return line + b"\n" + blake3(line).hexdigest().encode() + b"\n"


def _write(enemy, path, staged=".mvc/tmp/0123456789abcdef/0123456789abcdef.mvc-tmp", **changes):
    blob = enemy.repo._context.history.read_tree(enemy.good)["config.json"].blob
    return {"path": path, "mode": FILE, "blob": blob, "staged": staged, **changes}


def _evil_journals(enemy):
    for path in ("../outside/x", "/tmp/mvc-evil", ".mvc/config", ".git/config", "a/../../x", ""):
        yield _journal(writes=[_write(enemy, path)])
        yield _journal(removals=[{"path": path, "was": {"size_bytes": 8, "mtime_ns": 0}}])
        yield _journal(entries=[{"path": path, "mode": FILE, "blob": "12" * 20}])
    for staged in (
        "../outside/x",
        str(enemy.outside / "x"),
        "config.json",
        ".mvc/config",
        ".mvc/tmp/../config",
        ".mvc/tmp/0123456789abcdef/../../config",
        "../0123456789abcdef.mvc-tmp",
        "/tmp/0123456789abcdef.mvc-tmp",
    ):
        yield _journal(writes=[_write(enemy, "new", staged)])
        yield _journal(writes=[_write(enemy, "../new", staged)])
    for blob in ("", "zz" * 20, "../x", "12" * 19):
        yield _journal(writes=[_write(enemy, "new", blob=blob)])
    yield _journal(writes=[_write(enemy, "new", mode=0o160000)])
    yield _journal(writes=[_write(enemy, "new", blob="12" * 20)])  # well-formed, not there
    yield _journal(writes=[_write(enemy, "new", blob=enemy.good)])  # no blob
    who = {"on_branch": "main", "expected": enemy.good, "message": "m", "name": "n", "email": "e"}
    for kind, target in (("branch", "../../x"), ("detach", "zz"), ("evil", "main"), ("move", "x")):
        yield _journal(head={"kind": kind, "target": target, **who})
    yield _journal(version=99)
    yield b"{}\n" + blake3(b"{}").hexdigest().encode() + b"\n" + b"more"
    deep = b"[" * 100_000
    yield deep + b"\n" + blake3(deep).hexdigest().encode() + b"\n"
    yield b""


def test_journals_of_an_enemy(enemy):
    journal = enemy.root / ".mvc/transition.json"
    for data in _evil_journals(enemy):
        journal.write_bytes(data)
        try:
            for verb in (enemy.repo.status, lambda: enemy.repo.checkout(enemy.good, force=True)):
                try:
                    verb()
                except (FormatError, UnsupportedError) as error:
                    assert error.hint or isinstance(error, UnsupportedError), data[:300]
                else:
                    assert b'"head"' in data, data[:300]  # a HEAD that is elsewhere stays there
            enemy.check_untouched()
        except BaseException as error:
            error.add_note(repr(data[:400]))
            raise
        journal.unlink(missing_ok=True)
    assert enemy.repo.head.branch in ("main", None)
    assert not os.path.lexists("/tmp/mvc-evil")


def test_a_sound_journal_with_a_linked_parent_writes_nothing_outside(with_folder):
    enemy, first, _ = with_folder
    blob = enemy.repo._context.history.read_tree(first)["sub/w.safetensors"].blob
    (enemy.root / "sub/w.safetensors").unlink()
    (enemy.root / "sub").rmdir()
    os.symlink(enemy.outside, enemy.root / "sub")
    for staged in (
        ".mvc/tmp/0123456789abcdef/0123456789abcdef.mvc-tmp",
        "sub/" + "0" * 16 + ".mvc-tmp",
    ):
        write = _write(enemy, "sub/w.safetensors", staged, blob=blob)
        removal = {"path": "sub/x", "was": _was(enemy.outside / "x")}
        (enemy.root / ".mvc/transition.json").write_bytes(
            _journal(writes=[write], removals=[removal])
        )
        enemy.repo.status()
        enemy.check_untouched()


def _was(path):
    found = path.stat()
    return {"size_bytes": found.st_size, "mtime_ns": found.st_mtime_ns}


# What lies in ``.mvc`` beside the objects.


def test_a_scratch_folder_that_is_a_link_is_neither_filled_nor_swept(enemy):
    precious = enemy.outside / "0123456789abcdef"
    precious.mkdir()
    (precious / "y").write_text("precious")
    os.symlink(enemy.outside, enemy.root / ".mvc/tmp")
    write_config(enemy.root / "config.json", epoch=2)
    with pytest.raises(FormatError, match="tmp"):
        enemy.repo.checkout(enemy.good, force=True)
    assert os.listdir(precious) == ["y"]
    (precious / "y").unlink()
    precious.rmdir()
    write_config(enemy.root / "config.json", epoch=1)
    enemy.check_untouched()


def test_other_folders_in_the_scratch_folder_are_left_alone(enemy):
    (enemy.root / ".mvc/tmp/mine").mkdir(parents=True)
    os.symlink(enemy.outside, enemy.root / ".mvc/tmp/0123456789abcdef")
    write_config(enemy.root / "config.json", epoch=2)
    enemy.repo.checkout(enemy.good, force=True)
    assert (enemy.root / ".mvc/tmp/mine").is_dir()
    enemy.check_untouched()


@pytest.mark.parametrize("name", ["mvc.lock", "logs/HEAD", "logs/refs/heads/main"])
def test_files_of_the_repository_that_are_links(enemy, name):
    path = enemy.root / ".mvc" / name
    path.unlink(missing_ok=True)
    os.symlink(enemy.outside / "x", path)
    write_config(enemy.root / "config.json", epoch=2)
    with pytest.raises(MvcError):
        enemy.repo.commit("two", everything=True)
    write_config(enemy.root / "config.json", epoch=1)
    enemy.check_untouched()


@pytest.mark.parametrize(
    "text",
    ["ref: ../outside/x", "ref: refs/heads/../../../outside/x", "ref: /etc/passwd", "ref: HEAD"],
)
def test_a_head_that_leads_out(enemy, text):
    (enemy.root / ".mvc/HEAD").write_text(text + "\n")
    with pytest.raises(FormatError, match="HEAD"):
        Repo.open(enemy.root).commit("m", everything=True, allow_empty=True)
    enemy.check_untouched()


# Settings and states.


def _states():
    yield b""
    yield b"null"
    yield b"[]"
    yield b"{}"
    yield b"[" * 100_000
    yield b'{"a":' * 50_000
    yield b"9" * 100_000
    yield b"\xff\xfe"
    yield b'{"mvc-state":1}'
    yield b'{"mvc-state":99}'
    yield b'{"mvc_state":1,"state":{"$tensor":"../../etc/passwd"}}'


def test_states_of_an_enemy(enemy):
    repo = enemy.repo
    made = repo.commit_state({"run": {"w": np.arange(99.0)}, "n": [1, 2.5]}, message="s").commit
    tree = repo._context.history.read_tree(made)
    sound = repo._context.history.read_blob(tree["state.json"].blob)
    changed = [
        sound.replace(b"run", b"nun"),
        sound.replace(b"run.safetensors", b"../outside/x"),
        sound.replace(b'"w"', b'"q"'),
        sound.replace(b"99", b"999999999999"),
        sound.replace(b"99", b"-99"),
        *(sound[:end] for end in range(0, len(sound), max(1, len(sound) // 40))),
    ]
    for data in [*_states(), *(one for one in changed if one.strip() != sound.strip())]:
        entries = {**{path: entry.blob for path, entry in tree.items()}}
        entries["state.json"] = enemy.blob(data)
        commit = enemy.commit(
            enemy.tree(*((FILE, path.encode(), entries[path]) for path in sorted(entries)))
        )
        tracemalloc.start()
        with pytest.raises((FormatError, UnsupportedError)):
            repo.load_state(commit, framework="numpy")
            pytest.fail(repr(data[:300]))
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < MEMORY_BYTES
