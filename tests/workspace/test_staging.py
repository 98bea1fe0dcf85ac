import os

import pytest

from mvc import ConflictError
from mvc.fs import exclusive_lock
from mvc.workspace.context import JOURNAL_NAME
from mvc.workspace.staging import staging_folder, sweep


@pytest.fixture
def git_dir(repo):
    return repo.git_dir


def folders(git_dir):
    root = git_dir / "tmp"
    return sorted(path.name for path in root.iterdir()) if root.exists() else []


def test_a_folder_lives_as_long_as_its_block(git_dir):
    with staging_folder(git_dir) as folder:
        (folder / "file").write_text("x")
        assert folders(git_dir) == [folder.name]
        with pytest.raises(ConflictError), exclusive_lock(folder / "lock", wait=False):
            pass
    assert folders(git_dir) == []


def test_it_goes_on_an_error_too(git_dir):
    with pytest.raises(RuntimeError), staging_folder(git_dir) as folder:
        (folder / "file").write_text("x")
        raise RuntimeError
    assert folders(git_dir) == []


def test_what_a_journal_may_need_stays(git_dir):
    with staging_folder(git_dir) as folder:
        (folder / "file").write_text("x")
        (git_dir / JOURNAL_NAME).write_text("waiting")
    assert folders(git_dir) == [folder.name]
    assert (folder / "file").exists()


def test_a_process_that_dies_leaves_its_folder_free(git_dir):
    """The kernel drops the lock, however the process ends."""
    child = os.fork()
    if child == 0:
        folder = git_dir / "tmp/00000000deadbeef"
        folder.mkdir(parents=True)
        with exclusive_lock(folder / "lock"):
            os._exit(9)
    os.waitpid(child, 0)
    (git_dir / "tmp/a file").write_text("x")
    with staging_folder(git_dir) as one, staging_folder(git_dir) as other:
        assert len({one.name, other.name, "00000000deadbeef", "a file"} & {*folders(git_dir)}) == 4
        sweep(git_dir)
        assert {one.name, other.name} <= {*folders(git_dir)} <= {one.name, other.name, "a file"}
