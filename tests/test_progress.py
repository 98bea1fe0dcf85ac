"""Who is told about the bytes of a piece of work: the innermost block of the thread that does it."""

from __future__ import annotations

import threading

import pytest

from mvc.progress import announce, current_progress, report, reporting


def test_the_innermost_block_is_told_and_the_outer_one_again_afterwards():
    outer, inner = [], []
    report(1)
    with reporting(outer.append):
        report(2)
        with pytest.raises(KeyError), reporting(inner.append):
            report(3)
            raise KeyError
        with reporting(None):
            report(4)
        report(5)
    report(6)
    assert (outer, inner) == ([2, 5], [3])


def test_other_threads_are_not_reported_unless_they_are_handed_the_callback():
    calls = []
    with reporting(calls.append):
        handed = current_progress()
        for work in (lambda: report(1), lambda: handed(2)):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert calls == [2]


def test_what_a_callback_does_itself_is_not_reported():
    calls = []

    def progress(size_bytes):
        calls.append(size_bytes)
        report(100)

    with reporting(progress):
        report(1)
        current_progress()(2)
    assert calls == [1, 2]


def test_bytes_to_come_are_announced_to_those_who_expect_them():
    class Bar:
        expected = 0

        def expect(self, size_bytes):
            self.expected += size_bytes

        def __call__(self, size_bytes):
            raise AssertionError

    bar = Bar()
    with reporting(bar):
        announce(7)
    with reporting([].append):
        announce(8)
    assert bar.expected == 7
