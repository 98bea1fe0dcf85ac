"""What the hints promise: after a repair and another add of the same file, all is whole again."""

from __future__ import annotations

import shutil

import pytest

from mvc import Repo
from mvc.formats.pack import RECORD_BYTES
from support import verbs
from support.models import digests, write_config, write_model


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "work"
    repo = Repo.init(root)
    repo.identity = verbs.WHO
    repo.set_config("mvc.chunkbytes", "1024")
    write_model(root / "model.safetensors", seed=1)
    write_config(root / "config.json", epoch=1)
    repo.commit("one", paths=["."])
    return root


def _write(path, data):
    path.chmod(0o644)
    path.write_bytes(data)


def _pack(root):
    (path,) = (root / ".mvc" / "chunks" / "packs").glob("*.pack")
    return path


def _flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    _write(path, data)


def _index(root):
    return _pack(root).with_suffix(".idx")


_BODY = 16 + RECORD_BYTES + 100
_DAMAGES = {
    "header": lambda root: _flip(_pack(root), 2),
    "first_record": lambda root: _flip(_pack(root), 20),
    "body": lambda root: _flip(_pack(root), _BODY),
    "footer": lambda root: _flip(_pack(root), -3),
    "half": lambda root: _write(
        _pack(root), _pack(root).read_bytes()[: _pack(root).stat().st_size // 2]
    ),
    "nothing_left": lambda root: _write(_pack(root), b""),
    "pack_gone": lambda root: _pack(root).unlink(),
    "index_and_body": lambda root: (_flip(_pack(root), _BODY), _flip(_index(root), 100)),
    "index_and_record": lambda root: (_flip(_index(root), 100), _flip(_pack(root), 20)),
}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_repair_and_add_again(damage, root):
    before = digests(root)
    total = Repo.open(root).upkeep.fsck().chunks
    _DAMAGES[damage](root)
    report = Repo.open(root).upkeep.fsck(data=True)
    assert not report.ok
    assert digests(root) == before
    repaired = Repo.open(root).upkeep.fsck(data=True, repair=True)
    assert {problem.kind for problem in repaired.problems} <= {"missing-chunk"}
    lost = {problem.chunk for problem in repaired.problems}
    assert all(problem.hint.startswith("add the same file again") for problem in repaired.problems)
    if damage in ("header", "footer"):
        assert not lost
    if damage in ("body", "first_record", "index_and_body"):
        assert len(lost) == 1, "one damaged record costs one chunk"
    (root / "model.safetensors").touch()
    added = Repo.open(root).add("model.safetensors")
    assert added.counts.new_chunks == len(lost)
    assert added.counts.chunks == total
    report = Repo.open(root).upkeep.fsck(data=True)
    assert report.ok, report.problems
    (root / "model.safetensors").unlink()
    Repo.open(root).restore("model.safetensors")
    assert digests(root) == before
    assert Repo.open(root).upkeep.fsck(data=True, repair=True).repaired == ()


def test_without_repair_a_damaged_chunk_is_said_to_be_there(root):
    """Why the repair must come first, and that the hint says so."""
    _DAMAGES["body"](root)
    (root / "model.safetensors").touch()
    repo = Repo.open(root)
    assert repo.add("model.safetensors").counts.new_chunks == 0
    hints = {problem.hint for problem in repo.upkeep.fsck(data=True).problems if problem.path}
    assert len(hints) == 1
    assert "--data --repair" in hints.pop()


def test_nothing_is_thrown_away(root):
    _DAMAGES["body"](root)
    damaged = _pack(root).read_bytes()
    name = _pack(root).name
    report = Repo.open(root).upkeep.fsck(data=True, repair=True)
    assert (root / ".mvc" / "chunks" / "damaged" / name).read_bytes() == damaged
    assert any(name.removesuffix(".pack") in notice for notice in report.notices)


@pytest.mark.parametrize("damage", ["header", "body", "half"])
def test_a_repair_that_was_interrupted(damage, root, monkeypatch):
    """Whatever deletion it stopped at, the next repair saves the same chunks."""

    class StoppedError(Exception):
        pass

    for stop_at in range(4):
        work = root.with_name("copy")
        shutil.copytree(root, work, symlinks=True)
        _DAMAGES[damage](work)
        calls = []
        storage_class = type(Repo.open(work)._context.store.storage)
        delete = storage_class.delete

        def stopping(self, key, delete=delete, calls=calls, stop_at=stop_at):
            if len(calls) == stop_at:
                raise StoppedError
            calls.append(key)
            delete(self, key)

        monkeypatch.setattr(storage_class, "delete", stopping)
        with pytest.raises(StoppedError):
            Repo.open(work).upkeep.fsck(data=True, repair=True)
            raise StoppedError  # there were not that many
        monkeypatch.undo()
        Repo.open(work).upkeep.fsck(data=True, repair=True)
        (work / "model.safetensors").touch()
        added = Repo.open(work).add("model.safetensors")
        assert Repo.open(work).upkeep.fsck(data=True).ok
        if damage == "header":
            assert added.counts.new_chunks == 0
        if damage == "body":
            assert added.counts.new_chunks <= 1
        shutil.rmtree(work)
