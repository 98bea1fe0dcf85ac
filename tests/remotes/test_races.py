"""Many clients push at once: what was accepted is there, what was refused got a clear answer."""

from __future__ import annotations

import pytest

from support.bounds import bounded
from support.remote_races import CLIENTS, race_pushes


@pytest.mark.parametrize("branches", [1, CLIENTS])
def test_no_push_is_lost(tmp_path, branches):
    rounds = bounded(24, 200) // CLIENTS
    refused = race_pushes(tmp_path, str(tmp_path / "store"), branches=branches, rounds=rounds)
    assert refused == 0 or branches == 1
