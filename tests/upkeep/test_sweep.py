"""The ids that a mark collects."""

import numpy as np

from mvc.upkeep.sweep import IdSet


def test_id_set_takes_any_order_and_keeps_nul_bytes():
    ids, rng = IdSet(), np.random.default_rng(1)
    given = [rng.bytes(31) + b"\0" for _ in range(500)] + [bytes(32)]
    for start in range(0, 501, 100):
        ids.add(given[start : start + 120])
    data = ids.sorted().tobytes()
    assert [data[at : at + 32] for at in range(0, len(data), 32)] == sorted(set(given))
