"""Hashes of pieces that were read: each is given once, and the oldest make room."""

from mvc.ids import hash_chunk
from mvc.workspace.kept import PartDigests


def test_each_is_given_once():
    digests = PartDigests()
    digests.note("piece", memoryview(b"content"))
    assert digests.take("other") is None
    assert digests.take("piece") == hash_chunk(b"content")
    assert digests.take("piece") is None


def test_the_oldest_are_forgotten():
    digests = PartDigests(kept=3)
    for number in range(5):
        digests.note(number, memoryview(b"x"))
    assert [digests.take(number) is not None for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
