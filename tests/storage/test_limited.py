"""A limit on what passes in a second: exact for any sizes and threads, by a clock of its own."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import UsageError
from mvc.storage.limited import RateLimit, limit_storage, parse_rate
from mvc.storage.local import LocalStorage
from support.machine import run_together


class Clock:
    """Time that passes while somebody sleeps; ``waited_s`` has every sleep."""

    def __init__(self):
        self.now_s = 5.0
        self.waited_s = []

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.waited_s.append(seconds)
        self.now_s += seconds


@given(st.lists(st.tuples(st.integers(0, 2**24), st.floats(0, 100)), max_size=30))
def test_never_more_has_passed_than_the_time_allows(steps):
    clock, passed = Clock(), 0
    limit = RateLimit(2**20, clock=clock, sleep=clock.sleep)
    for size_bytes, idle_s in steps:
        limit.take(size_bytes)
        passed += size_bytes
        assert passed <= (clock.now_s - 5) * 2**20 * (1 + 1e-9) + 1
        clock.now_s += idle_s
    busy_s = sum(size_bytes for size_bytes, _ in steps) / 2**20
    assert sum(clock.waited_s) == pytest.approx(busy_s)


def test_threads_share_a_limit():
    waited_s = []
    limit = RateLimit(100, clock=lambda: 0.0, sleep=waited_s.append)
    run_together(*(partial(limit.take, 50) for _ in range(8)))
    assert sorted(waited_s) == [0.5 * turn for turn in range(1, 9)]


def test_all_bytes_of_packs_are_paid_for(tmp_path):
    clock = Clock()
    limit = RateLimit(1000, clock=clock, sleep=clock.sleep)
    storage = limit_storage(LocalStorage(tmp_path), limit)
    (tmp_path / "file").write_bytes(bytes(5000))
    told = []
    storage.upload("packs/a", tmp_path / "file", told.append)
    assert sum(told) == 5000
    assert clock.now_s == 10
    assert [len(one) for one in storage.read_ranges("packs/a", [(0, 10), (100, 1990)])] == [
        10,
        1990,
    ]
    assert clock.now_s == 12
    assert storage.read("packs/a") == bytes(5000)
    assert clock.now_s == 12


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1", 1), ("500K", 512_000), ("2.5m", 2_621_440), ("1G", 2**30), ("0.5K", 512)],
)
def test_a_rate_is_read(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "-1", "0.1", "5T", "K", "1KB", "1e3", "nan", "٣", " 1"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(UsageError, match="not a valid rate"):
        parse_rate(text)
