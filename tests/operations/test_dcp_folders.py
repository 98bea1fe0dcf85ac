"""DCP folders as files of a repository."""

from __future__ import annotations

import shutil

import pytest

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


def test_metadata_that_go_or_change_do_not_change_the_files(repo, folder):
    repo.commit("folder", paths="ckpt")
    (folder / ".metadata").unlink()
    path = folder / "__1_0.distcp"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    assert [file.path for file in repo.status().files] == ["ckpt/.metadata"]
