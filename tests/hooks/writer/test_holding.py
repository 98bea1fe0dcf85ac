"""What a writer holds for a next run: only what is whole, and what nobody has written over."""

from __future__ import annotations

import os

import pytest

from mvc_hooks.lingering import Held
from mvc_hooks.snapshot.stamp import STAMP_BYTES, renew_stamp
from mvc_hooks.writer import holding as module
from mvc_hooks.writer.holding import Holding, open_image


def describe(*, rank=0, commit="c" * 40, size_bytes=100):
    return Held("/there/.mvc", "main", commit, rank, size_bytes, (80, 20), {})


@pytest.fixture
def memory():
    descriptor = os.memfd_create("image")
    os.write(descriptor, bytes(100))
    yield descriptor
    os.close(descriptor)


def begin_next(memory):
    """Do as a training does before it takes the next snapshot."""
    data = bytearray(os.pread(memory, 100, 0))
    renew_stamp(memoryview(data))
    os.pwrite(memory, data[-STAMP_BYTES:], 100 - STAMP_BYTES)


def test_the_newest_image_is_held(memory):
    holding = Holding()
    for commit in ("a" * 40, "b" * 40):
        holding.keep(open_image(describe(commit=commit), memory))
    ((held, descriptor),) = holding.find_intact("/there/.mvc")
    assert held.commit == "b" * 40
    assert os.path.sameopenfile(descriptor, memory)


def test_what_is_written_over_is_not_held(memory):
    holding = Holding()
    holding.keep(open_image(describe(), memory))
    begin_next(memory)
    assert holding.find_intact("/there/.mvc") == []
    holding.keep(open_image(describe(commit="d" * 40), memory))
    assert len(holding.find_intact("/there/.mvc")) == 1


def test_memory_without_a_stamp_is_no_image(memory):
    with pytest.raises(OSError, match="before its stamp"):
        open_image(describe(size_bytes=200), memory)


def test_a_copy_is_held_once_it_is_whole():
    holding, held = Holding(), describe(rank=3)
    assert holding.take(held, 0, bytes([1]) * 60) is None
    assert holding.find_intact("/here/.mvc") == []
    assert holding.take(held, 60, bytes([2]) * 40) is None
    ((found, descriptor),) = holding.find_intact("/here/.mvc")
    assert (found.rank, found.git_dir) == (3, "/here/.mvc"), "the next run here looks for its own"
    assert os.pread(descriptor, 200, 0) == bytes([1]) * 60 + bytes([2]) * 40


def test_the_next_copy_takes_the_place_of_the_last():
    holding = Holding()
    holding.take(describe(commit="a" * 40), 0, bytes(100))
    holding.take(describe(commit="b" * 40), 0, bytes([5]) * 50)
    assert holding.find_intact("/here/.mvc") == [], "half of it is of the commit before"
    holding.take(describe(commit="b" * 40), 50, bytes([5]) * 50)
    ((found, descriptor),) = holding.find_intact("/here/.mvc")
    assert found.commit == "b" * 40
    larger = describe(commit="e" * 40, size_bytes=200)
    holding.take(larger, 0, bytes([6]) * 200)
    ((found, descriptor),) = holding.find_intact("/here/.mvc")
    assert os.pread(descriptor, 300, 0) == bytes([6]) * 200


@pytest.mark.parametrize(
    ("held", "offset", "size_bytes", "why"),
    [
        (describe(commit="x" * 40), 50, 50, "a piece of the copy is missing"),
        (describe(), 60, 40, "a piece of the copy is missing"),
        (describe(), 50, 51, "the copy is longer than it should be"),
        (describe(rank=7), 50, 50, "its machine has no memory to spare"),
    ],
)
def test_pieces_that_do_not_fit_are_refused(held, offset, size_bytes, why):
    holding = Holding()
    holding.take(describe(), 0, bytes(50))
    assert holding.take(held, offset, bytes(size_bytes)) == why
    assert holding.find_intact("/here/.mvc") == []


def test_a_machine_without_memory_holds_no_copies(monkeypatch):
    monkeypatch.setattr(module, "has_room", lambda size_bytes: size_bytes < 100)
    assert Holding().take(describe(), 0, bytes(100)) == "its machine has no memory to spare"
    assert Holding().take(describe(size_bytes=99), 0, bytes(99)) is None
