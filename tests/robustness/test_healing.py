"""What the hints promise: after a repair and another add of the same file, all is whole again."""

from __future__ import annotations

import shutil

import pytest

from mvc import CorruptionError, Repo
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


def _pack(root):
    (path,) = (root / ".mvc" / "chunks" / "packs").glob("*.pack")
    return path


def _write(path, data):
    path.chmod(0o644)
    path.write_bytes(data)


def _flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    _write(path, data)


def _header(root):
    _flip(_pack(root), 2)


def _first_record(root):
    _flip(_pack(root), 20)


def _body(root):
    _flip(_pack(root), 16 + RECORD_BYTES + 100)


def _footer(root):
    _flip(_pack(root), -3)


def _half(root):
    _write(_pack(root), _pack(root).read_bytes()[: _pack(root).stat().st_size // 2])


def _nothing_left(root):
    _write(_pack(root), b"")


def _pack_gone(root):
    _pack(root).unlink()


def _index_and_body(root):
    _body(root)
    _flip(_pack(root).with_suffix(".idx"), 100)


def _index_and_record(root):
    _flip(_pack(root).with_suffix(".idx"), 100)
    _first_record(root)


_DAMAGES = [
    _header,
    _first_record,
    _body,
    _footer,
    _half,
    _nothing_left,
    _pack_gone,
    _index_and_body,
    _index_and_record,
]


@pytest.mark.parametrize("damage", _DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_repair_and_add_again(damage, root):
    before = digests(root)
    total = Repo.open(root).upkeep.fsck().chunks
    damage(root)
    report = Repo.open(root).upkeep.fsck(data=True)
    assert not report.ok
    assert digests(root) == before
    repaired = Repo.open(root).upkeep.fsck(data=True, repair=True)
    assert {problem.kind for problem in repaired.problems} <= {"missing-chunk"}
    lost = {problem.chunk for problem in repaired.problems}
    assert all(problem.hint.startswith("add the same file again") for problem in repaired.problems)
    if damage in (_header, _footer):
        assert not lost
    if damage in (_body, _first_record, _index_and_body):
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
    _body(root)
    (root / "model.safetensors").touch()
    repo = Repo.open(root)
    assert repo.add("model.safetensors").counts.new_chunks == 0
    hints = {problem.hint for problem in repo.upkeep.fsck(data=True).problems if problem.path}
    assert len(hints) == 1
    assert "--data --repair" in hints.pop()


def test_nothing_is_thrown_away(root):
    _body(root)
    damaged = _pack(root).read_bytes()
    name = _pack(root).name
    report = Repo.open(root).upkeep.fsck(data=True, repair=True)
    assert (root / ".mvc" / "chunks" / "damaged" / name).read_bytes() == damaged
    assert any(name.removesuffix(".pack") in notice for notice in report.notices)


@pytest.mark.parametrize("damage", [_header, _body, _half])
def test_a_repair_that_was_interrupted(damage, root, monkeypatch):
    """Whatever deletion it stopped at, the next repair saves the same chunks."""

    class StoppedError(Exception):
        pass

    for stop_at in range(4):
        work = root.with_name("copy")
        shutil.copytree(root, work, symlinks=True)
        damage(work)
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
        if damage is _header:
            assert added.counts.new_chunks == 0
        if damage is _body:
            assert added.counts.new_chunks <= 1
        shutil.rmtree(work)


def test_another_copy_of_a_chunk_is_used(root):
    """A chunk that two packs hold is read from the sound one, and is no loss to any commit."""
    other = root.with_name("other")
    shutil.copytree(root, other, symlinks=True)
    single = Repo.init(root.with_name("single"))
    single.set_config("mvc.chunkbytes", "1024")
    write_model(single.worktree / "model.safetensors", seed=1, layers=0)
    single.commit("part", paths=["."])
    for path in (single.git_dir / "chunks" / "packs").iterdir():
        shutil.copy(path, root / ".mvc" / "chunks" / "packs")
    first = next(p for p in (other / ".mvc" / "chunks" / "packs").glob("*.pack"))
    damaged = root / ".mvc" / "chunks" / "packs" / first.name
    _write(damaged, b"\0" * damaged.stat().st_size)
    repo = Repo.open(root)
    assert repo.tensor("HEAD", "model.safetensors", "embed").shape == (64, 32)
    with pytest.raises(CorruptionError):
        repo.tensor("HEAD", "model.safetensors", "layers.0.q")
    lost = {problem.tensor for problem in repo.upkeep.fsck(data=True).problems if problem.tensor}
    assert "layers.0.q" in lost
    assert "embed" not in lost
