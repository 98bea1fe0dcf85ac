from __future__ import annotations

import pytest

from mvc.history.git import History


@pytest.fixture
def history(tmp_path):
    with History.init(tmp_path / ".mvc") as made:
        yield made
