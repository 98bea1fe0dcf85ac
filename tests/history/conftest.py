import os

import pytest

from mvc.history.git import GitHistory


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_the_disk():
    """What is synced when is tested in test_durability; all other tests need not wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def history(tmp_path):
    with GitHistory.init(tmp_path / ".mvc") as made:
        yield made
