"""DCP folders as files of a repository."""

import shutil
import struct

import pytest

import mvc
from support.golden_dcp import GOLDEN


@pytest.fixture
def folder(root):
    return shutil.copytree(GOLDEN / "ranks-2", root / "ckpt")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_byte_for_byte_out_again(repo, folder):
    before = contents(folder)
    repo.commit("folder", paths="ckpt")
    shutil.rmtree(folder)
    repo.restore("ckpt")
    assert contents(folder) == before == contents(GOLDEN / "ranks-2")


def test_tensors_are_listed_by_place(repo, folder):
    repo.commit("folder", paths="ckpt")
    files = {file.path: file for file in repo.ls()}
    assert files["ckpt/.metadata"].format is None
    assert files["ckpt/__0_0.distcp"].format == "dcp"
    assert [one.name for one in files["ckpt/__0_0.distcp"].tensors] == [
        "model.rows[0:3,0:6]", "model.columns[0:3,0:4]",
    ]  # fmt: skip


@pytest.mark.parametrize("patterns", [["ckpt/__0_0.distcp"], ["ckpt/*.distcp"]])
def test_metadata_come_with_the_files(repo, folder, patterns):
    added = [file.path for file in repo.add(patterns).added]
    assert "ckpt/.metadata" in added
    assert "ckpt/__0_0.distcp" in added


def test_metadata_that_are_ignored_stay_out(repo, root, folder):
    (root / ".mvcignore").write_text(".metadata\n")
    assert [file.path for file in repo.add("ckpt/__0_0.distcp").added] == ["ckpt/__0_0.distcp"]


def test_without_metadata_the_same_chunks(repo, root, folder):
    repo.commit("folder", paths="ckpt")
    (root / "alone").mkdir()
    shutil.copy(folder / "__1_0.distcp", root / "alone")
    result = repo.add("alone")
    assert result.counts.new_chunks == 0
    assert result.warnings[0][1].startswith("its tensors are numbered")


class TestIncomplete:
    """A folder whose metadata names files that were never written, or are lost."""

    @pytest.fixture
    def gap(self, repo, folder):
        (folder / "__1_0.distcp").unlink()
        return "names __1_0.distcp, which is not there: the checkpoint is incomplete"

    def test_it_is_stored_as_it_is_with_a_warning(self, repo, folder, gap):
        before = contents(folder)
        assert repo.add("ckpt").warnings == (("ckpt/.metadata", gap),)
        repo.commit("half")
        shutil.rmtree(folder)
        repo.restore("ckpt")
        assert contents(folder) == before

    def test_its_pieces_are_not_taken_for_tensors(self, repo, folder, gap, tmp_path):
        repo.commit("half", paths="ckpt")
        with pytest.raises(mvc.FormatError, match=f"^ckpt/.metadata {gap}"):
            repo.export("HEAD", tmp_path / "whole.safetensors", path="ckpt")
        with pytest.raises(mvc.FormatError, match=gap):
            repo.compare("HEAD", folder)
        assert not (tmp_path / "whole.safetensors").exists()


def test_metadata_that_go_or_change_do_not_change_the_files(repo, folder):
    repo.commit("folder", paths="ckpt")
    (folder / ".metadata").unlink()
    path = folder / "__1_0.distcp"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    assert [file.path for file in repo.status().files] == ["ckpt/.metadata"]


class TestOtherShards:
    """One model in the shards of 2 and of 4 ranks."""

    @pytest.fixture
    def both(self, repo, root, folder):
        repo.commit("two ranks", paths="ckpt")
        shutil.rmtree(folder)
        shutil.copytree(GOLDEN / "ranks-4", folder)
        repo.commit("four ranks", paths="ckpt")
        return repo

    def test_nothing_differs(self, both):
        diff = both.compare("HEAD~1", "HEAD")
        assert {change.status for change in diff.changes} == {"unchanged"}
        assert "model.rows" in {change.name for change in diff.changes}
        assert both.compare("HEAD~1").differing == ()
        assert both.verify_models("HEAD~1", "HEAD").passed

    def test_against_other_formats(self, both, tmp_path):
        both.export("HEAD", tmp_path / "x.safetensors")
        both.export("HEAD", tmp_path / "x.pt")
        for name in ("x.safetensors", "x.pt"):
            assert both.verify_models("HEAD", tmp_path / name).passed

    def test_a_change_is_seen(self, both, root, folder):
        path = folder / "__1_0.distcp"  # holds rows[0:3,3:6], whose first value is 3
        data = path.read_bytes()
        value, other = struct.pack("<f", 3.0), struct.pack("<f", 4.0)
        at = data.index(value + other)
        path.write_bytes(data[:at] + struct.pack("<f", 9.0) + data[at + 4 :])
        diff = both.compare("HEAD~1")
        assert [change.name for change in diff.differing] == ["model.rows"]
        assert not both.verify_models("HEAD~1", folder).passed
        assert [change.name for change in both.compare("HEAD").differing] == ["model.rows[0:3,3:6]"]

    def test_shards_that_make_no_whole_stay_shards(self, both, folder):
        (folder / ".metadata").unlink()
        assert both.compare("HEAD").differing == ()  # numbered, but of the same bytes
        (folder / "__2_0.distcp").unlink()
        assert {change.status for change in both.compare("HEAD").differing} == {"removed"}


def test_a_merge_leaves_files_of_many_archives_alone(repo, folder):
    repo.commit("base", paths="ckpt")
    path = folder / "__0_0.distcp"
    base = path.read_bytes()
    at = base.index(struct.pack("<2f", 1.0, 2.0))
    for branch, value in (("ours", 7.0), ("theirs", 8.0)):
        repo.switch("main")
        repo.switch(branch, create=True)
        path.write_bytes(base[:at] + struct.pack("<f", value) + base[at + 4 :])
        repo.commit(branch, paths="ckpt")
    result = repo.merge("ours", strategy="linear", parameters={"weight": 0.5})
    (conflict,) = result.conflicts
    assert conflict.reason.endswith("cannot be made anew (dcp)")
    assert path.read_bytes()[at : at + 4] == struct.pack("<f", 8.0)
